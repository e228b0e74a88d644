"""A call in another dress than the model's own: a JSON object with an offered tool's name and fitting arguments.

Small models write such objects in a code fence, or as their whole answer, instead of their markers. Owns the question
whether a JSON value is such a call. Pure.
"""

import json
from collections.abc import Mapping
from typing import Final

from worker.chat.values import is_value, loaded
from worker.wire.names import NAME_KEYS

MAX_HELD: Final = 65536
"""The most characters of a possible call that are held back."""
ARGUMENT_KEYS: Final = ("arguments", "parameters", "args", "input")
FIRST_KEYS: Final = frozenset({*NAME_KEYS, *ARGUMENT_KEYS, "id", "type"})
"""The keys that an object in this dress may begin with."""
_OTHER_KEYS: Final = frozenset({"id", "type", "tool_call_id"})

FENCES: Final = {
    "```": "```",
    "<tools>": "</tools>",
    "<tool_call>": "</tool_call>",
    "<function_call>": "</function_call>",
}
"""The openings of such a dress, with their ends."""


def call_of(value: object, tools: Mapping[str, object]) -> tuple[str, str] | None:
    """Return the name and the arguments' JSON text of a value that is an offered tool's call, or None."""
    if not isinstance(value, dict):
        return None
    if isinstance(value.get("function"), dict) and value.keys() <= {"function", *_OTHER_KEYS}:
        return call_of(value["function"], tools)
    names = [value[key] for key in NAME_KEYS if key in value]
    arguments = [value[key] for key in ARGUMENT_KEYS if key in value]
    if len(names) != 1 or len(arguments) != 1 or not value.keys() <= {*NAME_KEYS, *ARGUMENT_KEYS, *_OTHER_KEYS}:
        return None
    name, given = names[0], arguments[0]
    if isinstance(given, str) and is_value(inner := loaded(given)):
        given = inner
    if not isinstance(name, str) or name not in tools or not isinstance(given, dict) or not fits(given, tools[name]):
        return None
    return name, json.dumps(given, ensure_ascii=False)


def fits(arguments: Mapping[str, object], schema: object) -> bool:
    """Return True if the arguments have the names that the schema has: all that it requires, and no others if it lists
    them."""
    if not isinstance(schema, Mapping):
        return True
    required = schema.get("required")
    if isinstance(required, list | tuple) and not all(name in arguments for name in required):
        return False
    properties = schema.get("properties")
    is_listed = isinstance(properties, Mapping) and bool(properties) and not schema.get("additionalProperties")
    return not is_listed or not isinstance(properties, Mapping) or arguments.keys() <= properties.keys()
