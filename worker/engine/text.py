"""Token bytes become text that may be shown: whole code points, cut at stop strings.

This module owns what must wait: the bytes of an unfinished code point, and text that may yet become a stop string. It
knows nothing of tokens, jobs or events. It runs on the engine's step thread, with one TextStream per job.

    all pushed bytes = [ shown for good )[ held: the longest that may begin a stop )[ unfinished code point )

Every later match begins inside the held part, so text once shown is never part of a stop.
"""

import codecs
from collections.abc import Sequence as Seq

_Utf8Decoder = codecs.getincrementaldecoder("utf-8")

_SURROGATE_HALF_FROM, _SURROGATE_HALF_BELOW = b"\xed\xa0", b"\xee"
"""CPython's incremental decoder waits for a third byte after ED A0..BF, though no code point begins so (RFC 3629)."""


class TextStream:
    """The text of one job. Law: for any chunking, all returned texts, joined, are decode(all bytes, "replace") without
    an unfinished code point at the very end, cut where the stop begins.

    A stop ends the text at the first character that completes one; if that character completes several, the first in
    the request is the one that matched (docs/protocol.md#post-execute).
    """

    def __init__(self, stops: Seq[str]) -> None:
        """`stops` are in the order of the request, and none of them is empty."""
        self.matched: str | None = None
        self._decoder = _Utf8Decoder("replace")
        self._is_unfinished = False
        """True within a code point."""
        self._watches = tuple(_StopWatch(stop) for stop in stops)
        self._held = ""

    def push(self, piece: bytes) -> str:
        """Return the text that may be shown now. The piece that completes a stop sets `matched`: then the text before
        the stop is returned, and never any text after it.
        """
        if self.matched is not None:
            return ""
        text = self._decode(piece)
        if not self._watches:
            return text
        for n_read, char in enumerate(text, start=1):
            self.matched = self._completed_by(char)
            if self.matched is not None:
                return self._cut_before_stop(text[:n_read], self.matched)
        return self._hold_back(text)

    def part(self) -> str:
        """Return the held text, at a place that no stop spans; the text goes on after it. An unfinished code point is
        dropped."""
        for watch in self._watches:
            watch.n_matched = 0
        return self.flush()

    def flush(self) -> str:
        """Return the held text at the end of generation, because no stop has followed. An unfinished code point is
        dropped.

        Nothing may be pushed afterwards.
        """
        self._decoder.reset()
        self._is_unfinished = False
        held, self._held = self._held, ""
        return held

    def _decode(self, piece: bytes) -> str:
        if piece.isascii() and not self._is_unfinished:
            return piece.decode()
        text = self._decoder.decode(piece)
        pending, _ = self._decoder.getstate()
        if _SURROGATE_HALF_FROM <= pending < _SURROGATE_HALF_BELOW:
            text += self._decoder.decode(b"", final=True)
            pending = b""
        self._is_unfinished = bool(pending)
        return text

    def _completed_by(self, char: str) -> str | None:
        completed = [watch.stop for watch in self._watches if watch.advance(char)]
        return completed[0] if completed else None

    def _cut_before_stop(self, text: str, stop: str) -> str:
        text, self._held = self._held + text, ""
        return text[: len(text) - len(stop)]

    def _hold_back(self, text: str) -> str:
        text = self._held + text
        n_held = max(watch.n_matched for watch in self._watches)
        edge = len(text) - n_held
        self._held = text[edge:]
        return text[:edge]


class _StopWatch:
    """Follows how much of one stop string the text now ends with (Knuth, Morris, Pratt 1977).

    `n_matched` is the length of the longest prefix of the stop that is a suffix of the text read so far.
    """

    def __init__(self, stop: str) -> None:
        assert stop, "an empty stop string is refused at the door"
        self.stop = stop
        self.n_matched = 0
        self._borders = _borders(stop)

    def advance(self, char: str) -> bool:
        """Read one character; True when it completes the stop. Amortised O(1); not to be called after True."""
        self.n_matched = _extend(self.stop, self._borders, self.n_matched, char)
        return self.n_matched == len(self.stop)


def _borders(stop: str) -> list[int]:
    """Return for each n the length of the longest proper prefix of stop[:n] that is also its suffix (0 for n < 2)."""
    borders = [0, 0]
    for char in stop[1:]:
        borders.append(_extend(stop, borders, borders[-1], char))
    return borders


def _extend(stop: str, borders: list[int], n_matched: int, char: str) -> int:
    """Return the longest prefix of `stop` that ends a text whose longest was `n_matched` before `char` came."""
    while n_matched and stop[n_matched] != char:
        n_matched = borders[n_matched]
    return n_matched + (stop[n_matched] == char)
