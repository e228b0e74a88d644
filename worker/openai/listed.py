"""The tokens of a message that are listed with their log-probabilities. A token is listed when its text is shown.

Owns the mapping from shown characters back to their tokens. Pure; runs on the front's loop.
"""

import codecs
from collections import deque
from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from worker.wire.jobs import Logprob

_SURROGATE_HALF_FROM, _SURROGATE_HALF_BELOW = b"\xed\xa0", b"\xee"
"""CPython's incremental decoder waits for a third byte after ED A0..BF, although no code point begins with these bytes
(RFC 3629)."""


class ListedTokens:
    """The tokens of one message. Law: the bytes of all returned tokens are the bytes of the shown text. If the answer
    was cut off, the first bytes of a character may follow.

    [ returned )[ text not shown or incomplete )
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._waiting: deque[tuple[int, Logprob]] = deque()
        """The tokens that were not returned yet, each with the place after its last byte."""
        self._char_ends: deque[int] = deque()
        """The places after the characters that are not shown yet."""
        self._n_read = self._n_shown = 0
        """The number of bytes of the tokens, and of those that are shown."""

    def add(self, drawn: Sequence[Logprob]) -> None:
        """Add sampled tokens. Tokens without a text are never listed."""
        for entry in drawn:
            if entry.token.text:
                self._char_ends.extend(self._ends_in(entry.token.piece))
                self._waiting.append((self._n_read, entry))

    def show(self, n_chars: int) -> list[Logprob]:
        """Count characters as shown. Returns the tokens whose text is now shown completely."""
        for _ in range(min(n_chars, len(self._char_ends))):
            self._n_shown = self._char_ends.popleft()
        shown = []
        while self._waiting and self._waiting[0][0] <= self._n_shown:
            shown.append(self._waiting.popleft()[1])
        return shown

    def finish(self, *, is_cut_off: bool) -> list[Logprob]:
        """The last tokens. If only the beginning of a token is shown, the returned token is cut to it. Hidden tokens
        are listed only if the answer was cut off in the middle of a character.
        """
        rest = [*self._waiting]
        self._waiting.clear()
        if is_cut_off:
            return [entry for _, entry in rest]
        return [
            _beginning(entry, len(entry.token.piece) - end + self._n_shown)
            for end, entry in rest[:1]
            if end - len(entry.token.piece) < self._n_shown
        ]

    def _ends_in(self, piece: bytes) -> Iterator[int]:
        """The places after the characters that the next bytes complete."""
        for value in piece:
            self._n_read += 1
            text = self._decoder.decode(bytes([value]))
            pending, _ = self._decoder.getstate()
            if _SURROGATE_HALF_FROM <= pending < _SURROGATE_HALF_BELOW:
                text, pending = text + self._decoder.decode(b"", final=True), b""
            # If several characters end here, only the first may have several bytes: it began earlier and is invalid.
            end = self._n_read - len(pending)
            yield from range(end - len(text) + 1, end + 1)


def _beginning(entry: Logprob, n_bytes: int) -> Logprob:
    """The token's entry, cut to the `n_bytes` that are shown."""
    piece = entry.token.piece[:n_bytes]
    text = piece.decode(errors="replace")
    raw = None if text.encode() == piece else piece
    return replace(entry, token=replace(entry.token, text=text, raw=raw))
