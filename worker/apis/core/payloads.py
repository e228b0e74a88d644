"""The payloads of pictures and files, removed from a large JSON text while it arrives.

No byte that breaks a rule of JSON is removed: a reader finds the same value or the same fault as in the whole text.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

MIN_PAYLOAD_BYTES = 4096
"""A shorter string stays as it is."""

MAX_TOKENS = 2**18
"""The most brackets, names and texts that are followed, each for a microsecond. A conversation of 2 MiB has a tenth."""

_STEP_BYTES, _STEP_TOKENS = 8 * 1024, 256
"""A step reads about so much, which takes less than a millisecond."""

_MAX_NAME_BYTES, _MAX_ESCAPE_BYTES = 24, 6
"""No longer string spells `type`, whose letters may be four escapes."""

_QUOTE, _BACKSLASH, _COLON, _COMMA, _BRACE, _BRACKET = b'"\\:,{['
_IN_OBJECT = re.compile(rb'[^"{}\[\],:]*+(.)', re.DOTALL)
_ELSEWHERE = re.compile(rb'(?:[^"{}\[\]]++|"(?:[^"\\]++|\\.)*+")*+(.)', re.DOTALL)
"""Only brackets matter in a list and beside the way to a place, and strings whose end has not come."""

_STRING = re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL)
_PAYLOAD = re.compile(rb'(?:[ !#-\[\]-~]++|\\(?:["\\/bfnrt]|u00[0-9a-fA-F]{2}))*+')
"""Base64 and URLs in every spelling of JSON. The rest of a string that goes on in another way is no payload."""


class MediaPlaces(NamedTuple):
    """The payloads of a request: strings at `paths`, such as `.input[].output[].image_url`, in objects whose `type` is
    one of `kinds`. An empty kind stands for objects without a type."""

    paths: frozenset[str] = frozenset()
    kinds: frozenset[str] = frozenset()


NO_PLACES = MediaPlaces()


@dataclass(slots=True)
class _Container:
    """An open object or list on the way to a place."""

    path: bytes  # with which the paths of its members begin
    n_before: int  # payloads that were found before it
    kind: bytes = b""  # the value of its last member `type`, or what is no kind


class Payloads:
    """`feed` and `finish` make `kept`: the text, in which every payload is an empty string.

    The type of an object may follow its payloads. Until the object ends, they are kept as far as `max_bytes` have room
    for them.
    """

    def __init__(self, places: MediaPlaces, max_bytes: int) -> None:
        self.kept = bytearray()
        self.is_too_long = False
        """True if more than `max_bytes` are left without the payloads, or more than MAX_TOKENS are to be followed."""
        self._places = frozenset(path.encode() for path in places.paths)
        self._kinds = frozenset(kind.encode() for kind in places.kinds)
        self._ways = frozenset(place[: end.end()] for place in self._places for end in re.finditer(rb"\.|\[\]", place))
        self._max_bytes = max_bytes
        self._open = [_Container(b"", 0)]
        self._n_beside = 0  # the depth within a value that is not on the way to a place
        self._path: bytes | None = b""  # of the value that comes next; None before a name, and beside the way
        # The payloads of open objects: where each begins and ends in `kept`, which is the same if it was removed.
        self._found: list[tuple[int, int]] = []
        self._begin, self._name = 0, b""  # where the latest string begins, and the beginning of its text
        self._is_in_string = self._is_payload = self._is_removed = False
        self._n_tokens = 0
        self._rest = b""  # the beginning of an escape

    def feed(self, data: bytes) -> Iterator[None]:
        """Read on. Yields after each step, so that others can run."""
        data = self._rest + data
        before, at = -1, 0
        while before < at < len(data) and not self.is_too_long:
            stop = min(len(data), at + _STEP_BYTES)
            for _ in range(_STEP_TOKENS):
                before, at = at, (self._string if self._is_in_string else self._between)(data, at)
                if not before < at < stop:
                    break
            self._limit()
            yield
        self._rest = data[at:]

    def finish(self) -> None:
        """The text has ended."""
        self.kept += self._rest
        self._limit()

    def _between(self, data: bytes, at: int) -> int:
        """Read the next token. Returns where it ends, or the step."""
        stop, around = at + _STEP_BYTES, self._open[-1]
        is_in_list = around.path.endswith(b"]")
        found = (_ELSEWHERE if self._n_beside or is_in_list else _IN_OBJECT).match(data, at, stop)
        if found is None:
            self.kept += data[at:stop]
            return min(len(data), stop)
        self.kept += found[0]
        self._n_tokens += 1
        token = found[0][-1]
        if token == _QUOTE:
            self._begin, self._is_in_string, self._is_payload = len(self.kept), True, self._path in self._places
        elif token == _COLON:
            self._path = around.path + self._name
            if self._name == b"type" or _BACKSLASH in self._name:
                around.kind = b"\\"  # until a text follows; an escaped name may be `type`, too
        elif token == _COMMA:
            self._path = None
        elif token in (_BRACE, _BRACKET):
            self._enter(around.path if is_in_list else self._path, b"." if token == _BRACE else b"[]")
        else:
            self._leave()
        return found.end()

    def _enter(self, path: bytes | None, kind: bytes) -> None:
        if not self._n_beside and path is not None and path + kind in self._ways:
            self._open.append(_Container(path + kind, len(self._found)))
        else:
            self._n_beside += 1
        self._path = None

    def _leave(self) -> None:
        self._path = None
        if self._n_beside:
            self._n_beside -= 1
        elif len(self._open) > 1:
            self._limit()
            left = self._open.pop()
            mine = self._found[left.n_before :]
            if left.kind in self._kinds:
                self._remove(mine)
            else:
                self.is_too_long |= any(begin == end for begin, end in mine)
            del self._found[left.n_before :]

    def _string(self, data: bytes, at: int) -> int:
        """Read on in a string. Returns where it ends, or the step, or an escape that has not come whole."""
        stop = min(len(data), at + _STEP_BYTES)
        found = (_PAYLOAD if self._is_payload else _STRING).match(data, at, stop)
        assert found is not None
        end = found.end()
        if not self._is_removed:
            self.kept += found[0]
        if end == stop or (data[end] == _BACKSLASH and stop - end < _MAX_ESCAPE_BYTES):
            return end
        if self._is_payload:
            if self._is_removed or len(self.kept) - self._begin >= MIN_PAYLOAD_BYTES:
                self._found.append((self._begin, len(self.kept)))
            self._is_payload = self._is_removed = False
        if data[end] != _QUOTE:
            return self._string(data, end)
        self._is_in_string = False
        self._name = bytes(self.kept[self._begin : self._begin + _MAX_NAME_BYTES + 1])
        if self._path == self._open[-1].path + b"type":
            self._open[-1].kind = self._name
        self.kept.append(_QUOTE)
        return end + 1

    def _limit(self) -> None:
        """If there is no more room, remove all payloads, also those that may turn out to be texts: then the text is too
        long."""
        if len(self.kept) > self._max_bytes:
            if self._is_payload:
                del self.kept[self._begin :]
                self._is_removed = True
            n_before = len(self.kept)
            self._remove(self._found)
            self._begin -= n_before - len(self.kept)
            self._found = [(0, 0)] * len(self._found)
        self.is_too_long |= max(len(self.kept) - self._max_bytes, self._n_tokens - MAX_TOKENS) > 0

    def _remove(self, payloads: list[tuple[int, int]]) -> None:
        for begin, end in reversed(payloads):
            del self.kept[begin:end]
