"""Tool calls in plain JSON instead of the model's own format: an object with a tool's name and fitting arguments.

Small models write such objects in a code fence, or without anything around them, instead of their markers.
"""

import json
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final

from worker.formats.read.deltas import Deltas
from worker.formats.read.scan import NotACallError, Scan, Steps
from worker.formats.read.values import is_value, loaded
from worker.wire.names import NAME_KEYS

MAX_HELD: Final = 65536
"""The most characters of a possible call that are held back."""
ARGUMENT_KEYS: Final = ("arguments", "parameters", "args", "input")
FIRST_KEYS: Final = frozenset({*NAME_KEYS, *ARGUMENT_KEYS, "id", "type"})
"""The keys that such an object may begin with."""
_OTHER_KEYS: Final = frozenset({"id", "type", "tool_call_id"})

BETWEEN: Final = re.compile(r"[\s,;\[\]]*")
"""The text between objects."""
FENCES: Final = {
    "```": "```",
    "<tools>": "</tools>",
    "<tool_call>": "</tool_call>",
    "<function_call>": "</function_call>",
}
"""The openings around such objects, with their ends."""


class PlainCallReader:
    """Reads the objects of one answer, each from the scan's text into deltas."""

    def __init__(self, scan: Scan, deltas: Deltas, is_sure: Callable[[str], bool]) -> None:
        """`is_sure` says whether the model was sure of a tool's name."""
        self._scan = scan
        self._deltas = deltas
        self._is_sure = is_sure

    def read(self, k: int, end: str) -> Steps[bool]:
        """Read JSON objects from offset k, each a call when it is complete. If there is an end marker, it or another
        object must follow each. Return False if there is no call."""
        scan, deltas = self._scan, self._deltas
        n_calls = deltas.n_calls
        with suppress(NotACallError):
            while True:
                k = yield from self._bounded(scan.after_space(k, BETWEEN))
                if deltas.n_calls > n_calls and not (yield from scan.char_at(k)):
                    scan.take(k)
                yield from self._glance(k)
                after = yield from self._bounded(scan.after_value(k))
                call = call_of(loaded(scan.ahead(k, after)), deltas.tools)
                if call is None or not self._is_sure(call[0]):
                    break
                k = (yield from self._bounded(scan.after_space(after, BETWEEN))) if end else after
                closed = (yield from scan.after_token(k, end)) if end else -1
                if end and closed < 0 and (yield from scan.char_at(k)) not in ("{", ""):
                    break
                scan.take(max(k, closed))
                k = 0
                deltas.begin(call[0])
                deltas.argue(call[1])
                deltas.end()
                if closed >= 0:
                    break
                deltas.skips_space = not end
        return deltas.n_calls > n_calls

    def _glance(self, k: int) -> Steps[None]:
        """Refuse an object early that is no call: by its first key, and by its name."""
        while (char := (yield from self._scan.char_at(k))) and char in "[{ \t\r\n":
            k += 1
        if char != '"':
            raise NotACallError
        end = yield from self._bounded(self._scan.after_string(k))
        key = loaded(self._scan.ahead(k, end))
        colon = yield from self._scan.after_space(end)
        if key not in FIRST_KEYS or (yield from self._scan.char_at(colon)) != ":":
            raise NotACallError
        k = yield from self._scan.after_space(colon + 1)
        if key in NAME_KEYS and (yield from self._scan.char_at(k)) == '"':
            end = yield from self._bounded(self._scan.after_string(k))
            if loaded(self._scan.ahead(k, end)) not in self._deltas.tools:
                raise NotACallError

    def _bounded(self, steps: Steps[int]) -> Steps[int]:
        """Run steps that hold back text, as long as it is not longer than a call."""
        while True:
            try:
                next(steps)
            except StopIteration as stop:
                if stop.value > MAX_HELD:
                    raise NotACallError from None
                return int(stop.value)
            if self._scan.n_ahead > MAX_HELD:
                raise NotACallError
            yield


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
