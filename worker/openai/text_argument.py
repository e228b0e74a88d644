"""The text of a custom tool's call, read out of the JSON of its arguments while that comes.

Pure. `push` is called for every piece of the arguments.
"""

import re

import msgspec

from worker.openai.tools import TEXT_ARGUMENT

_OPENING = re.compile(rf'\s*\{{\s*"{TEXT_ARGUMENT}"\s*:\s*"')
_UNITS = re.compile(r'(?:[^"\\]|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})*')
"""The characters of a JSON string that are complete."""
_HALF_PAIR = re.compile(r"(?<!\\)(?:\\\\)*(\\u[dD][89abAB][0-9a-fA-F]{2})\Z")
"""A high surrogate at the end, whose other half may follow."""
_MAX_OPENING_CHARS = 256
"""A text whose first so many characters are no opening is read only when it is complete."""


class TextArgument:
    """Reads the one text argument of a custom tool out of the JSON of its arguments, as the JSON comes."""

    def __init__(self) -> None:
        self._all: list[str] = []
        self._rest = ""
        """The JSON that is not decoded yet."""
        self._is_open = False

    def push(self, part: str) -> str:
        """The characters of the argument that the part completes."""
        self._all.append(part)
        self._rest += part
        if not self._is_open:
            found = _OPENING.match(self._rest[:_MAX_OPENING_CHARS])
            if found is None:
                return ""
            self._is_open, self._rest = True, self._rest[found.end() :]
        units = _UNITS.match(self._rest)
        assert units is not None  # it matches nothing, too
        end = units.end()
        half = _HALF_PAIR.search(self._rest, 0, end)
        if half is not None and not self._rest.startswith('"', end):
            end -= len(half[1])
        text = _decoded(self._rest[:end])
        self._rest = self._rest[end:]
        return text

    def finish(self) -> str:
        """The characters that are left at the end. Arguments of another form are a text as they are."""
        if self._is_open:
            return ""
        arguments = "".join(self._all)
        try:
            value = msgspec.json.decode(arguments)
        except (msgspec.DecodeError, RecursionError):
            return arguments
        text = value.get(TEXT_ARGUMENT) if isinstance(value, dict) else None
        return text if isinstance(text, str) else arguments


_ESCAPES = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_ESCAPE = re.compile(r"\\u([0-9a-fA-F]{4})|\\(.)", re.DOTALL)


def _decoded(units: str) -> str:
    """The text of complete characters of a JSON string; half a surrogate pair becomes U+FFFD."""
    if "\\" not in units:
        return units
    text = _ESCAPE.sub(lambda found: chr(int(found[1], 16)) if found[1] else _ESCAPES.get(found[2], found[2]), units)
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
