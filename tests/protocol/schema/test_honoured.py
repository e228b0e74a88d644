"""What the door lets through is honoured: every text of the grammar that the engine makes of it is JSON that the
original schema allows, told by jsonschema.
"""

import json
import random
import string
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tests.protocol.schema.grammar_texts import GrammarTexts
from worker.llama.schema import gbnf_of
from worker.protocol.json_schema import plain_schema, schema_errors

Schema = dict[str, Any] | bool
N_TEXTS = 4


def check_texts(schema: Schema, chance: random.Random, n_texts: int = N_TEXTS) -> list[Any]:
    """Draw texts, hold each against the schema, and give what they mean."""
    assert list(schema_errors(schema)) == []
    texts = GrammarTexts(gbnf_of(plain_schema(schema)))
    values = [json.loads(texts.draw(chance)) for _ in range(n_texts)]
    validator = jsonschema.Draft202012Validator(schema)
    for value in values:
        validator.validate(value)
    return values


# ── shapes one by one ────────────────────────────────────────────────────────────────────────────

NODE = {"type": "object", "properties": {"next": {"$ref": "#/$defs/my_node"}, "a": {"type": "null"}}, "required": ["a"]}
SHAPES: dict[str, Schema] = {
    "anything": {},
    "true": True,
    "only-annotations": {"title": "T", "description": "D", "default": 1, "examples": [{"$ref": 1}], "$comment": "c"},
    "types": {"type": ["string", "null", "integer"], "maxLength": 2},
    "no-type": {"properties": {"a": {"type": "integer"}}},
    "keywords-of-another-type": {"type": "integer", "minLength": 3, "minItems": 9, "required": ["x"]},
    "enum-with-types": {"type": ["string", "null"], "enum": ["a", None, "é世"]},
    "const": {"const": {"a": [1, 2.5, "x", True, None]}},
    "values-to-escape": {"enum": ['"', "\\", "a\n\t\0\x7f", "👋🌍", {'k"\\': ["\u2028"]}]},
    "names-to-escape": {"properties": {'"': {"const": 1}, "\\": {"const": 2}, "\n👋": {"const": '"'}}},
    "integer-is-a-whole-float": {"type": "integer", "enum": [1.0, 2]},
    "integers-between": {"type": "integer", "minimum": -1.5, "exclusiveMaximum": 4},
    "bounds-twice": {"type": "integer", "minimum": 1, "exclusiveMinimum": 3, "maximum": 9, "exclusiveMaximum": 5},
    "lengths": {"type": "string", "minLength": 2, "maxLength": 4},
    "empty-text": {"type": "string", "maxLength": 0},
    "length-as-a-float": {"type": "string", "minLength": 2.0, "maxLength": 2.0},
    "date": {"type": "string", "format": "date"},
    "date-time": {"type": "string", "format": "date-time"},
    "uuid": {"type": "string", "format": "uuid"},
    "items": {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 3},
    "no-items": {"type": "array", "items": True, "maxItems": 0},
    "lengths-of-any-items": {"type": "array", "minItems": 2, "uniqueItems": False},
    "tuple": {"type": "array", "prefixItems": [{"type": "string"}, {"const": 1}], "items": False, "minItems": 2},
    "any-object": {"type": "object"},
    "empty-object": {"type": "object", "additionalProperties": False},
    "map": {"type": "object", "additionalProperties": {"type": "integer"}},
    "all-optional": {"properties": {"a": {"const": 1}, "b": {"const": 2}, "c": {"const": 3}}},
    "closed": {"properties": {"a": {"const": 1}}, "required": ["a"], "additionalProperties": False},
    "open": {"properties": {"a": {"const": 1}}, "additionalProperties": True},
    "odd-names": {
        "properties": {"a b": {"const": 1}, "a_b": {"const": 2}, "世": {"const": 3}, "a/b~c": {"type": "null"}}
    },
    "one-of-types": {"oneOf": [{"type": "integer"}, {"type": ["string", "null"]}]},
    "all-of-one": {"allOf": [{"$ref": "#/$defs/d"}], "title": "T", "$defs": {"d": {"type": "boolean"}}},
    "top-reference": {"$ref": "#/$defs/my_node", "$defs": {"my_node": NODE}},
    "recursion-to-the-top": {"type": "object", "properties": {"more": {"type": "array", "items": {"$ref": "#"}}}},
    "reference-to-a-part": {"properties": {"a/b": {"type": "integer"}, "c": {"$ref": "#/properties/a~1b"}}},
    "reference-with-percent": {"$ref": "#/$defs/a%20b", "$defs": {"a b": {"type": "null"}}},
    "reference-into-an-array": {"anyOf": [{"type": "integer"}, {"type": "array", "items": {"$ref": "#/anyOf/0"}}]},
    # The converter itself would take each of these names for something else.
    "definition-named-as-a-property": {
        "properties": {"name": {"type": "integer"}, "b": {"$ref": "#/$defs/name"}},
        "required": ["name", "b"],
        "$defs": {"name": {"type": "string", "maxLength": 3}},
    },
    "definitions-of-one-name": {
        "properties": {"a": {"$ref": "#/$defs/p/properties/x"}, "b": {"$ref": "#/$defs/q/properties/x"}},
        "required": ["a", "b"],
        "$defs": {"p": {"properties": {"x": {"const": 1}}}, "q": {"properties": {"x": {"const": 2}}}},
    },
    "definition-named-as-a-type": {"$ref": "#/$defs/string", "$defs": {"string": {"const": 1}}},
    "property-named-as-a-rule": {
        "properties": {"date_time": {"type": "integer"}, "at": {"type": "string", "format": "date-time"}},
        "required": ["date_time", "at"],
    },
    "properties-named-as-rules": {
        "properties": {name: {"const": i} for i, name in enumerate(["root", "space", "value", "char", "string"])},
    },
}


@pytest.mark.parametrize("name", SHAPES)
def test_texts_of_the_grammar_validate(name: str) -> None:
    check_texts(SHAPES[name], random.Random(name), n_texts=30)


PATTERNS = [
    "^$",
    "^abc$",
    "^a|bc|$",
    "^(a|b)+(?:c|d)?$",
    r"^\d{4}-\d{2}$",
    r"^[A-Z]{2,3}x{0}y{1,}$",
    r"^[a-z0-9._%+-]+@[a-z0-9-]+\.[a-z]{2,}$",
    r"^[^a-y\s]*\S\w\s$",
    r"^.{3}$",
    r"^[ -~]{5}[\]\-\\a]$",
    r"^\x41\u0042[\u0043-\x45é世]$",
    r"^(((a)b){2}c){1,2}$",
    r"^#<>[-a][a-]\/\$\^\*$",
]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_texts_of_a_pattern_match_it(pattern: str) -> None:
    check_texts({"type": "string", "pattern": pattern}, random.Random(pattern), n_texts=50)


def test_required_properties_come_first_and_all_in_the_order_of_the_text() -> None:
    schema = {"properties": {name: {"const": 1} for name in "zaybx"}, "required": ["x", "z"]}
    for value in check_texts(schema, random.Random(0), n_texts=30):
        assert list(value) == [name for name in "zxayb" if name in value]


# ── any schema ───────────────────────────────────────────────────────────────────────────────────

names = st.text(string.ascii_lowercase + "_ é", min_size=1, max_size=3) | st.sampled_from(["date_time", "root", "kv"])
scalars = st.none() | st.booleans() | st.integers(-9, 9) | st.floats(-9, 9) | st.text("ab é", max_size=3)
limits = st.integers(0, 4)
leaves: st.SearchStrategy[Schema] = st.one_of(
    st.sampled_from([{}, True, {"title": "x"}, {"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}, {"$ref": "#"}]),
    st.fixed_dictionaries({"type": st.sampled_from(["string", "number", "integer", "boolean", "null", "object"])}),
    st.fixed_dictionaries({"type": st.just("string")}, optional={"minLength": limits, "maxLength": limits}),
    st.fixed_dictionaries({"type": st.just("integer"), "minimum": limits, "maximum": limits}),
    st.fixed_dictionaries(
        {"type": st.just("string"), "format": st.sampled_from(["date", "time", "date-time", "uuid"])}
    ),
    st.fixed_dictionaries({"type": st.just("string"), "pattern": st.sampled_from(PATTERNS)}),
    st.fixed_dictionaries({"enum": st.lists(scalars, min_size=1, max_size=4)}),
    st.fixed_dictionaries({"const": scalars}),
)


def composed(inner: st.SearchStrategy[Schema]) -> st.SearchStrategy[Schema]:
    properties = st.dictionaries(names, inner, max_size=4)
    return st.one_of(
        properties.flatmap(
            lambda declared: st.fixed_dictionaries(
                {"type": st.just("object"), "properties": st.just(declared)},
                optional={
                    "required": st.lists(st.sampled_from([*declared, "absent"]), unique=True, max_size=3),
                    "additionalProperties": st.booleans(),
                },
            )
        ),
        st.fixed_dictionaries({"type": st.just("object"), "additionalProperties": inner}),
        st.fixed_dictionaries(
            {"type": st.just("array"), "items": inner}, optional={"minItems": limits, "maxItems": limits}
        ),
        st.fixed_dictionaries({"type": st.just("array"), "prefixItems": st.lists(inner, min_size=1, max_size=3)}),
        st.fixed_dictionaries({"anyOf": st.lists(inner, min_size=1, max_size=3)}),
        st.fixed_dictionaries({"allOf": st.lists(inner, min_size=1, max_size=1)}),
        st.fixed_dictionaries({"oneOf": st.lists(inner, min_size=1, max_size=3)}),
    )


schemas = st.recursive(leaves, composed, max_leaves=6)


@given(schemas, schemas, schemas, st.integers(0, 2**32))
@settings(derandomize=True, deadline=None, max_examples=200, suppress_health_check=[HealthCheck.filter_too_much])
def test_whatever_is_let_through_is_honoured(top: Schema, a: Schema, b: Schema, seed: int) -> None:
    schema = (top if isinstance(top, dict) else {}) | {"$defs": {"a": a, "b": b}}
    assume(not list(schema_errors(schema)))
    check_texts(schema, random.Random(seed))
