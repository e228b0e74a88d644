"""Each part of JSON schema is enforced, refused, narrower or loose: one row each, judged by the package `jsonschema`.

docs/sampling.md says the same to users. No text that a schema lets through may break it, but for the rows of LOOSE; a
valid text may be out of reach only in the ways of NARROW.
"""

import json
import random
import re
import time
from typing import Any

import jsonschema
import jsonschema_rs
import pytest

from tests.constraints.json_texts import Refusal, Texts, is_valid, texts, unchecked
from tests.random_schemas import random_schema
from worker.constraints.schema_gaps import MAX_EXACT, gap, plain, readable

N_WALKS = 8


def enforced(schema: Any) -> Texts:
    found = texts(schema)
    assert isinstance(found, Texts), found.message
    return found


def integer(**bounds: Any) -> dict[str, Any]:
    return {"type": "integer", **bounds}


def number(**bounds: Any) -> dict[str, Any]:
    return {"type": "number", **bounds}


def string(**limits: Any) -> dict[str, Any]:
    return {"type": "string", **limits}


def array(**limits: Any) -> dict[str, Any]:
    return {"type": "array", **limits}


def record(**limits: Any) -> dict[str, Any]:
    return {"type": "object", **limits}


CAT = record(properties={"kind": {"const": "cat"}, "name": string()}, required=["kind"])
DOG = record(properties={"kind": {"const": "dog"}, "friend": {"$ref": "#/$defs/cat"}}, required=["kind"])
TREE = record(properties={"in": array(items={"$ref": "#"})}, required=["in"], additionalProperties=False)

ENFORCED: dict[str, tuple[Any, list[str], list[str]]] = {
    "nothing": ({}, ["null", "true", "-1.5e+7", '"a"', '[1, "b"]', '{"a": {"b": []}}'], []),
    "annotations": (
        {
            "title": "t",
            "default": 1,
            "examples": [2],
            "deprecated": True,
            "$comment": "c",
            "x-y": 1,
            "foo": {},
            "type": "null",
        },
        ["null"],
        ["1"],
    ),
    "types": ({"type": ["string", "null"]}, ["null", '"a"'], ["1", "true", "[]", "{}"]),
    "enum": (
        {"enum": ['say "a\\b"', "é🎈", 1, None, [1, {"a": "x"}]]},
        ['"é🎈"', "1", "null", '[1, {"a": "x"}]'],
        ['"a"', "2", "[1]"],
    ),
    "enum-and-type": ({"enum": ["a", 1, None], "type": "string"}, ['"a"'], ["1", "null"]),
    "enum-and-more": ({"enum": ["a", "abc", 1, 7], "maxLength": 2, "maximum": 5}, ['"a"', "1"], ['"abc"', "7"]),
    "const": ({"const": {"a": [1.5, True]}}, ['{"a": [1.5, true]}'], ['{"a": [1.5]}', "{}"]),
    "anyOf": ({"anyOf": [integer(), string(maxLength=1)]}, ["1", '"a"'], ['"ab"', "null"]),
    "anyOf-and-more": (integer(anyOf=[{"minimum": 5}, {"multipleOf": 2}]), ["7", "4"], ["3", '"a"']),
    "allOf": (
        {"allOf": [string(minLength=2), {"maxLength": 3}, {"pattern": "^a"}]},
        ['"ab"', '"abc"'],
        ['"a"', '"abcd"', '"bb"'],
    ),
    "allOf-of-objects": (
        {
            "allOf": [
                record(properties={"a": integer()}, required=["a"]),
                {"properties": {"b": string()}, "required": ["b"]},
            ]
        },
        ['{"a": 1, "b": "x"}'],
        ['{"a": 1}', '{"b": "x"}', '{"a": "x", "b": "x"}'],
    ),
    "oneOf-of-types": ({"oneOf": [integer(), string(), {"type": "null"}]}, ["1", '"a"', "null"], ["1.5", "[]"]),
    "oneOf-of-constants": ({"oneOf": [{"const": "a", "title": "A"}, {"const": "b"}]}, ['"a"', '"b"'], ['"c"']),
    "oneOf-by-a-property": (
        {"oneOf": [CAT, DOG], "$defs": {"cat": CAT}},
        ['{"kind": "cat"}'],
        ['{"kind": "cow"}', "{}"],
    ),
    "oneOf-of-references": (
        {"oneOf": [{"$ref": "#/$defs/cat"}, {"$ref": "#/$defs/dog"}], "$defs": {"cat": CAT, "dog": DOG}},
        ['{"kind": "cat", "name": "x"}', '{"kind": "dog", "friend": {"kind": "cat"}}'],
        ['{"kind": "dog", "friend": {"kind": "dog"}}', '{"kind": "cow"}'],
    ),
    "reference": ({"$ref": "#/$defs/a~1b%25", "$defs": {"a/b%": {"type": "null"}}}, ["null"], ["1"]),
    "reference-and-more": ({"$ref": "#/$defs/a", "maxLength": 1, "$defs": {"a": string()}}, ['"a"'], ['"ab"', "1"]),
    "reference-by-anchor": ({"$ref": "#x", "$defs": {"a": {"$anchor": "x", "type": "null"}}}, ["null"], ["1"]),
    "reference-by-id": (
        {"$id": "https://example.org/a", "$ref": "b", "$defs": {"b": {"$id": "b", "type": "null"}}},
        ["null"],
        ["1"],
    ),
    "reference-to-itself": (
        TREE,
        ['{"in": []}', '{"in": [{"in": [{"in": []}]}]}'],
        ["{}", '{"in": [{}]}', '{"in": [1]}'],
    ),
    "definitions": ({"definitions": {"a": {"type": "null"}}, "$ref": "#/definitions/a"}, ["null"], ["1"]),
    "integer": (integer(), ["0", "-0", "-7", str(10**30)], ["1.5", "true"]),
    "integer-from": (integer(minimum=-5), ["-5", "0", "1000"], ["-6", "-5.5"]),
    "integer-above": (integer(exclusiveMinimum=9, exclusiveMaximum=1000), ["10", "999"], ["9", "1000", "-10"]),
    "integer-between-fractions": (integer(minimum=0.5, maximum=99.9), ["1", "99"], ["0", "100"]),
    "integer-of-64-bits": (integer(minimum=0, maximum=2**63 - 1), ["0", str(2**63 - 1)], ["-1", str(2**63)]),
    "number": (number(), ["0.50", "-1e9", "2E+3", "-0.0"], ['"1"', "null"]),
    "number-between": (number(minimum=-0.5, exclusiveMaximum=1), ["-0.5", "0", "0.999"], ["-0.51", "1", "1.0"]),
    "number-above": (number(exclusiveMinimum=0), ["0.001", "12.5"], ["0", "0.0", "-1"]),
    "number-up-to": (number(maximum=-10), ["-10", "-10.01", "-2000"], ["-9.99", "0", "10"]),
    "multipleOf": (integer(multipleOf=7, minimum=10), ["14", "21"], ["7", "15"]),
    "multipleOf-several": ({"allOf": [integer(multipleOf=4), integer(multipleOf=6)]}, ["12", "-24", "0"], ["6", "4"]),
    "multipleOf-a-fraction": (number(multipleOf=0.25), ["0.25", "1.50", "-3"], ["0.3", "0.125"]),
    "bounds-of-draft-4": (
        {"$schema": "http://json-schema.org/draft-04/schema#", **number(minimum=0, exclusiveMinimum=True)},
        ["0.5", "1"],
        ["0", "0.0"],
    ),
    "string": (string(), ['""', r'"\"\\\b\f\n\r\t"', r'"\u00e9\uD83D\uDE00\u0000"', '"é🎈\u2028"'], ["1", "null"]),
    "lengths-in-characters": (
        string(minLength=2, maxLength=2),
        ['"🎈🎈"', r'"\n\u00e9"', r'"\ud83d\ude00a"'],
        ['"🎈"', '"abc"', r'"\ud83d\ude00"'],
    ),
    "pattern": (string(pattern="^[A-Z]{2}-[0-9]+$"), ['"AB-1"'], ['"AB-"', '"xAB-1"', '"AB-1x"']),
    "pattern-anywhere": (string(pattern="b"), ['"b"', '"abc"', r'"\nb"'], ['"a"', '""']),
    "pattern-half-anchored": (string(pattern="^a|b$"), ['"ax"', '"xb"'], ['"xa"', '"bx"']),
    "pattern-and-lengths": (
        string(pattern="^[a-z]*$", minLength=2, maxLength=3),
        ['"ab"', '"abc"'],
        ['"a"', '"abcd"', '"AB"'],
    ),
    "pattern-unicode": (string(pattern="^[α-ω]+.$"), ['"αβ🎈"'], ['"a"', '"α"']),
    "pattern-escapes": (string(pattern=r"^\/\.\-\u0041\x42\s$"), ['"/.-AB "'], ['"/x-AB "']),
    "pattern-of-digits": (string(pattern=r"^\d\w$"), ['"1a"', '"1_"'], ['"aa"', '"1-"']),
    "array": (array(items=integer(), minItems=1, maxItems=2), ["[1]", "[1, 2]"], ["[]", "[1, 2, 3]", '["a"]']),
    "array-of-anything": (array(minItems=1), ["[1]", '[{}, ["a"]]'], ["[]", "{}"]),
    "tuple": (
        array(prefixItems=[string(), integer()], items=False, minItems=1),
        ['["a"]', '["a", 1]'],
        ["[]", "[1]", '["a", 1, 2]'],
    ),
    "tuple-and-more": (array(prefixItems=[string()], items=integer()), ["[]", '["a", 1, 2]'], ["[1]", '["a", "b"]']),
    "tuple-of-draft-7": (
        {"$schema": "http://json-schema.org/draft-07/schema#", **array(items=[string()], additionalItems=integer())},
        ["[]", '["a", 1]'],
        ["[1]", '["a", "b"]'],
    ),
    "object": (
        record(properties={"a": integer(), "b": {}}, required=["a"], additionalProperties=False),
        ['{"a": 1}', '{"a": 1, "b": null}'],
        ["{}", '{"b": 1}', '{"a": "x"}', '{"a": 1, "c": 1}'],
    ),
    "additional-properties": (
        record(properties={"a": integer()}, additionalProperties=string()),
        ["{}", '{"a": 1}', '{"b": "x"}', '{"a": 1, "b": "x", "c": "y"}'],
        ['{"a": "x"}', '{"b": 1}', '{"b": "x", "a": "y"}'],
    ),
    "any-additional-properties": (
        record(properties={"a": integer()}),
        ['{"a": 1, "b": [2]}', '{"b": 2}'],
        ['{"a": "x"}'],
    ),
    "required-of-the-additional": (
        record(required=["a"], additionalProperties=integer()),
        ['{"a": 1, "b": 2}'],
        ["{}", '{"b": 1}', '{"a": "x"}'],
    ),
    "patternProperties": (
        record(patternProperties={"^x": integer(), "^y": string()}, additionalProperties=False),
        ['{"x1": 1, "y": "a"}', '{"y": "a", "x": 1}'],
        ['{"x": "a"}', '{"z": 1}'],
    ),
    "patternProperties-and-properties": (
        record(properties={"xa": {"type": ["integer", "string"]}}, patternProperties={"^x": integer()}),
        ['{"xa": 1}', '{"z": "a"}'],
        ['{"xa": "a"}', '{"xb": "a"}'],
    ),
    "names-are-escaped": (
        record(properties={'a"\n/': {}}, required=['a"\n/'], additionalProperties=False),
        [r'{"a\"\n/": 1}'],
        ["{}"],
    ),
    "names-that-are-keywords": (
        record(properties={"$ref": {"type": "null"}, "uniqueItems": False}),
        ['{"$ref": null}'],
        ['{"$ref": 1}', '{"uniqueItems": 1}'],
    ),
    "items-need-not-differ": (array(uniqueItems=False), ["[1, 1]"], ["1"]),
    "number-of-properties": (
        record(minProperties=1, maxProperties=2),
        ['{"a": 1}', '{"a": 1, "b": 2}'],
        ["{}", '{"a": 1, "b": 2, "c": 3}'],
    ),
    "one-of-the-properties": (
        record(properties={"a": {}, "b": {}}, minProperties=1, additionalProperties=False),
        ['{"a": 1}', '{"b": 1}', '{"a": 1, "b": 2}'],
        ["{}"],
    ),
}
"""A schema, texts of it and texts that break it."""

UNENFORCED: dict[str, Any] = {
    "not": {},
    "if": {"type": "null"},
    "dependentRequired": {"a": ["b"]},
    "dependentSchemas": {"a": False},
    "dependencies": {"a": ["b"]},
    "propertyNames": {"maxLength": 2},
    "contains": {},
    "uniqueItems": True,
    "unevaluatedItems": False,
    "unevaluatedProperties": {"type": "null"},
    "$dynamicRef": "#a",
    "$recursiveRef": "#",
}
TOGETHER: dict[str, tuple[str, Any]] = {
    "then": ("if", {"minimum": 1}),
    "else": ("if", False),
    "minContains": ("contains", 2),
    "maxContains": ("contains", 2),
    "$dynamicAnchor": ("$dynamicRef", "a"),
    "$recursiveAnchor": ("$recursiveRef", True),
}
"""A keyword that says something beside another one only, and its value."""
LONG = "n" * 500
REFUSED: dict[str, tuple[Any, str]] = {
    **{
        keyword: (
            {"properties": {"a": {keyword: value, **({"else": False} if keyword == "if" else {})}}},
            "cannot be enforced (at #/properties/a)",
        )
        for keyword, value in UNENFORCED.items()
    },
    **{
        keyword: ({"items": {keyword: value, other: UNENFORCED[other]}}, f'"{keyword}"')
        for keyword, (other, value) in TOGETHER.items()
    },
    "format": (array(items=string(format="iri")), 'this "format" is not supported (at #/items)'),
    "oneOf-overlapping": ({"oneOf": [integer(), number()]}, '"oneOf" is supported only where'),
    "oneOf-unknown": ({"oneOf": [string(maxLength=2), string(minLength=3)]}, '"oneOf" is supported only where'),
    "remote-reference": ({"$ref": "https://example.org/x"}, '"$ref" or "$schema" names another document'),
    "file-reference": ({"$ref": "file:///etc/hostname"}, '"$ref" or "$schema" names another document'),
    "dangling-reference": ({"$ref": "#/$defs/x"}, '"$ref" or "$id" cannot be resolved'),
    "reference-to-itself-and-more": ({"$ref": "#", "maxLength": 1}, '"$ref" that leads back to itself'),
    "look-ahead": (
        string(pattern="^(?!a)"),
        "look-around, including look-ahead and look-behind, is not supported (at #)",
    ),
    "back-reference": ({"items": string(pattern=r"(a)\1")}, "backreferences are not supported (at #/items)"),
    "word-boundary": (string(pattern=r"\bfoo"), "an anchor or a word boundary"),
    "inner-anchor": (string(pattern="a^b"), "an anchor or a word boundary"),
    "pattern": (string(pattern="("), "a pattern cannot be read: unclosed group"),
    "patterns-of-names": (record(patternProperties={"^x": {}, "y$": {}}), 'two of the "patternProperties"'),
    "optional-properties-counted": (
        record(properties={"a": {}, "b": {}}, maxProperties=1),
        '"minProperties" and "maxProperties"',
    ),
    "large-bound": (number(minimum=1e30), "a bound of a number is too large"),
    "multipleOf": (number(multipleOf=0), '"multipleOf" must be above 0'),
    "multipleOf-digits": (number(multipleOf=0.07), '"multipleOf" must be above 0 and of at most nine digits'),
    "multipleOf-power": (integer(multipleOf=2**24), '"multipleOf" has too large a number'),
    "multipleOf-zeros": (integer(multipleOf=199_970_000), '"multipleOf" has too large a number'),
    "multipleOf-remainders": (integer(multipleOf=1_000_003), '"multipleOf" has too large a number'),
    "type": ({"type": "any"}, '"type" names no type of JSON'),
    "length": (string(minLength=-1), '"minLength" has a value of the wrong kind'),
    "enum": ({"enum": 5}, '"enum" has a value of the wrong kind'),
    "no-schema": (7, "must be a JSON object"),
    "false": (False, "must be a JSON object"),
    "required-as-a-truth": (record(properties={"a": integer(required=True)}), '"required" must be a list'),
    "unsatisfiable-types": ({"allOf": [string(), integer()]}, "no JSON satisfies it"),
    "unsatisfiable-lengths": (string(minLength=3, maxLength=2), "no JSON satisfies"),
    "unsatisfiable-pattern": (string(pattern="^a$", minLength=2), 'no text matches a "pattern"'),
    "unsatisfiable-property": (record(required=["a"], additionalProperties=False), "no JSON satisfies it"),
    "long-place": ({"properties": {LONG: {"not": {}}}}, f"(at #/properties/{LONG[:85]}"),
}
"""A schema, and what its refusal says."""

GAPS: dict[str, tuple[Any, str]] = {
    "prefixItems-and-a-list-of-items": (array(prefixItems=[string()], items=[integer()]), "[1]"),
    "exact-integer": ({"const": MAX_EXACT + 1}, str(MAX_EXACT)),
    "exact-integer-in-enum": ({"enum": [[2**64 - 1]]}, f"[{18446744073709552000}]"),
    "exact-minimum": (integer(minimum=MAX_EXACT + 1), str(MAX_EXACT)),
    "common-multiple": ({"allOf": [integer(multipleOf=196_608), integer(multipleOf=14_336_000)]}, "65536"),
    "counted-twice": (record(minProperties=2), '{"a": 1, "a": 2}'),
    "counted-twice-beyond-the-required": (record(required=["a"], minProperties=3), '{"a": 1, "b": 2, "b": 2}'),
    "control-character": (record(properties={"a": {"const": "x\x01y"}}, required=["a"]), '{"a": "xy"}'),
    "control-character-of-a-pattern": (record(properties={"a": string(pattern=r"^x\x01y$")}), '{"a": "xy"}'),
    "control-characters-of-a-set": (record(properties={"a": string(pattern=r"^x[\x01]y$")}), '{"a": "xy"}'),
    "set-intersection": (string(pattern="^[a-z&&[^b]]$"), '"a"'),
    "set-in-a-set": (string(pattern="^[[:alpha:]]$"), '"a"'),
    "bound-of-draft-4-alone": (number(exclusiveMinimum=True), "1"),
}
"""The keywords that the library takes and does not enforce, with a text that shows it."""

NARROW: dict[str, tuple[Any, str]] = {
    "order-of-properties": (record(properties={"a": {}, "b": {}}), '{"b": 1, "a": 2}'),
    "additional-properties-come-last": (record(properties={"a": {}}), '{"b": 1, "a": 2}'),
    "order-in-a-constant": ({"const": {"a": 1, "b": 2}}, '{"b": 2, "a": 1}'),
    "integer-with-a-fraction": (integer(), "1.0"),
    "integer-with-an-exponent": (integer(), "1e2"),
    "constant-with-a-fraction": ({"const": 1}, "1.0"),
    "exponent-within-bounds": (number(minimum=0), "1e2"),
    "exponent-of-a-multiple": (number(multipleOf=2), "1e2"),
    "escaped-slash": (string(), r'"\/"'),
    "escaped-letter-of-a-pattern": (string(pattern="a"), r'"\u0061"'),
    "escaped-letter-beside-free-names": (record(properties={"a": string()}), r'{"a": "\u0061"}'),
    "control-character-beside-free-names": (record(properties={"a": string()}), r'{"a": "\u0001"}'),
    "lone-surrogate": (string(), r'"\ud800"'),
    "no-space": (array(), "[1,2]"),
    "line-break": (array(), "[\n1]"),
    "space-around": ({}, " 1"),
    "siblings-of-a-reference-in-draft-7": (
        {
            "$schema": "http://json-schema.org/draft-07/schema#",
            "$ref": "#/definitions/a",
            "definitions": {"a": string()},
            "maxLength": 1,
        },
        '"ab"',
    ),
    "quoted-email": (string(format="email"), r'"\"joe bloggs\"@example.com"'),
    "ipv4-in-ipv6": (string(format="ipv6"), '"::ffff:192.168.0.1"'),
}
"""A valid text that does not come up."""

FORMATS = ["date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"]
LOOSE: dict[str, tuple[str, str]] = {
    "leap-day": ("date", "2023-02-29"),
    "leap-day-with-time": ("date-time", "2023-02-29T00:00:00Z"),
    "leap-second": ("time", "12:00:60Z"),
    "leap-second-with-date": ("date-time", "2024-01-01T12:00:60Z"),
    "long-name": ("email", f"{'a' * 65}@example.org"),
    "long-host": ("hostname", ".".join(["a" * 60] * 5)),
    "host-that-looks-like-punycode": ("hostname", "ab--cd.org"),
}
"""A format, and a text that is let through though the format rules it out."""

NEVER = re.compile(r"$.")
KNOWN = {
    "date": re.compile("-02-29"),
    "date-time": re.compile("-02-29|:60"),
    "time": re.compile(":60"),
    "email": re.compile(r"^.{65,}@|@(?!\[)"),
    "hostname": re.compile(r"--|^.{254,}$"),
}
"""The patterns of the texts of which LOOSE has one each."""


@pytest.mark.parametrize("row", ENFORCED)
def test_a_schema_lets_its_texts_through_and_no_others(row: str) -> None:
    schema, good, bad = ENFORCED[row]
    assert [text for text in good + bad if is_valid(schema, json.loads(text)) != (text in good)] == []
    found = enforced(schema)
    assert [text for text in good + bad if found.have(text) != (text in good)] == []


@pytest.mark.long
@pytest.mark.parametrize("row", ENFORCED)
def test_whatever_comes_up_satisfies_the_schema(row: str) -> None:
    schema, _, _ = ENFORCED[row]
    found = enforced(schema)
    ended = [text for seed in range(N_WALKS) if (text := found.any(random.Random(seed))) is not None]
    assert [text for text in ended if not is_valid(schema, json.loads(text))] == []
    assert ended


@pytest.mark.parametrize(
    "text", ["", "a", "01", "+1", ".5", "1.", "NaN", '"', '"\n"', '"\x7f"', r'"\x"', "[1, ]", '{"a"}', "nul", "// c\n1"]
)
def test_what_is_not_json_never_comes_up(text: str) -> None:
    assert not enforced({}).have(text)


@pytest.mark.long
def test_random_schemas_are_satisfied_whatever_way_a_text_goes() -> None:
    """Random ways take the turns that models seldom do: escapes, every optional part, odd characters."""
    n_ended = 0
    for seed in range(100):
        schema = random_schema(seed)
        text = enforced(schema).any(random.Random(seed))
        if text is not None:
            n_ended += 1
            jsonschema.validate(json.loads(text), schema, jsonschema.Draft202012Validator)
    assert n_ended > 90


def test_a_name_has_one_spelling_where_others_are_free() -> None:
    r"""Or "\u0061" would be a name besides "a", with any value, and the reader's "a"."""
    schema = record(properties={"a": integer()})
    assert not enforced(schema).have(r'{"a": 1, "\u0061": "x"}')
    assert not enforced(record(patternProperties={"^a": integer()})).have(r'{"\u0061": "x"}')
    assert enforced(record()).have(r'{"\u0061": "x"}')


@pytest.mark.parametrize("row", REFUSED)
def test_what_cannot_be_enforced_is_refused_in_words_that_name_it(row: str) -> None:
    schema, words = REFUSED[row]
    found = texts(schema)
    assert isinstance(found, Refusal)
    assert words in found.message
    assert len(found.message) < 250


@pytest.mark.filterwarnings("ignore:Possible:FutureWarning")
@pytest.mark.parametrize("row", GAPS)
def test_what_the_library_does_not_enforce_is_refused_before_it(row: str) -> None:
    """A gap is closed if the library refuses a row or turns its text down. Then its check can go."""
    schema, text = GAPS[row]
    found = unchecked(schema)
    assert isinstance(found, Texts)
    assert found.have(text)
    assert not is_valid(schema, json.loads(text))
    assert gap(schema) is not None
    assert isinstance(texts(schema), Refusal)


SELF = {"$ref": "#"}
INSIDE = {"$ref": "#/$defs/a~1b%20c"}
CHILD = record(properties={"child": SELF}, required=["child"])
ENDLESS: dict[str, Any] = {
    "itself": SELF,
    "itself-and-more": {"allOf": [string(), SELF]},
    "the-only-choice": {"anyOf": [{"oneOf": [SELF]}]},
    "a-property": CHILD,
    "a-property-behind-a-choice": record(properties={"n": integer(), "child": SELF}, required=["n", "child"]),
    "an-item": array(items=SELF, minItems=1),
    "an-item-of-many": array(prefixItems=[integer(), SELF], minItems=2),
    "an-item-behind-others": array(prefixItems=[integer()], items=SELF, minItems=2),
    "two-that-need-each-other": {
        "$defs": {"a/b c": array(items=SELF, minItems=1)},
        **record(properties={"list": INSIDE}, required=["list"]),
    },
    "a-property-that-may-be-left-out": {"$defs": {"a": CHILD | {"properties": {"child": {"$ref": "#/$defs/a"}}}}}
    | record(properties={"x": {"$ref": "#/$defs/a"}}, required=[]),
}
ENDING: dict[str, Any] = {
    "not-required": record(properties={"child": SELF}, required=[]),
    "a-choice": record(properties={"child": {"anyOf": [SELF, {"type": "null"}]}}, required=["child"]),
    "no-item": array(items=SELF),
    "no-item-of-these": array(prefixItems=[integer(), SELF], items=False, minItems=1),
    "twice-the-same": {
        "$defs": {"a/b c": integer()},
        **record(properties={"one": INSIDE, "two": INSIDE}, required=["one", "two"]),
    },
}


@pytest.mark.parametrize("row", ENDLESS)
def test_what_never_ends_is_refused_before_it_begins(row: str) -> None:
    found = texts(ENDLESS[row])
    assert isinstance(found, Refusal)
    assert found.message.endswith("leads back to itself is required, so that nothing can satisfy it")


@pytest.mark.parametrize("row", ENDING)
def test_what_can_end_is_enforced_however_deep_it_may_go(row: str) -> None:
    enforced(ENDING[row])


@pytest.mark.parametrize("n", [1, 20_000])
def test_a_circle_is_found_however_long_it_is(n: int) -> None:
    defs = {f"d{i}": {"$ref": f"#/$defs/d{(i + 1) % n}"} for i in range(n)}
    assert "leads back" in (gap({"$defs": defs}) or "")
    assert gap({"$defs": defs | {f"d{n - 1}": {}}}) is None


def test_words_of_the_library_alone_are_refused() -> None:
    """Its own format, which every text has, and its options, which a schema might change."""
    for schema in (string(format="unknown"), {"x-guidance": {"whitespace_pattern": "[x]+"}}):
        assert isinstance(unchecked(schema), Texts)
        assert isinstance(texts(schema), Refusal)


@pytest.mark.parametrize(
    "schema",
    [
        integer(maximum=2**64 - 1, minimum=0),
        number(multipleOf=0.01, maximum=1e6, minimum=-1e6),
        {"anyOf": [number(multipleOf=multiple) for multiple in (1, 0.5, 0.01, 5)]},
        {
            "items": integer(multipleOf=3600),
            "contentMediaType": "x",
            "properties": {"a": integer(multipleOf=1000)},
        },
        string(pattern=r"^[^\x00-\x1f\x7f]+$"),
        record(properties={"a": string(pattern=r"^[\w.+-]+[^\x00]\[x\]\\[a]$")}),
        record(properties={"a": {}, "b": {}}, required=["a", "b"], minProperties=3),
        record(properties={"unknown": {"title": "x-guidance"}}, required=[]),
        {"$defs": {"unused": {"not": {}}}},
    ],
)
def test_a_check_turns_down_nothing_that_is_enforced(schema: Any) -> None:
    enforced(schema)


@pytest.mark.parametrize("schema", [{"a": 1}, "sesame", ["sesame"], {"const": "sesame"}, None, 1e400, {"enum": [{}]}])
@pytest.mark.parametrize(
    "keyword",
    [
        "type",
        "enum",
        "minimum",
        "multipleOf",
        "minLength",
        "pattern",
        "format",
        "required",
        "properties",
        "items",
        "$ref",
        "oneOf",
        "$id",
        "$schema",
    ],
)
def test_a_value_of_the_wrong_kind_is_no_failure_and_is_not_quoted(keyword: str, schema: Any) -> None:
    for whole in ({keyword: schema}, {"properties": {"a": {keyword: schema}}}):
        if isinstance(found := texts(whole), Refusal):
            assert "sesame" not in found.message


@pytest.mark.parametrize(
    "error", ["", "something new: sesame", "Unknown format: sesame", 'Unsatisfiable schema: Constant "sesame"']
)
def test_an_error_of_the_library_is_never_passed_on(error: str) -> None:
    message = plain(error, {"const": "sesame"})
    assert message
    assert "sesame" not in message


@pytest.mark.long
@pytest.mark.parametrize(
    "schema",
    [
        string(pattern="[" * 60_000),
        string(pattern="Expected regex parse error (" * 2000),
        {"properties": {"n" * 30_000: {"anyOf": [{}] * 8000}}},
        {"anyOf": [integer(multipleOf=multiple) for multiple in range(1, 2000)]},
        {"anyOf": [number(multipleOf=10.0**exponent) for exponent in range(-300, 300)]},
        record(properties={f"p{i}": {"oneOf": [{"$ref": "#"}]} for i in range(1500)}),
    ],
    ids=["sets", "words", "places", "multiples", "exponents", "branches"],
)
def test_a_check_takes_no_longer_for_a_hostile_schema(schema: Any) -> None:
    """Within a second, of some 64 KiB; the least of three, as another process may hold one up."""

    def check_s() -> float:
        began_s = time.process_time()
        gap(schema)
        plain(json.dumps(schema), schema)
        readable(schema)
        return time.process_time() - began_s

    assert min(check_s() for _ in range(3)) < 1


@pytest.mark.parametrize("row", NARROW)
def test_a_valid_text_that_does_not_come_up(row: str) -> None:
    schema, text = NARROW[row]
    assert is_valid(schema, json.loads(text))
    assert not enforced(schema).have(text)


@pytest.mark.parametrize("row", LOOSE)
def test_a_text_that_comes_up_though_its_format_rules_it_out(row: str) -> None:
    format_, text = LOOSE[row]
    assert not keeps(format_, text)
    assert enforced(string(format=format_)).have(json.dumps(text))


def keeps(format_: str, text: str) -> bool:
    return bool(jsonschema_rs.Draft202012Validator({"format": format_}, validate_formats=True).is_valid(text))


@pytest.mark.long
@pytest.mark.parametrize("format_", FORMATS)
def test_a_format_is_kept_but_for_what_is_known(format_: str) -> None:
    found = enforced(string(format=format_))
    came_up = [json.loads(text) for seed in range(60) if (text := found.any(random.Random(seed))) is not None]
    broken = [text for text in came_up if not keeps(format_, text)]
    assert len(came_up) > 10
    assert [text for text in broken if not KNOWN.get(format_, NEVER).search(text)] == []


def test_no_format_speaks_of_numbers() -> None:
    """OpenAPI's int32 and double are notes there, as JSON schema has it."""
    assert enforced(integer(format="int32")).have(str(2**40))
