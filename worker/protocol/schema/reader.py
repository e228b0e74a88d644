"""Reads a JSON schema keyword by keyword: what the converter to GBNF does exactly is written plainly, the rest a fault.

llama-cpp-python's converter (0.3.36, llama_grammar.py) skips keywords it does not know, and most that stand beside one
it does; it takes a property for the definition of the same name; `{}` is an object to it, and `items` hide
`prefixItems`. So it is given one set of keywords for each kind of value, and definitions under names of ours. What it
makes of that may be narrower than the schema (a property that is not declared never comes up), never wider.

Owns: which keywords are honoured. Refuses to know: GBNF, llama.cpp. Pure; runs on the front's event loop.
"""

import re
from typing import Any, Final
from urllib.parse import unquote

from worker.protocol.schema.faults import Faults, Tokens
from worker.protocol.schema.loops import Plain, loops
from worker.protocol.schema.values import (
    BOUNDS,
    MAX_CHOICES,
    constant,
    enumeration,
    integer_schema,
    limits,
    string_schema,
)

MAX_DEPTH = 64
"""Of schemas inside each other, also through references: the converter recurses."""
MAX_PARTS = 10_000
"""Schemas read. References to parts inside each other could make it the square of the text."""
MAX_OPTIONAL = 128
"""Properties of one object that may be left out: the converter's work on them is quadratic."""

Schema = dict[str, Any] | bool
Keywords = dict[str, Any]

_ANYTHING: Final[Plain] = {"type": "value"}
"""The converter's own name for any JSON value."""

_ANNOTATIONS = frozenset(
    (
        *("title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly"),
        *("$schema", "$id", "$comment", "$defs", "definitions"),
    )
)
_COMPLETE = ("$ref", "anyOf", "oneOf", "allOf", "enum", "const")
"""Keywords that stand alone: the converter does not look at what is beside them."""
_HONOURED: dict[str, tuple[str, ...]] = {
    "object": ("properties", "required", "additionalProperties"),
    "array": ("items", "prefixItems", "minItems", "maxItems", "uniqueItems"),
    "string": ("pattern", "format", "minLength", "maxLength"),
    "integer": BOUNDS,
    "number": (),
    "boolean": (),
    "null": (),
}
"""By type of value. Of other types these keywords say nothing, and may stand there."""
_NOT_HONOURED: dict[str, tuple[str, ...]] = {
    "object": (
        *("patternProperties", "propertyNames", "minProperties", "maxProperties", "unevaluatedProperties"),
        *("dependentRequired", "dependentSchemas", "dependencies"),
    ),
    "array": ("contains", "minContains", "maxContains", "unevaluatedItems", "additionalItems"),
    "integer": ("multipleOf",),
    "number": (*BOUNDS, "multipleOf"),
}
_UNTYPED = ("object", "array", "string", "number")
"""Whose keywords may stand without a type."""
_INDEX = re.compile(r"0|[1-9][0-9]{0,5}")
KNOWN = frozenset([*_COMPLETE, "type"]).union(*_HONOURED.values(), *_NOT_HONOURED.values())


class SchemaReader:
    """Reads a schema at once, whose value is at most MAX_DEPTH deep. Without `faults`, `top` and `definitions` are the
    plain one.
    """

    def __init__(self, schema: Schema) -> None:
        self.faults = Faults()
        self.definitions: dict[str, Plain] = {}
        self._schema = schema
        self._names: dict[Tokens, str] = {}
        self._n_read = 0
        self.top = self._reference((), 1)
        if not self.faults.found:
            places = {name: at for at, name in self._names.items()}
            for name, what in loops(self.definitions):
                self.faults.unsatisfiable(places[name], what)

    def _reference(self, target: Tokens, depth: int) -> Plain:
        if target not in self._names:
            name = self._names[target] = f"schema{len(self._names)}"
            self.definitions[name] = self._read(_part(self._schema, target), target, depth)
        return {"$ref": f"#/$defs/{self._names[target]}"}

    def _read(self, schema: object, at: Tokens, depth: int) -> Plain:
        """A schema in plain; after a fault anything, so that reading can go on."""
        self._n_read += 1
        if self._n_read > MAX_PARTS:
            self.faults.add(
                (), f"max_count({MAX_PARTS})", "has too many schemas in it, counted again where referred to"
            )
        elif depth > MAX_DEPTH:
            self.faults.add(at, f"max_depth({MAX_DEPTH})", "is nested too deeply, references followed")
        elif schema is False:
            self.faults.unsatisfiable(at, "allows no value")
        elif isinstance(schema, dict):
            return self._keywords({word: schema[word] for word in schema if word not in _ANNOTATIONS}, at, depth)
        elif schema is not True:
            self.faults.invalid(at, "must be an object, true or false")
        return _ANYTHING

    def _keywords(self, said: Keywords, at: Tokens, depth: int) -> Plain:
        for word in said:
            if word not in KNOWN:
                self.faults.unsupported((*at, word), "is not supported; leave it out")
        for word in _COMPLETE:
            if word in said:
                self._check_alone(word, said, at)
                return self._complete(word, said, (*at, word), depth)
        branches = [self._of_kind(kind, said, at, depth) for kind in self._kinds(said, at)]
        return _any_of(branches) if branches else _ANYTHING

    # ── keywords that stand alone ────────────────────────────────────────────────────────────────

    def _check_alone(self, word: str, said: Keywords, at: Tokens) -> None:
        allowed = {word, "type"} if word in {"enum", "const"} else {word}
        for other in said:
            if other in KNOWN and other not in allowed:
                self.faults.unsupported((*at, other), f"is not supported beside {word}; leave one of them out")

    def _complete(self, word: str, said: Keywords, at: Tokens, depth: int) -> Plain:
        value = said[word]
        types = self._kinds({"type": said["type"]}, at[:-1]) if "type" in said else []
        match word:
            case "$ref":
                return self._follow(value, at, depth)
            case "enum":
                return enumeration(value, types, at, self.faults)
            case "const":
                return constant(value, types, at, self.faults)
            case "oneOf" if not _are_disjoint(value):
                self.faults.unsupported(at, "is supported only for schemas of different types; use anyOf")
            case "allOf" if isinstance(value, list) and len(value) > 1:
                self.faults.unsupported(at, "is supported only for a single schema; merge them into one")
            case _:
                return self._branches(value, at, depth)
        return _ANYTHING

    def _follow(self, reference: object, at: Tokens, depth: int) -> Plain:
        if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
            self.faults.unsupported(at, "must be a reference within the schema: # or #/…")
            return _ANYTHING
        target = tuple(unquote(part).replace("~1", "/").replace("~0", "~") for part in reference.split("/")[1:])
        try:
            _part(self._schema, target)
        except LookupError:
            self.faults.invalid(at, "refers to no part of the schema")
            return _ANYTHING
        return self._reference(target, depth + 1)

    def _branches(self, branches: object, at: Tokens, depth: int) -> Plain:
        if not isinstance(branches, list) or not branches:
            self.faults.invalid(at, "must be an array of at least one schema")
            return _ANYTHING
        if len(branches) > MAX_CHOICES:
            self.faults.add(at, f"max_count({MAX_CHOICES})", f"must have at most {MAX_CHOICES} schemas")
        return _any_of([self._read(branch, (*at, str(i)), depth + 1) for i, branch in enumerate(branches)])

    # ── keywords of one type ─────────────────────────────────────────────────────────────────────

    def _kinds(self, said: Keywords, at: Tokens) -> list[str]:
        """The types a schema allows; where it does not say, those its keywords speak of; none: all."""
        if "type" not in said:
            return [kind for kind in _UNTYPED if said.keys() & {*_HONOURED[kind], *_NOT_HONOURED.get(kind, ())}]
        types = said["type"] if isinstance(said["type"], list) else [said["type"]]
        if not types or not all(isinstance(kind, str) and kind in _HONOURED for kind in types):
            self.faults.invalid((*at, "type"), f"must be one or more of {', '.join(_HONOURED)}")
            return []
        return list(dict.fromkeys(types))

    def _of_kind(self, kind: str, said: Keywords, at: Tokens, depth: int) -> Plain:
        for word in _NOT_HONOURED.get(kind, ()):
            if word in said:
                self.faults.unsupported((*at, word), f"is not supported for type {kind}; leave it out")
        match kind:
            case "object":
                return self._object(said, at, depth)
            case "array":
                return self._array(said, at, depth)
            case "string":
                return string_schema(said, at, self.faults)
            case "integer":
                return integer_schema(said, at, self.faults)
            case _:
                return {"type": kind}

    def _object(self, said: Keywords, at: Tokens, depth: int) -> Plain:
        declared, required = said.get("properties", {}), said.get("required", [])
        others, others_at = said.get("additionalProperties", True), (*at, "additionalProperties")
        if not isinstance(declared, dict) or not isinstance(required, list):
            self.faults.invalid(at, "must have an object as its properties, an array of names as required")
            return _ANYTHING
        for i, name in enumerate(required):
            if not isinstance(name, str) or name not in declared:
                self.faults.unsupported((*at, "required", str(i)), "must be the name of one of the properties")
        if not declared:
            return self._map(others, others_at, depth)
        if not isinstance(others, bool):
            self.faults.unsupported(others_at, "is supported beside properties only as true or false")
        properties = {name: self._property(name, inner, at, depth) for name, inner in declared.items()}
        if len(declared.keys() - {name for name in required if isinstance(name, str)}) > MAX_OPTIONAL:
            what = f"must have at most {MAX_OPTIONAL} that are not required"
            self.faults.add((*at, "properties"), f"max_count({MAX_OPTIONAL})", what)
        return {"type": "object", "properties": properties, "required": required}

    def _map(self, others: object, at: Tokens, depth: int) -> Plain:
        """An object that declares no properties."""
        if others is False:
            return {"type": "object", "properties": {}}
        if others is True:
            return {"type": "object"}
        return {"type": "object", "additionalProperties": self._read(others, at, depth + 1)}

    def _property(self, name: str, schema: object, at: Tokens, depth: int) -> Plain:
        place = (*at, "properties", name)
        if name in {"", "*", "$ref"}:  # each means something of its own to the converter
            self.faults.unsupported(place, "has a name that is not supported; choose another")
        return self._read(schema, place, depth + 1)

    def _array(self, said: Keywords, at: Tokens, depth: int) -> Plain:
        least, most = limits(said, "minItems", "maxItems", at, self.faults)
        items, items_at = said.get("items", True), (*at, "items")
        prefix, prefix_at = said.get("prefixItems"), (*at, "prefixItems")
        if said.get("uniqueItems", False) is not False:
            self.faults.unsupported((*at, "uniqueItems"), "is not supported; leave it out")
        if isinstance(items, list) or not (prefix is None or (isinstance(prefix, list) and prefix)):
            self.faults.invalid(at, "must have one schema as its items, an array of schemas as its prefixItems")
            return _ANYTHING
        if prefix is None:
            item = self._read(items, items_at, depth + 1)
            return {"type": "array", "items": item, "minItems": least} | ({} if most is None else {"maxItems": most})
        if not isinstance(items, bool):
            self.faults.unsupported(items_at, "is supported beside prefixItems only as true or false")
        if len(prefix) < least or (most is not None and len(prefix) > most):
            self.faults.unsupported(prefix_at, "must be as many as minItems and maxItems allow: an array has them all")
        schemas = [self._read(item, (*prefix_at, str(i)), depth + 1) for i, item in enumerate(prefix)]
        return {"type": "array", "prefixItems": schemas}


def _part(schema: object, target: Tokens) -> object:
    """Raises: LookupError."""
    for token in target:
        if isinstance(schema, list) and _INDEX.fullmatch(token):
            schema = schema[int(token)]
        elif isinstance(schema, dict):
            schema = schema[token]
        else:
            raise LookupError
    return schema


def _any_of(branches: list[Plain]) -> Plain:
    return branches[0] if len(branches) == 1 else {"anyOf": branches}


def _are_disjoint(branches: object) -> bool:
    """Whether each branch says its types and no two the same; an integer is a number too."""
    seen: set[str] = set()
    for branch in branches if isinstance(branches, list) else []:
        types = branch.get("type") if isinstance(branch, dict) else None
        listed = types if isinstance(types, list) else [types]
        named = {"number" if kind == "integer" else kind for kind in listed if isinstance(kind, str)}
        if not named or named & seen:
            return False
        seen |= named
    return True
