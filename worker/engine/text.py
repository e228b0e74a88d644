"""Token bytes become text that may be shown: whole code points, cut at stop strings.

This module owns what must wait: the bytes of an unfinished code point, and text that may yet become a stop string. It
knows nothing of tokens, jobs or events.

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
        self._stops = tuple(stops)
        self._held = ""

    def push(self, piece: bytes) -> str:
        """Return the text that may be shown now. The piece that completes a stop sets `matched`: then the text before
        the stop is returned, and never any text after it.
        """
        if self.matched is not None:
            return ""
        return self._looked_at(self._decode(piece)) if self._stops else self._decode(piece)

    def hush(self, *, is_quiet: bool) -> None:
        """Say whether the text from here on is a reasoning."""

    def flush(self) -> str:
        """Return the held text, at its end or at a place that no stop spans. An unfinished code point is dropped."""
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

    def _looked_at(self, text: str) -> str:
        """Return what may be shown now of the held text and this one."""
        text, self._held = self._held + text, ""
        found = [(at + len(stop), n) for n, stop in enumerate(self._stops) if (at := text.find(stop)) >= 0]
        if found:
            end, n = min(found)
            self.matched = self._stops[n]
            return text[: end - len(self.matched)]
        edge = len(text) - max((n_begun(text, stop) for stop in self._stops), default=0)
        self._held = text[edge:]
        return text[:edge]


class ThoughtfulStream(TextStream):
    """A TextStream that finds no stop in the reasoning, in its markers, and in white space behind it, which belongs to
    its marker."""

    def __init__(self, stops: Seq[str], markers: tuple[str, str] | None = None, *, is_thought: bool = False) -> None:
        """`markers` stand around the reasoning if they are text; what may become one waits. `is_thought` says that
        the text begins in the reasoning."""
        super().__init__(stops)
        self._markers = markers and (markers[0].strip(), markers[1].strip())
        self._waiting = ""
        self._is_quiet = is_thought
        self._skips_space = False

    def hush(self, *, is_quiet: bool) -> None:
        self._skips_space = self._skips_space or (self._is_quiet and not is_quiet)
        self._is_quiet = is_quiet

    def flush(self) -> str:
        waiting, self._waiting = "" if self.matched is not None else self._waiting, ""
        return self._heard(waiting) + super().flush()

    def _looked_at(self, text: str) -> str:
        if self._markers is None:
            return self._heard(text)
        self._waiting += text
        shown = ""
        while True:
            marker = self._markers[self._is_quiet]
            before, found, rest = self._waiting.partition(marker)
            edge = len(before) - (0 if found else n_begun(before, marker))
            self._waiting = before[edge:] + rest
            shown += self._heard(before[:edge])
            if not found or self.matched is not None:
                break
            shown, self._held = shown + self._held + found, ""
            self.hush(is_quiet=not self._is_quiet)
        return shown

    def _heard(self, text: str) -> str:
        if self._is_quiet:
            return text
        n_space = len(text) - len(text.lstrip()) if self._skips_space else 0
        self._skips_space = self._skips_space and n_space == len(text)
        return text[:n_space] + super()._looked_at(text[n_space:])


def n_begun(text: str, sought: str) -> int:
    """Return how many characters at the end of a text may begin the sought one, which it does not contain."""
    at = max(0, len(text) - len(sought) + 1) - 1
    while (at := text.find(sought[0], at + 1)) >= 0:
        if sought.startswith(text[at:]):
            return len(text) - at
    return 0
