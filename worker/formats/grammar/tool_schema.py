"""Schemas of tools' arguments, as far as a form of calls can write what they say.

The parts that a grammar of calls asks for: the members of an object, choices, texts; and the words for what no form can
write.
"""

import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

from worker.formats.read.values import STRING, resolved, types_of

Schema = Mapping[str, Any]

NOTES: Final = frozenset(
    {"title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly", "$schema", "$comment", "$id"}
)
"""Keywords that say nothing of an instance."""
_DEFINITIONS: Final = ("$defs", "definitions")
NOT_IN_THIS_FORM: Final = "cannot be enforced in this model's form of calls"
OPTIONS: Final = "x-guidance"
"""The member of a schema that has the library's options."""
ANY_TEXT: Final = "/(?s:.*)/"


class Inexpressible(ValueError):
    """The form has no grammar for this tool. The message is the end of a sentence and quotes no value."""


def members_of(schema: Schema) -> tuple[Mapping[str, Any], Collection[str]]:
    """The properties of an object, and the names of those that it must have."""
    known = {"type", "properties", "required", "additionalProperties", OPTIONS, *_DEFINITIONS, *NOTES}
    if other := sorted(schema.keys() - known):
        raise Inexpressible(f"{', '.join(map(json.dumps, other))} {NOT_IN_THIS_FORM} (at #)")
    properties = schema.get("properties", {})
    required = schema.get("required", [])
    return {**properties, **{name: {} for name in required if name not in properties}}, required


def alone(schema: object, root: Schema) -> Any:
    """The schema of a property as a document of its own."""
    wanted = (*_DEFINITIONS, OPTIONS) if '"$ref"' in json.dumps(schema) else (OPTIONS,)
    kept = {key: root[key] for key in wanted if key in root}
    if not isinstance(schema, dict):
        return kept if schema is not False else {**kept, "not": {}}
    if (reference := schema.get("$ref")) is not None and not str(reference).startswith(
        tuple(f"#/{key}/" for key in _DEFINITIONS)
    ):
        raise Inexpressible(f'a "$ref" to a place outside of "$defs" {NOT_IN_THIS_FORM}')
    return {**kept, **schema}


def is_plain_list(schema: Schema) -> bool:
    """True if a list's schema says nothing but what its items are, and how many there may be."""
    return not schema.keys() - {"type", "items", "minItems", "maxItems", *NOTES}


def branches_of(schema: Schema) -> list[object]:
    """The choices of a schema that says nothing else; none of any other."""
    for key in ("anyOf", "oneOf"):
        if key in schema and not schema.keys() - {key, *NOTES}:
            return list(schema[key])
    return []


@dataclass(frozen=True, slots=True)
class Text:
    """The texts that a string may be."""

    choices: tuple[str, ...] | None = None
    min_length: int = 0
    max_length: int | None = None
    pattern: str | None = None
    """A regular expression of the whole text."""

    @property
    def is_any(self) -> bool:
        return self == Text()

    def lark(self) -> str:
        """The right side of a terminal."""
        parts = [f"/{_slashed(self.pattern)}/"] if self.pattern is not None else []
        if self.min_length or self.max_length is not None:
            parts.append(f"/(?s:.{{{self.min_length},{'' if self.max_length is None else self.max_length}}})/")
        return " & ".join(parts) or ANY_TEXT


_STRING_WORDS: Final = {"type", "minLength", "maxLength", "pattern", "format", "enum", "const"}


def texts_of(schema: object, root: Schema) -> list[Text] | None:
    """The texts of a schema whose instances are all strings; None for any other. Formats are notes here.

    Raises: Inexpressible.
    """
    if types_of(schema, root) != STRING:
        return None
    schema = resolved(schema, root)
    assert isinstance(schema, dict), "it says that it is a string"
    if branches := branches_of(schema):
        return [text for each in branches for text in texts_of(each, root) or []]
    if other := sorted(schema.keys() - {*_STRING_WORDS, *NOTES, *_DEFINITIONS, OPTIONS}):
        raise Inexpressible(f"{', '.join(map(json.dumps, other))} {NOT_IN_THIS_FORM}")
    choices = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if choices is not None:
        return [Text(choices=tuple(each for each in choices if isinstance(each, str)))]
    pattern = schema.get("pattern")
    whole = None if pattern is None else _whole(pattern)
    return [Text(None, schema.get("minLength", 0), schema.get("maxLength"), whole)]


def _whole(pattern: str) -> str:
    """A regular expression of the whole text that a pattern of JSON schema finds something in."""
    begin, end = pattern.startswith("^"), pattern.endswith("$") and not pattern.endswith("\\$")
    if (begin or end) and _has_choice(pattern):
        raise Inexpressible(f'a "pattern" with a choice between anchors {NOT_IN_THIS_FORM}')
    inner = pattern[begin : len(pattern) - end]
    return f"{'' if begin else '(?s:.*)'}(?:{inner}){'' if end else '(?s:.*)'}"


def _has_choice(pattern: str) -> bool:
    """True if a `|` stands outside of parentheses and sets."""
    depth = 0
    for part in re.findall(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|[()|]", pattern, re.DOTALL):
        depth += (part == "(") - (part == ")")
        if part == "|" and depth == 0:
            return True
    return False


def _slashed(pattern: str) -> str:
    """A regular expression as it stands between slashes."""
    return re.sub(
        r"\\.|/|\n", lambda found: {"/": r"\/", "\n": r"\n"}.get(found[0], found[0]), pattern, flags=re.DOTALL
    )
