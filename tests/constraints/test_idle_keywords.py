"""Keywords that say nothing are taken out, and no others: judged by `jsonschema`, and by the texts that come up."""

import json
import random
from collections.abc import Callable
from itertools import islice
from typing import Any

import pytest

from tests.constraints.json_texts import Refusal, Texts, is_valid, texts, unchecked
from tests.json_instances import broken, tries
from tests.random_schemas import random_schema
from worker.constraints.idle_keywords import ENFORCED_FORMATS, without_idle_keywords
from worker.constraints.schema_gaps import readable

DRAFT_7 = "http://json-schema.org/draft-07/schema#"
DRAFT_2019 = "https://json-schema.org/draft/2019-09/schema"
DRAFTS = [None, None, DRAFT_7, DRAFT_2019, "https://json-schema.org/draft/2020-12/schema"]
ANYTHING: list[Any] = [True, {}, {"title": "x"}, {"minLength": 0}, {"anyOf": [{"type": "null"}, {}]}]
NOTHING: list[Any] = [False, {"not": {}}, {"enum": []}, {"allOf": [{"type": "null"}, {"type": "string"}]}]
STRINGS: list[Any] = [*ANYTHING, {"type": "string"}, {"type": ["string", "null"]}, {"type": "string", "minItems": 2}]


def idle(rng: random.Random) -> list[dict[str, Any]]:
    """Keywords that say nothing whatever stands beside them, each dictionary of another subject."""
    return [
        {"propertyNames": rng.choice(STRINGS)},
        {"unevaluatedProperties": rng.choice(ANYTHING)},
        {"unevaluatedItems": rng.choice(ANYTHING)},
        {"dependentRequired": rng.choice([{}, {"a": []}, {"a": ["a"]}])},
        {"dependentSchemas": rng.choice([{}, {"name": rng.choice(ANYTHING)}])},
        {"dependencies": rng.choice([{}, {"name": []}, {"name": rng.choice(ANYTHING)}])},
        rng.choice(
            [
                {"then": {"type": "null"}, "else": False},
                {"if": {"required": ["name"]}},
                {"if": {"type": "string"}, "then": rng.choice(ANYTHING), "else": True},
                {"if": rng.choice(NOTHING), "then": False},
                {"if": rng.choice(ANYTHING), "else": {"type": "null"}},
            ]
        ),
        {"not": rng.choice(NOTHING)},
        rng.choice(
            [
                {"minContains": rng.randint(0, 3)},
                {"maxContains": rng.randint(0, 3)},
                {"minContains": 0, "contains": {"type": "null"}},
                {"minContains": 0, "maxContains": 0, "contains": rng.choice(NOTHING)},
            ]
        ),
        {"uniqueItems": False},
        {"additionalItems": rng.choice([*ANYTHING, False])},
        {"minProperties": 0},
        {"minItems": 0, "minLength": 0},
        {"$recursiveAnchor": True, "$dynamicAnchor": "here"},
    ]


def parts(schema: Any) -> list[dict[str, Any]]:
    """The schemas inside that may get a keyword more."""
    found, waiting = [], [schema]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            found.append(part)
            waiting += [*part.get("properties", {}).values(), *part.get("$defs", {}).values()]
            waiting += [part.get("items"), part.get("additionalProperties"), *part.get("anyOf", [])]
    return found


def sprinkled(schema: Any, rng: random.Random) -> Any:
    more: dict[str, Any] = json.loads(json.dumps(schema))
    for part in parts(more):
        for keywords in rng.sample(idle(rng), rng.randint(0, 3)):
            part.update({key: value for key, value in keywords.items() if key not in part})
    return more


@pytest.mark.parametrize("seed", range(60))
def test_a_schema_with_idle_keywords_has_the_texts_of_the_one_without(seed: int) -> None:
    rng = random.Random(seed)
    schema = random_schema(seed)
    more = sprinkled(schema, rng)
    plain, found = texts(schema), texts(more)
    assert isinstance(plain, Texts)
    assert isinstance(found, Texts), (found.message, more)
    values = list(islice(tries(schema, rng), 10))
    values += [broken(value, rng) for value in values]
    assert [value for value in values if is_valid(schema, value) != is_valid(more, value)] == []
    tried = [text for source in (plain, found) for _ in range(4) if (text := source.any(rng)) is not None]
    tried += [json.dumps(value, ensure_ascii=False) for value in values]
    assert [text for text in tried if plain.have(text) != found.have(text)] == []


# ── what is taken out says nothing ───────────────────────────────────────────────────────────────

LEAVES: list[Any] = [{"type": "string"}, {"type": "null"}, {"type": "integer"}, {"const": 1}, {"enum": ["a", []]}]


def any_schema(rng: random.Random, depth: int = 0) -> Any:
    if depth > 2 or rng.random() < 0.3:
        return rng.choice([*LEAVES, *ANYTHING, *NOTHING])
    made: dict[str, Any] = {}
    for _ in range(rng.randint(1, 4)):
        made.update(any_keyword(rng, depth))
    return made


def any_keyword(rng: random.Random, depth: int) -> dict[str, Any]:
    """One or two keywords, which may say something or not."""

    def schema() -> Any:
        return any_schema(rng, depth + 1)

    names = ["a", "b", "name"]
    n = rng.randint(0, 2)
    keywords: list[Callable[[], dict[str, Any]]] = [
        lambda: {"type": rng.choice(["string", "number", "array", "object", ["object", "null"], ["integer", "array"]])},
        lambda: {rng.choice(["propertyNames", "unevaluatedProperties", "unevaluatedItems", "not", "if"]): schema()},
        lambda: {rng.choice(["then", "else", "contains", "additionalProperties"]): schema()},
        lambda: {"dependentRequired": {rng.choice(names): rng.sample(names, n)}, "required": rng.sample(names, n)},
        lambda: {rng.choice(["dependentSchemas", "dependencies", "properties"]): {rng.choice(names): schema()}},
        lambda: {"dependencies": {rng.choice(names): rng.sample(names, n)}},
        lambda: {rng.choice(["minContains", "maxContains", "minItems", "maxItems"]): n},
        lambda: {rng.choice(["minProperties", "maxProperties", "minLength", "maximum"]): n},
        lambda: {"uniqueItems": rng.random() < 0.7, "maxItems": n},
        lambda: {"prefixItems": [schema()], "items": schema()},
        lambda: {rng.choice(["allOf", "anyOf", "oneOf"]): [schema(), schema()]},
        lambda: {"properties": {"a": schema(), "b": {}}, "additionalProperties": False},
        lambda: {"items": {"$ref": "#/$defs/a"}, "$defs": {"a": schema()}},
        lambda: {"const": rng.choice([1, "a", None, [1], {"a": 1}])},
    ]
    return rng.choice(keywords)()


INSTANCES: list[Any] = [
    *(None, True, 0, 1, -1.5, "", "a", "name", [], [1], ["a"], [1, 1], ["a", None, 1], [[], {}]),
    *({}, {"a": 1}, {"a": "a"}, {"b": None}, {"name": "a", "a": []}, {"a": 1, "b": 1, "name": 1}, {"odd": {"a": 1}}),
]


def test_taking_out_changes_no_verdict_of_any_draft() -> None:
    n_changed = 0
    for seed in range(3000):
        rng = random.Random(seed)
        schema: Any = {"$defs": {"a": True}, **any_keyword(rng, 0), **any_keyword(rng, 0), **any_keyword(rng, 0)}
        if draft := rng.choice(DRAFTS):
            schema = {"$schema": draft, **schema}
        less = without_idle_keywords(schema)
        n_changed += less != schema
        wrong = [value for value in INSTANCES if is_valid(schema, value) != is_valid(less, value)]
        assert wrong == [], (schema, less)
    assert n_changed > 1000


# ── row by row ───────────────────────────────────────────────────────────────────────────────────

IDLE: dict[str, tuple[Any, list[str], list[str]]] = {
    "zod-record": (
        {"type": "object", "propertyNames": {"type": "string"}, "additionalProperties": {"type": "number"}},
        ["{}", '{"a": 1}'],
        ['{"a": "x"}'],
    ),
    "names-of-another-kind": ({"type": "array", "propertyNames": {"pattern": "^a"}}, ["[]"], ["{}"]),
    "evaluated-by-a-neighbour": (
        {"type": "object", "additionalProperties": {"type": "null"}, "unevaluatedProperties": False},
        ['{"a": null}'],
        ['{"a": 1}'],
    ),
    "needed-anyway": (
        {
            "type": "object",
            "properties": {"a": {}, "b": {}},
            "required": ["b"],
            "dependentRequired": {"a": ["b"]},
            "additionalProperties": False,
        },
        ['{"b": 1}', '{"a": 1, "b": 1}'],
        ['{"a": 1}'],
    ),
    "not-of-another-type": ({"type": "string", "not": {"type": "null"}}, ['"a"'], ["null"]),
    "one-item-is-unique": ({"type": "array", "uniqueItems": True, "maxItems": 1}, ["[]", "[1]"], ["[1, 1]"]),
    "unique-letters": ({"type": "string", "uniqueItems": True}, ['"aa"'], ["[]"]),
    "unique-beside-constants": ({"enum": ["a", 1], "uniqueItems": True}, ['"a"', "1"], ["[]"]),
    "contains-anything": ({"type": "array", "minItems": 1, "contains": {}}, ["[1]"], ["[]"]),
    "format-beside-enum": ({"enum": ["/a", "/b"], "format": "uri-reference"}, ['"/a"'], ['"/c"']),
    "format-beside-const": ({"const": "#fff", "format": "color"}, ['"#fff"'], ['"#000"']),
    "format-of-no-string": ({"type": ["integer", "null"], "format": "iri"}, ["1", "null"], ['"a"']),
    "as-many-as-there-are": (
        {"type": "object", "properties": {"a": {}, "b": {}}, "additionalProperties": False, "maxProperties": 2},
        ["{}", '{"a": 1, "b": 1}'],
        ['{"c": 1}'],
    ),
    "fewer-than-are-needed": (
        {"type": "object", "properties": {"a": {}, "b": {}}, "required": ["a"], "minProperties": 1},
        ['{"a": 1}'],
        ["{}", '{"b": 1}'],
    ),
    "tuple-and-an-old-word": (
        {"type": "array", "prefixItems": [{"type": "string"}], "additionalItems": False},
        ['["a"]', '["a", 1]'],
        ["[1]"],
    ),
    "new-words-in-an-old-draft": (
        {"$schema": DRAFT_7, "type": "array", "items": [{"type": "null"}], "prefixItems": [{"type": "string"}]},
        ["[null]"],
        ['["a"]'],
    ),
    "notes-beside-a-reference-to-itself": (
        {
            "type": "object",
            "properties": {"a": {"$ref": "#", "default": {}, "x-order": 1, "uniqueItems": False}},
            "additionalProperties": False,
        },
        ['{"a": {}}', '{"a": {"a": {}}}'],
        ['{"a": 1}'],
    ),
    "anchor-without-a-reference": ({"$dynamicAnchor": "node", "type": "null"}, ["null"], ["1"]),
    "a-place-in-an-idle-word": (
        {"then": {"type": "null"}, "type": "object", "properties": {"a": {"$ref": "#/properties/b"}, "b": {}}},
        ['{"a": 1}'],
        ["[]"],
    ),
}
"""A schema that the library alone refuses or that it reads otherwise, texts of it, and texts that break it."""


@pytest.mark.parametrize("row", IDLE)
def test_a_keyword_that_says_nothing_is_no_gap(row: str) -> None:
    schema, good, bad = IDLE[row]
    assert [text for text in good + bad if is_valid(schema, json.loads(text)) != (text in good)] == []
    found = texts(schema)
    assert isinstance(found, Texts), found.message
    assert [text for text in good + bad if found.have(text) != (text in good)] == []


SPEAKING: list[Any] = [
    {"propertyNames": {"type": "string", "maxLength": 3}},
    {"propertyNames": False},
    {"unevaluatedProperties": False},
    {"type": "array", "prefixItems": [{}], "unevaluatedItems": False},
    {"dependentRequired": {"a": ["b"]}},
    {"dependentSchemas": {"a": False}},
    {"if": {"type": "string"}, "then": {"maxLength": 1}},
    {"if": {}, "then": {"type": "null"}},
    {"not": {"type": ["string", "null"]}},
    {"type": "string", "not": {"minLength": 2}},
    {"contains": {}},
    {"contains": {"type": "null"}, "minContains": 0, "maxContains": 1},
    {"$schema": DRAFT_7, "contains": {"type": "null"}, "minContains": 0},
    {"uniqueItems": True},
    {"type": ["array", "null"], "uniqueItems": True, "maxItems": 2},
    {"type": "string", "format": "iri"},
    {"$dynamicAnchor": "a", "items": {"$dynamicRef": "#a"}},
    {"dependentRequired": 5},
    {"then": 5},
    {"type": "null", "properties": {"a": {"$ref": "#/then"}}, "then": {"not": {}}},
]


@pytest.mark.parametrize("schema", SPEAKING, ids=json.dumps)
def test_a_keyword_that_says_something_is_still_refused(schema: Any) -> None:
    assert isinstance(texts(schema), Refusal)


def test_a_place_that_a_reference_leads_to_stays() -> None:
    schema = {"then": {"type": "null"}, "items": {"$ref": "#/then"}}
    assert without_idle_keywords(schema) == schema
    anchored = {"else": {"$anchor": "x", "type": "null"}, "items": {"$ref": "#x"}}
    assert without_idle_keywords(anchored) == anchored


@pytest.mark.parametrize("name", sorted(ENFORCED_FORMATS))
def test_the_formats_that_stay_with_constants_are_those_that_the_library_knows(name: str) -> None:
    assert isinstance(unchecked({"type": "string", "format": name}), Texts)


# ── patterns ─────────────────────────────────────────────────────────────────────────────────────

DIGITS, LETTERS = set("0123456789"), set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
WORD = {*DIGITS, *LETTERS, "_"}
LINE_ENDS = set("\n\r\u2028\u2029")
SPACE = {*"\t\v\f \u00a0\u1680\u202f\u205f\u3000\ufeff", *map(chr, range(0x2000, 0x200B)), *LINE_ENDS}
CHARACTERS = {*map(chr, range(0x20, 0x100)), *SPACE, *"٣é\u0085\u180e\u200b\u2060ａ１🎈"} - {"\x7f"}
CLASSES: dict[str, set[str]] = {
    r"\d": DIGITS,
    r"\w": WORD,
    r"\s": SPACE,
    r"\D": CHARACTERS - DIGITS,
    r"\W": CHARACTERS - WORD,
    r"\S": CHARACTERS - SPACE,
    ".": CHARACTERS - LINE_ENDS,
    **{f"[{name}]": members for name, members in (("\\d", DIGITS), ("\\w", WORD), ("\\s", SPACE))},
    **{f"[^{name}]": CHARACTERS - members for name, members in (("\\d", DIGITS), ("\\w", WORD), ("\\s", SPACE))},
    **{f"[\\{n.upper()}]": CHARACTERS - members for n, members in (("d", DIGITS), ("w", WORD), ("s", SPACE))},
    **{f"[^\\{n.upper()}]": members for n, members in (("d", DIGITS), ("w", WORD), ("s", SPACE))},
    r"[\s\d.]": SPACE | DIGITS | {"."},
    r"[\s-.]": SPACE | {"-", "."},
    r"[.-\s]": SPACE | {"-", "."},
    r"[-\s]": SPACE | {"-"},
    r"[\s-]": SPACE | {"-"},
    r"[a-c\-\s]": SPACE | set("abc-"),
    r"[\S\n]": (CHARACTERS - SPACE) | {"\n"},
    r"[^\S\n]": SPACE - {"\n"},
    r"[\\s]": {"\\", "s"},
    r"\.": {"."},
    r"\\s?": {"\\"},
}


@pytest.mark.parametrize("pattern", CLASSES)
def test_a_class_of_characters_is_that_of_ecma_262(pattern: str) -> None:
    found = texts({"type": "string", "pattern": f"^{pattern}$"})
    assert isinstance(found, Texts), found.message
    members = CLASSES[pattern]
    assert {each for each in CHARACTERS if found.have(json.dumps(each, ensure_ascii=False))} == members & CHARACTERS


@pytest.mark.parametrize("pattern", [r"\d", r"\s", "[^\\s]", ".", r"\W"])
def test_a_pattern_of_names_has_the_same_classes(pattern: str) -> None:
    found = texts({"type": "object", "patternProperties": {f"^{pattern}$": {}}, "additionalProperties": False})
    assert isinstance(found, Texts), found.message
    # No control character can be written in a free name.
    tried = {each for each in CHARACTERS if each >= " "}
    came_up = {each for each in tried if found.have(json.dumps({each: 1}, ensure_ascii=False))}
    assert came_up == CLASSES[pattern] & tried


def test_two_patterns_of_names_do_not_become_one() -> None:
    both = {"patternProperties": {r"^\s$": {"type": "null"}, readable({"pattern": r"^\s$"})["pattern"]: {}}}
    assert len(readable(both)["patternProperties"]) == 2
