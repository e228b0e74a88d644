"""JSON schemas of ordinary shape, made from a seed: what someone asks for who wants a record, a list or a choice.

Small enough that an answer has room in some 96 tokens. Every keyword the worker honours comes up.
"""

import random
from collections.abc import Callable
from typing import Any

Schema = dict[str, Any]

NAMES = ["name", "age", "city", "tags", "price", "is_open", "colour", "größe", "first name", "id", "date", "number"]
WORDS = ["red", "green", "blue", "small", "large", "yes", "no", "Zürich", "not available", "東京", "50 %"]
PATTERNS = ["^[A-Z]{2}-[0-9]{3}$", "^(cat|dog)s?$", r"^\d{1,3}(\.\d)?$", "^[a-f0-9]{4,8}$", "^[^aeiou ]{2,5}$"]
MAX_DEPTH = 3


def random_schema(seed: int) -> Schema:
    """Mostly an object, as requests are; one in five at the top is anything else."""
    rng = random.Random(seed)
    kinds: list[Callable[[random.Random, int], Schema]] = [_object, _object, _object, _with_definitions, _any]
    return rng.choice(kinds)(rng, 1)


def _any(rng: random.Random, depth: int) -> Schema:
    nested = [] if depth >= MAX_DEPTH else [_object, _array, _tuple, _map, _any_of]
    return rng.choice([*_LEAVES, *nested])(rng, depth)


def _object(rng: random.Random, depth: int) -> Schema:
    names = rng.sample(NAMES, rng.randint(1, 4 if depth == 1 else 2))
    schema: Schema = {"type": "object", "properties": {name: _any(rng, depth + 1) for name in names}}
    if rng.random() < 0.8:
        schema["required"] = rng.sample(names, rng.randint(1, len(names)))
    if rng.random() < 0.3:
        schema["additionalProperties"] = False
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
    return {"type": "object", "additionalProperties": {"type": rng.choice(["integer", "boolean"])}}


def _any_of(rng: random.Random, depth: int) -> Schema:
    return {"anyOf": [_any(rng, depth + 1) for _ in range(rng.randint(2, 3))]}


def _with_definitions(rng: random.Random, depth: int) -> Schema:
    """One definition used twice, and sometimes a list of itself."""
    item = _object(rng, depth + 1)
    if rng.random() < 0.3:
        item["properties"]["next"] = {"$ref": "#/$defs/item"}
        item["required"] = [name for name in item.get("required", []) if name != "next"]
    first: Schema = {"$ref": "#/$defs/item"}
    second: Schema = {"type": "array", "items": {"$ref": "#/$defs/item"}, "maxItems": 2}
    properties = {"item": first, "others": second} if rng.random() < 0.5 else {"item": first, "second": first}
    return {"$defs": {"item": item}, "type": "object", "properties": properties, "required": ["item"]}


# ── without schemas inside ───────────────────────────────────────────────────────────────────────


def _text(rng: random.Random, _: int) -> Schema:
    least = rng.choice([0, 0, 1, 3])
    return {"type": "string", "minLength": least, "maxLength": least + rng.randint(2, 16)}


def _pattern(rng: random.Random, _: int) -> Schema:
    return {"type": "string", "pattern": rng.choice(PATTERNS)}


def _format(rng: random.Random, _: int) -> Schema:
    return {"type": "string", "format": rng.choice(["date", "time", "date-time"])}


def _integer(rng: random.Random, _: int) -> Schema:
    low = rng.randint(-20, 20)
    return rng.choice([{"type": "integer"}, {"type": "integer", "minimum": low, "exclusiveMaximum": low + 100}])


def _number(rng: random.Random, _: int) -> Schema:
    return {"type": "number"}


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
