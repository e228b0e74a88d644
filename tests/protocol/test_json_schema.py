"""What of a schema is refused, by which rule, and where; schema/test_honoured.py has what is let through."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worker.protocol.field_errors import MAX_ERRORS
from worker.protocol.json_schema import MAX_BYTES, plain_schema, schema_errors
from worker.protocol.schema.faults import MAX_REPEATS, MAX_REPEATS_IN_ALL
from worker.protocol.schema.reader import KNOWN, MAX_DEPTH, MAX_OPTIONAL, MAX_PARTS
from worker.protocol.schema.values import MAX_CHOICES

TEXT = {"type": "string"}


def told(schema: Any) -> list[tuple[str, str]]:
    """(constraint, pointer) of every fault."""
    return [(error.constraint, error.message.split()[1]) for error in schema_errors(schema)]


UNSUPPORTED = "supported"
NOT_HONOURED: dict[str, tuple[Any, str]] = {
    "not": ({"not": {}}, "#/not"),
    "if": ({"type": "object", "if": {}}, "#/if"),
    "patternProperties": ({"type": "object", "patternProperties": {}}, "#/patternProperties"),
    "propertyNames": ({"type": "object", "propertyNames": {}}, "#/propertyNames"),
    "dependentRequired": ({"type": "object", "dependentRequired": {}}, "#/dependentRequired"),
    "minProperties": ({"type": "object", "minProperties": 1}, "#/minProperties"),
    "uniqueItems": ({"type": "array", "uniqueItems": True}, "#/uniqueItems"),
    "contains": ({"type": "array", "contains": {}}, "#/contains"),
    "multipleOf": ({"type": "integer", "multipleOf": 2}, "#/multipleOf"),
    "number-minimum": ({"type": "number", "minimum": 0}, "#/minimum"),
    "untyped-minimum": ({"minimum": 0}, "#/minimum"),
    "integer-one-bound": ({"type": "integer", "minimum": 0}, "#/minimum"),
    "integer-wide-bounds": ({"type": "integer", "maximum": MAX_CHOICES, "minimum": 0}, "#/minimum"),
    "format": ({"type": "string", "format": "email"}, "#/format"),
    "pattern-without-anchors": ({"pattern": "a"}, "#/pattern"),
    "pattern-and-length": ({"pattern": "^a$", "maxLength": 3}, "#/pattern"),
    "format-and-length": ({"type": "string", "format": "date", "minLength": 3}, "#/format"),
    "remote-reference": ({"$ref": "https://example.org/x"}, "#/$ref"),
    "anchor-reference": ({"$ref": "#x"}, "#/$ref"),
    "dynamic-reference": ({"$dynamicRef": "#x"}, "#/$dynamicRef"),
    "reference-and-more": ({"$ref": "#/$defs/a", "maxLength": 1, "$defs": {"a": TEXT}}, "#/maxLength"),
    "anyOf-and-more": ({"anyOf": [TEXT], "type": "string"}, "#/type"),
    "enum-and-more": ({"enum": ["a"], "type": "string", "maxLength": 1}, "#/maxLength"),
    "oneOf-overlapping": ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "#/oneOf"),
    "oneOf-unknown": ({"oneOf": [{"type": "integer"}, {"const": 1}]}, "#/oneOf"),
    "allOf-of-two": ({"allOf": [TEXT, {"maxLength": 1}]}, "#/allOf"),
    "required-not-declared": ({"properties": {"a": {}}, "required": ["a", "b"]}, "#/required/1"),
    "schema-for-other-properties": (
        {"properties": {"a": {}}, "additionalProperties": TEXT},
        "#/additionalProperties",
    ),
    "items-behind-a-tuple": ({"prefixItems": [TEXT], "items": TEXT}, "#/items"),
    "short-tuple": ({"prefixItems": [TEXT], "minItems": 2}, "#/prefixItems"),
    "property-named-star": ({"properties": {"*": {}}}, "#/properties/*"),
    "property-without-a-name": ({"properties": {"": {}}}, "#/properties/"),
    "property-named-as-a-reference": ({"properties": {"$ref": {}}}, "#/properties/$ref"),
    "reference-in-a-value": ({"const": [{"$ref": "#"}]}, "#/const"),
    "unknown": ({"properties": {"a/b": {"items": {"x~y": 1}}}}, "#/properties/a~1b/items/x~0y"),
}
INVALID = "valid"
MEANINGLESS: dict[str, tuple[Any, str]] = {
    "type": ({"type": "value"}, "#/type"),
    "types": ({"type": []}, "#/type"),
    "not-a-schema": ({"items": 1, "type": "array"}, "#/items"),
    "items-as-a-list": ({"type": "array", "items": [TEXT]}, "#"),
    "empty-tuple": ({"type": "array", "prefixItems": []}, "#"),
    "properties": ({"properties": []}, "#"),
    "no-branches": ({"anyOf": []}, "#/anyOf"),
    "no-values": ({"enum": []}, "#/enum"),
    "pattern": ({"pattern": 1}, "#/pattern"),
    "length": ({"minLength": 1.5}, "#/minLength"),
    "length-as-a-truth": ({"minLength": True}, "#/minLength"),
    "negative-length": ({"maxItems": -1}, "#/maxItems"),
    "bound": ({"type": "integer", "minimum": "1"}, "#/minimum"),
    "dangling-reference": ({"$ref": "#/$defs/x"}, "#/$ref"),
    "reference-past-an-array": ({"$ref": "#/anyOf/1", "title": "x"}, "#/$ref"),
}
UNSATISFIABLE = "satisfiable"
IMPOSSIBLE: dict[str, tuple[Any, str]] = {
    "false": (False, "#"),
    "false-inside": ({"type": "array", "items": False}, "#/items"),
    "lengths": ({"type": "string", "minLength": 3, "maxLength": 2}, "#/minLength"),
    "numbers-of-items": ({"type": "array", "minItems": 3, "maxItems": 2}, "#/minItems"),
    "bounds": ({"type": "integer", "minimum": 3, "exclusiveMaximum": 3}, "#/minimum"),
    "value-of-another-type": ({"type": ["integer", "null"], "enum": [1, None, 1.5]}, "#/enum/2"),
    "truth-is-no-number": ({"type": "integer", "const": True}, "#/const"),
    "itself": ({"anyOf": [{"$ref": "#"}, {"type": "null"}]}, "#"),
    "each-other": (
        {"properties": {"a": {"$ref": "#/$defs/b"}}, "$defs": {"b": {"anyOf": [{"$ref": "#/$defs/b"}, TEXT]}}},
        "#/$defs/b",
    ),
    "endless-object": ({"properties": {"a": {"$ref": "#"}}, "required": ["a"]}, "#"),
    "endless-array": ({"type": "array", "items": {"$ref": "#"}, "minItems": 1}, "#"),
    "endless-tuple": ({"type": "array", "prefixItems": [{"$ref": "#"}]}, "#"),
}


@pytest.mark.parametrize("name", NOT_HONOURED)
def test_what_the_converter_would_not_honour_is_refused_by_its_place(name: str) -> None:
    schema, pointer = NOT_HONOURED[name]
    assert told(schema) == [(UNSUPPORTED, pointer)]


@pytest.mark.parametrize("name", MEANINGLESS)
def test_what_means_nothing_is_refused_by_its_place(name: str) -> None:
    schema, pointer = MEANINGLESS[name]
    assert told(schema) == [(INVALID, pointer)]


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_what_no_value_satisfies_is_refused_by_its_place(name: str) -> None:
    schema, pointer = IMPOSSIBLE[name]
    assert told(schema)[0] == (UNSATISFIABLE, pointer)
    assert {constraint for constraint, _ in told(schema)} == {UNSATISFIABLE}


def test_all_faults_are_told_at_once_in_the_order_of_the_text() -> None:
    schema = {"properties": {"b": {"not": {}}, "a": {"$ref": "#/x"}, "c": False}, "required": ["d"], "then": {}}
    assert told(schema) == [
        ("supported", "#/then"),
        ("supported", "#/required/0"),
        ("supported", "#/properties/b/not"),
        ("valid", "#/properties/a/$ref"),
        ("satisfiable", "#/properties/c"),
    ]


def test_a_fault_of_a_part_referred_to_twice_is_told_once() -> None:
    part = {"$ref": "#/$defs/a"}
    assert told({"anyOf": [part, part], "$defs": {"a": {"not": {}}}}) == [("supported", "#/$defs/a/not")]


def test_what_is_not_referred_to_is_not_looked_at() -> None:
    assert told({"$defs": {"a": {"not": {}}}, "definitions": {"b": False}, "default": {"$ref": 1}}) == []


def test_a_long_way_to_a_part_is_cut() -> None:
    (error,) = schema_errors({"properties": {"x" * 10_000: {"not": {}}}})
    assert len(error.message) < 200
    assert error.value is msgspec.UNSET


# ── sizes ────────────────────────────────────────────────────────────────────────────────────────


def nested(depth: int) -> Any:
    schema: dict[str, Any] = {}
    for _ in range(depth - 1):
        schema = {"items": schema}
    return schema


def chain(n_definitions: int) -> Any:
    """One definition in the other, though the text is flat."""
    definitions: dict[str, Any] = {f"d{i}": {"items": {"$ref": f"#/$defs/d{i + 1}"}} for i in range(n_definitions)}
    return {"$ref": "#/$defs/d0", "$defs": definitions | {f"d{n_definitions}": TEXT}}


def test_depth_is_that_of_the_value() -> None:
    assert told(nested(MAX_DEPTH)) == []
    assert told(nested(MAX_DEPTH + 1)) == [("max_depth(64)", "must")]
    assert told({"default": nested(MAX_DEPTH)}) == [("max_depth(64)", "must")]


def test_a_hostile_depth_is_told_without_recursion() -> None:
    assert told(nested(200_000)) == [("max_depth(64)", "must")]


def test_depth_counts_through_references() -> None:
    assert told(chain(31)) == []
    assert told(chain(1000)) == [("max_depth(64)", "#/$defs/d31/items")]


def test_length_is_that_of_compact_utf8() -> None:
    rest = len('{"title":""}')
    assert told({"title": "世" * ((MAX_BYTES - rest) // 3)}) == []
    assert told({"title": "x" * (MAX_BYTES - rest + 1)}) == [("max_length(65536)", "must")]


@pytest.mark.parametrize("word", ["minLength", "maxLength", "minItems", "maxItems"])
def test_lengths_end_where_llama_cpps_repetitions_do(word: str) -> None:
    schema = {"type": "string" if "Length" in word else "array"}
    assert told(schema | {word: MAX_REPEATS}) == []
    assert told(schema | {word: MAX_REPEATS + 1}) == [("range(0..=1000)", f"#/{word}")]


def test_repetitions_of_a_pattern_are_counted_together() -> None:
    assert told({"pattern": "^(a{500}b{0,498})$"}) == []
    assert told({"pattern": "^(a{500}b{0,500})*$"}) == [("max_repeats(1000)", "#/pattern")]


def test_repetitions_of_all_parts_are_counted_together() -> None:
    properties = {f"p{i}": {"type": "string", "maxLength": MAX_REPEATS} for i in range(12)}
    assert MAX_REPEATS_IN_ALL == 10 * MAX_REPEATS
    assert told({"properties": properties}) == [("max_repeats(10000)", "#/properties/p10/maxLength")]


def test_choices_are_counted() -> None:
    assert told({"enum": list(range(MAX_CHOICES))}) == []
    assert told({"enum": list(range(MAX_CHOICES + 1))}) == [("max_count(500)", "#/enum")]
    assert told({"anyOf": [TEXT] * (MAX_CHOICES + 1)}) == [("max_count(500)", "#/anyOf")]


def test_properties_that_may_be_left_out_are_counted() -> None:
    names = [f"p{i}" for i in range(MAX_OPTIONAL + 2)]
    schema = {"properties": dict.fromkeys(names, TEXT)}
    assert told(schema | {"required": names[:2]}) == []
    assert told(schema | {"required": names[:1]}) == [("max_count(128)", "#/properties")]


def test_parts_read_again_and_again_are_counted() -> None:
    """Every reference is to another part that has all the others inside."""
    inner: dict[str, Any] = {"anyOf": [TEXT] * MAX_CHOICES}
    for _ in range(25):
        inner = {"items": inner}
    references = [{"$ref": "#/anyOf/0" + "/items" * depth} for depth in range(25)]
    assert told({"anyOf": [inner, *references]}) == [(f"max_count({MAX_PARTS})", "#")]


def test_the_answer_is_bounded() -> None:
    assert len(told({"properties": {f"p{i}": False for i in range(1000)}, "required": ["x"] * 1000})) == MAX_ERRORS


# ── the plain schema ─────────────────────────────────────────────────────────────────────────────


def test_the_plain_schema_keeps_the_order_of_the_text_and_has_names_of_ours() -> None:
    schema = {"properties": {"z": {"$ref": "#/$defs/my def"}, "a": True}, "required": ["a"], "$defs": {"my def": {}}}
    plain = json.loads(plain_schema(schema))
    assert plain == {
        "anyOf": [{"$ref": "#/$defs/schema0"}],
        "$defs": {
            "schema0": {
                "type": "object",
                "properties": {"z": {"$ref": "#/$defs/schema1"}, "a": {"type": "value"}},
                "required": ["a"],
            },
            "schema1": {"type": "value"},
        },
    }
    assert list(plain["$defs"]["schema0"]["properties"]) == ["z", "a"]


# ── laws ─────────────────────────────────────────────────────────────────────────────────────────

words = st.sampled_from([*sorted(KNOWN), "$defs", "not", "title", "a"])
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-2, 2)
    | st.floats(-2, 2)
    | st.sampled_from(["a", "#", "#/a", "^a$", "string"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(words, values, max_size=6) | st.booleans())
@settings(derandomize=True, deadline=None, max_examples=300)
def test_any_value_is_either_told_its_faults_or_made_plain(schema: Any) -> None:
    if not list(schema_errors(schema)):
        assert json.loads(plain_schema(schema))["anyOf"]
    else:
        with pytest.raises(AssertionError):
            plain_schema(schema)
