"""Values made from a schema without any grammar: valid ones by chance, and broken ones from those.

Only tries; a validator has the last word. Knows the keywords that published schemas use, and is lost where they meet.
"""

import copy
import random
from collections.abc import Iterator
from typing import Any

TEXTS = [
    *("a", "name", "x1", "1.2.3", "https://example.org/a", "A", "10", "a-b", "./a", "abc_def", "2024-01-31"),
    *("", "é 🎈"),
]
FORMATS = {
    "date": "2024-02-29",
    "time": "12:00:00Z",
    "date-time": "2024-02-29T12:00:00Z",
    "duration": "P1D",
    "email": "a@example.org",
    "hostname": "example.org",
    "ipv4": "127.0.0.1",
    "ipv6": "::1",
    "uuid": "2eb8aa08-aa98-11ea-b4aa-73b441d16380",
    "uri": "https://example.org/",
}
MAX_DEPTH = 6

Schema = dict[str, Any]


def tries(schema: Any, rng: random.Random) -> Iterator[Any]:
    """Values without end, the smaller ones first."""
    maker = _Maker(schema, rng)
    while True:
        maker.generosity = min(maker.generosity + 0.05, 0.7)
        yield maker.value(schema, 0)


def broken(value: Any, rng: random.Random) -> Any:
    """The value with one change somewhere: another kind, a name more or less, an item more or less."""
    changed = copy.deepcopy(value)
    places = list(_places(changed))
    if not places or rng.random() < 0.1:
        return rng.choice([None, 7, "odd", [], {}, 0.5])
    parent, key = rng.choice(places)
    change = rng.random()
    if change < 0.25:
        del parent[key]
    elif change < 0.4 and isinstance(parent, dict):
        parent["odd name"] = rng.choice([None, 7, "odd", []])
    elif change < 0.5 and isinstance(parent, list):
        parent.append(rng.choice([None, 7, "odd", []]))
    else:
        parent[key] = rng.choice([None, True, -7, 0.5, "odd", "", [], ["odd"], {}, {"odd": 1}, 10**9])
    return changed


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else []
    for key in keys:
        yield value, key
        yield from _places(value[key])


class _Maker:
    """Values of one root schema. `generosity`: how likely what is optional comes up."""

    def __init__(self, root: Any, rng: random.Random) -> None:
        self._root = root
        self._rng = rng
        self.generosity = 0.0

    def value(self, schema: Any, depth: int) -> Any:
        schema = self._whole(schema, 0)
        if "const" in schema:
            return schema["const"]
        if "enum" in schema:
            return self._rng.choice(schema["enum"])
        shown = [*schema.get("examples", [])] if isinstance(schema.get("examples"), list) else []
        if shown and self._rng.random() < 0.3:
            return self._rng.choice(shown)
        kind = schema.get("type") or self._likely(schema)
        kind = self._rng.choice(kind) if isinstance(kind, list) else kind
        if kind == "object":
            return self._object(schema, depth)
        if kind == "array":
            return self._array(schema, depth)
        if kind == "string":
            return self._text(schema)
        if kind in ("integer", "number"):
            return self._number(schema, kind)
        return self._rng.choice([True, False]) if kind == "boolean" else None

    def _whole(self, schema: Any, n_followed: int) -> Schema:
        """The schema with references followed, one branch chosen, and what stands next to them."""
        if not isinstance(schema, dict) or n_followed > MAX_DEPTH:
            return {}
        whole = {key: part for key, part in schema.items() if key not in ("$ref", "anyOf", "oneOf", "allOf")}
        parts = [self._found(schema["$ref"])] if "$ref" in schema else []
        parts += [self._rng.choice(schema[key]) for key in ("anyOf", "oneOf") if schema.get(key)]
        parts += schema.get("allOf", [])
        for part in parts:
            for key, value in self._whole(part, n_followed + 1).items():
                if isinstance(value, dict) and isinstance(whole.get(key), dict):
                    whole[key] = {**whole[key], **value}
                elif key == "required":
                    whole[key] = [*whole.get(key, []), *value]
                else:
                    whole[key] = value
        return whole

    def _found(self, reference: str) -> Any:
        part = self._root
        for step in reference.partition("#")[2].split("/")[1:]:
            name = step.replace("~1", "/").replace("~0", "~")
            part = part.get(name, {}) if isinstance(part, dict) else {}
        return part

    def _likely(self, schema: Schema) -> str:
        if "properties" in schema or "required" in schema or "additionalProperties" in schema:
            return "object"
        if "items" in schema:
            return "array"
        return "string" if "pattern" in schema or "format" in schema else self._rng.choice(["string", "integer"])

    def _object(self, schema: Schema, depth: int) -> Schema:
        declared = schema.get("properties", {})
        generosity = self.generosity if depth < MAX_DEPTH else 0.0
        names = [name for name in declared if name in schema.get("required", []) or self._rng.random() < generosity]
        names += [name for name in schema.get("required", []) if name not in declared]
        made = {name: self.value(declared.get(name, {}), depth + 1) for name in names}
        others = schema.get("additionalProperties")
        if isinstance(others, dict) and self._rng.random() < generosity + 0.2:
            made[self._rng.choice(TEXTS)] = self.value(others, depth + 1)
        return made

    def _array(self, schema: Schema, depth: int) -> list[Any]:
        least = schema.get("minItems", 0)
        n_items = least if depth >= MAX_DEPTH else max(least, self._rng.randint(0, 2))
        items = schema.get("items", {})
        first = items if isinstance(items, list) else schema.get("prefixItems", [])
        return [self.value(first[i] if i < len(first) else items, depth + 1) for i in range(n_items)]

    def _text(self, schema: Schema) -> str:
        if (format_ := str(schema.get("format"))) in FORMATS:
            return FORMATS[format_]
        text = self._rng.choice(TEXTS)
        return text.ljust(int(schema.get("minLength", 0)), "x")

    def _number(self, schema: Schema, kind: str) -> float | int:
        low: Any = schema.get("minimum", schema.get("exclusiveMinimum", 0))
        number = low + self._rng.choice([0, 1, 1, 2, 10])
        return int(number) if kind == "integer" or self._rng.random() < 0.5 else number + 0.5
