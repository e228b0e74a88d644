"""JSON schemas of ordinary shape, made from a seed: what someone asks for who wants a record, a list or a choice.

Small enough that an answer has room in some 96 tokens, and mostly closed and bounded, so that a small model comes to an
end. Every kind of keyword that is enforced comes up.
"""

import random
from collections.abc import Callable
from typing import Any

Schema = dict[str, Any]

NAMES = ["name", "age", "city", "tags", "price", "is_open", "colour", "größe", "first name", "id", "date", "number"]
WORDS = ["red", "green", "blue", "small", "large", "yes", "no", "Zürich", "not available", "東京", "50 %"]
PATTERNS = ["^[A-Z]{2}-[0-9]{3}$", "^(cat|dog)s?$", r"^\d{1,3}(\.\d)?$", "^[a-f0-9]{4,8}$", "^[^aeiou ]{2,5}$"]
FORMATS = {"date": 10, "time": 20, "date-time": 30, "duration": 8, "email": 24, "hostname": 20, "ipv4": 15, "ipv6": 30}
FORMATS |= {"uuid": 36, "uri": 30}
"""The most bytes that they have."""
MAX_DEPTH = 3


def random_schema(seed: int) -> Schema:
    """Mostly an object, as requests are; one in five at the top is anything else."""
    rng = random.Random(seed)
    kinds: list[Callable[[random.Random, int], Schema]] = [_object, _object, _object, _with_definitions, _any]
    return rng.choice(kinds)(rng, 1)


def _any(rng: random.Random, depth: int) -> Schema:
    nested = [] if depth >= MAX_DEPTH else [_object, _array, _tuple, _map, _patterned_map, _any_of, _one_of, _all_of]
    return rng.choice([*_LEAVES, *nested])(rng, depth)


def _object(rng: random.Random, depth: int) -> Schema:
    names = rng.sample(NAMES, rng.randint(1, 4 if depth == 1 else 2))
    schema: Schema = {"type": "object", "properties": {name: _any(rng, depth + 1) for name in names}}
    if rng.random() < 0.8:
        schema["required"] = rng.sample(names, rng.randint(1, len(names)))
    schema["additionalProperties"] = rng.random() < 0.02
    if rng.random() < 0.2:
        schema["title"] = "A record"
    return schema


def _array(rng: random.Random, depth: int) -> Schema:
    least = rng.randint(0, 2)
    return {"type": "array", "items": _any(rng, depth + 1), "minItems": least, "maxItems": least + rng.randint(0, 2)}


def _tuple(rng: random.Random, depth: int) -> Schema:
    return {"type": "array", "prefixItems": [_any(rng, depth + 1) for _ in range(2)], "items": False}


def _map(rng: random.Random, depth: int) -> Schema:
    """The names are the model's own."""
    values = {"type": rng.choice(["integer", "boolean"])}
    return {"type": "object", "additionalProperties": values, "maxProperties": rng.randint(1, 3)}


def _any_of(rng: random.Random, depth: int) -> Schema:
    return {"anyOf": [_any(rng, depth + 1) for _ in range(rng.randint(2, 3))]}


def _patterned_map(rng: random.Random, depth: int) -> Schema:
    """Names of two forms, each with values of its own."""
    forms = {"^[a-z]{1,6}$": _any(rng, depth + 1), "^[0-9]{1,3}$": _simple(rng, depth)}
    return {"type": "object", "patternProperties": forms, "additionalProperties": False, "maxProperties": 2}


def _one_of(rng: random.Random, depth: int) -> Schema:
    """Records that a constant tells apart."""
    kinds = rng.sample(WORDS, 2)
    return {"oneOf": [{**_object(rng, depth + 1), **_marked(kind)} for kind in kinds]}


def _marked(kind: str) -> Schema:
    return {"properties": {"kind": {"const": kind}}, "required": ["kind"], "additionalProperties": False}


def _all_of(rng: random.Random, depth: int) -> Schema:
    """A record, and that it has nothing more."""
    names = rng.sample(NAMES, 2)
    properties = {name: _any(rng, depth + 1) for name in names}
    closed = {"properties": {name: {} for name in names}, "additionalProperties": False}
    return {"allOf": [{"type": "object", "properties": properties, "required": names}, closed]}


def _with_definitions(rng: random.Random, depth: int) -> Schema:
    """One definition used twice, and sometimes a list of itself."""
    item = _object(rng, depth + 1)
    if rng.random() < 0.1:
        item["properties"]["next"] = {"$ref": "#/$defs/item"}
        item["required"] = [name for name in item.get("required", []) if name != "next"]
    first: Schema = {"$ref": "#/$defs/item"}
    second: Schema = {"type": "array", "items": {"$ref": "#/$defs/item"}, "maxItems": 2}
    properties = {"item": first, "others": second} if rng.random() < 0.5 else {"item": first, "second": first}
    record: Schema = {"type": "object", "properties": properties, "required": ["item"], "additionalProperties": False}
    return {"$defs": {"item": item}, **record}


# ── without schemas inside ───────────────────────────────────────────────────────────────────────


def _text(rng: random.Random, _: int) -> Schema:
    least = rng.choice([0, 0, 1, 3])
    most = {"maxLength": least + rng.randint(2, 16)} if rng.random() < 0.97 else {}
    return {"type": "string", "minLength": least, **most}


def _pattern(rng: random.Random, _: int) -> Schema:
    """Sometimes with a length beside it, which all these patterns leave room for."""
    return {"type": "string", "pattern": rng.choice(PATTERNS), **rng.choice([{}, {"minLength": 1}, {"maxLength": 8}])}


def _format(rng: random.Random, _: int) -> Schema:
    name, most = rng.choice([*FORMATS.items()])
    return {"type": "string", "format": name, "maxLength": most}


def _integer(rng: random.Random, _: int) -> Schema:
    low = rng.randint(-20, 20)
    half_open: list[Schema] = [{}, {"minimum": low}, {"maximum": low}, {"multipleOf": rng.choice([2, 5, 12])}]
    closed: list[Schema] = [
        {"minimum": low, "exclusiveMaximum": low + 100},
        {"exclusiveMinimum": 0, "maximum": 5000},
        {"minimum": -99, "maximum": 999, "multipleOf": rng.choice([2, 5, 12])},
    ]
    return {"type": "integer", **rng.choice(half_open if rng.random() < 0.1 else closed)}


def _number(rng: random.Random, _: int) -> Schema:
    endless: list[Schema] = [{}, {"minimum": 0}, {"exclusiveMaximum": 0.5}, {"minimum": -1, "maximum": 1}]
    # Multiples that a float has exactly: to jsonschema, 0.29 is none of 0.01.
    rounded: list[Schema] = [
        {"exclusiveMinimum": 0, "exclusiveMaximum": 99.9, "multipleOf": 0.125},
        {"minimum": 0, "maximum": 100, "multipleOf": 0.25},
    ]
    return {"type": "number", **rng.choice(endless if rng.random() < 0.1 else rounded)}


def _constant(rng: random.Random, _: int) -> Schema:
    return {"const": rng.choice([*WORDS, 7, 2.5, True, None, ["a", 1], {"unit": "kg"}])}


def _enumeration(rng: random.Random, _: int) -> Schema:
    values = rng.sample([*WORDS, 1, 2, 30, None, False], rng.randint(2, 6))
    return {"enum": values}


def _simple(rng: random.Random, _: int) -> Schema:
    return rng.choice([{"type": "boolean"}, {"type": "null"}, {"type": ["boolean", "null"]}, {"type": "boolean"}])


_LEAVES: list[Callable[[random.Random, int], Schema]] = [
    *(_text, _text, _text, _pattern, _format, _integer, _integer, _number, _constant, _enumeration, _enumeration),
    _simple,
]
