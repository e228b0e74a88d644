"""A tagged argument's text becomes JSON text, by the types that the tool's schema allows.

A text that cannot be read as one of these types is a string.
"""

import html
import json
import re
from collections.abc import Iterator, Mapping
from typing import Final

JsonType = str
ANY: Final[frozenset[JsonType]] = frozenset()
"""The types of a schema that does not say."""
STRING: Final[frozenset[JsonType]] = frozenset({"string"})
_MAX_REFERENCES: Final = 8
_MAX_SCHEMAS: Final = 200
"""The most choices of one schema that are looked at."""
PYTHON_WORDS: Final = {"True": "true", "False": "false", "None": "null"}
"""Python's words, which templates write that do not use tojson."""
_NUMBER_TYPES: Final = frozenset({"integer", "number"})
_MAYBE_JSON: Final = re.compile(r'[ \t\r\n]*(?:$|[-0-9{\["tfnTFN])')
_MAX_WORD: Final = 5
_SPACE: Final = " \t\r\n"
_ESCAPE: Final = re.compile(r"&(?:amp|quot|apos|lt|gt|#\d{1,7}|#x[0-9a-fA-F]{1,6});")


def member(schema: object, root: object, name: str) -> object:
    """Return the schema of an object's member, or None. The object may be one of several choices."""
    for found in _choices(schema, root):
        properties = found.get("properties")
        if isinstance(properties, Mapping) and name in properties:
            return resolved(properties[name], root)
    return None


def items(schema: object, root: object) -> object:
    """Return the schema of the elements of a list, or None. The list may be one of several choices."""
    listed = (found["items"] for found in _choices(schema, root) if "items" in found)
    return resolved(next(listed, None), root)


def _choices(schema: object, root: object) -> Iterator[Mapping[str, object]]:
    """Yield a schema, and those that its instances may or must fit, each once."""
    waiting, seen = [schema], set[int]()
    while waiting and len(seen) < _MAX_SCHEMAS:
        found = resolved(waiting.pop(0), root)
        if not isinstance(found, Mapping) or id(found) in seen:
            continue
        seen.add(id(found))
        yield found
        for key in ("anyOf", "oneOf", "allOf"):
            parts = found.get(key)
            waiting += parts if isinstance(parts, list | tuple) else []


def resolved(schema: object, root: object) -> object:
    """Return the schema that a local reference means."""
    for _ in range(_MAX_REFERENCES):
        reference = schema.get("$ref") if isinstance(schema, Mapping) else None
        if not isinstance(reference, str) or not reference.startswith("#"):
            return schema
        schema = root
        for key in reference[1:].split("/")[1:]:
            schema = schema.get(key) if isinstance(schema, Mapping) else None
    return None


def types_of(schema: object, root: object, known: "_Known | None" = None) -> frozenset[JsonType]:
    """Return the types that a schema allows, or none if it does not say."""
    known = {} if known is None else known
    schema = resolved(schema, root)
    if not isinstance(schema, Mapping):
        return ANY
    if id(schema) not in known:
        known[id(schema)] = ANY
        if len(known) < _MAX_SCHEMAS:
            known[id(schema)] = _types_named(schema, root, known)
    return known[id(schema)]


_Known = dict[int, frozenset[JsonType]]
"""The types of schemas that were met already, none for those that are not read to their end. Without it, choices among
choices would take a time that their number raised to their depth is."""


def _types_named(schema: Mapping[str, object], root: object, known: _Known) -> frozenset[JsonType]:
    declared = schema.get("type")
    if isinstance(declared, str | list | tuple):
        return frozenset(str(one).lower() for one in ([declared] if isinstance(declared, str) else declared))
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(values, list | tuple):
        return frozenset(map(type_of, values))
    for key in ("anyOf", "oneOf"):
        if isinstance(choices := schema.get(key), list | tuple):
            found = [types_of(one, root, known) for one in choices]
            return frozenset().union(*found) if all(found) else ANY
    if isinstance(parts := schema.get("allOf"), list | tuple):
        return next(filter(None, (types_of(one, root, known) for one in parts)), ANY)
    return frozenset({"object"}) if "properties" in schema else ANY


def type_of(value: object) -> JsonType:
    """Return the JSON type of a value."""
    match value:
        case bool():
            return "boolean"
        case None:
            return "null"
        case str():
            return "string"
        case int() | float():
            return "number"
        case dict():
            return "object"
        case _:
            return "array"


def may_be_json(text: str, types: frozenset[JsonType]) -> bool:
    """Return False if this beginning of a value makes it a string."""
    if types == STRING:
        return False
    if types and "string" not in types:
        return True
    return bool(_MAYBE_JSON.match(text)) and not (
        text.strip(_SPACE)[:1].isalpha() and len(text.strip(_SPACE)) > _MAX_WORD
    )


def json_of(text: str, types: frozenset[JsonType]) -> str:
    """Return the JSON text of a value that a model has written as text."""
    if types == STRING:
        return quoted(text)
    written = text.strip(_SPACE)
    written = PYTHON_WORDS.get(written, written)
    value = loaded(written)
    if value is not _NOTHING:
        found = type_of(value)
        fits = found in types or (found == "number" and bool(types & _NUMBER_TYPES))
        if fits or (found != "string" and (not types or "string" not in types)):
            return written
    return quoted(text)


_NOTHING: Final = object()


def loaded(text: str) -> object:
    """Return the value of a JSON text, or a mark that is no value."""
    try:
        return json.loads(text, parse_constant=_refused)
    except (ValueError, RecursionError):
        return _NOTHING


def is_value(value: object) -> bool:
    """Return True if `loaded` has read a value."""
    return value is not _NOTHING


def quoted(text: str) -> str:
    """Return a string as JSON text."""
    return json.dumps(text, ensure_ascii=False)


def escaped(text: str) -> str:
    """Return a part of a string as a part of JSON text."""
    return quoted(text)[1:-1]


def unescaped(text: str) -> str:
    """Return the text of a tag's attribute."""
    return _ESCAPE.sub(lambda found: html.unescape(found[0]), text)


def _refused(name: str) -> object:
    raise ValueError(name)
