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

    Content is shown and a call is skipped, each in the order of the answer. Text between them (markers, and white space
    before a call) is skipped, too. Text that no token has, such as an unknown tool's call in JSON, lists nothing.

    [ shown or skipped )[ text that is not read yet, or incomplete )
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._waiting: deque[Logprob] = deque()
        """The tokens whose text is not read to its end."""
        self._text = ""
        """The characters that are not read yet."""
        self._char_ends: deque[int] = deque()
        """The places after them."""
        self._n_decoded = self._n_read = 0
        """The number of bytes of all tokens, and of the characters that are read."""
        self._flags = bytearray()
        """1 for each shown byte and 0 for each skipped one, from the first waiting token on."""
        self._is_after_call = False

    def add(self, drawn: Sequence[Logprob]) -> None:
        """Add sampled tokens. Tokens without a text are never listed."""
        for entry in drawn:
            if entry.token.text:
                self._char_ends.extend(self._ends_in(entry.token.piece))
                self._waiting.append(entry)

    def show(self, text: str) -> list[Logprob]:
        """Count text as shown. Returns the tokens whose text is now read to its end and was shown."""
        # The end of a call is not known here, and its text may have the same characters.
        at = self._text.rfind(text) if self._is_after_call else self._place_of(text)
        self._is_after_call = False
        return [] if at < 0 else [*self._pass(at, is_shown=False), *self._pass(len(text), is_shown=True)]

    def skip(self, text: str) -> list[Logprob]:
        """Count text as part of a call. Returns as `show`: the beginning of a token may have been shown."""
        self._is_after_call = True
        at = self._place_of(text)
        return [] if at < 0 else self._pass(at + len(text), is_shown=False)

    def finish(self, *, is_cut_off: bool) -> list[Logprob]:
        """The last tokens. If only the beginning of a token is shown, the returned token is cut to it. Hidden tokens
        are listed only if the answer was cut off in the middle of a character.
        """
        rest = [*self._waiting]
        self._waiting.clear()
        if is_cut_off and not self._text:
            return rest
        return [_part(entry, self._flags) for entry in rest[:1] if any(self._flags)]

    def _place_of(self, text: str) -> int:
        return 0 if self._text.startswith(text) else self._text.find(text)

    def _pass(self, n_chars: int, *, is_shown: bool) -> list[Logprob]:
        """Read characters. Returns the tokens whose text is now read to its end, without what was skipped."""
        self._text = self._text[n_chars:]
        for _ in range(min(n_chars, len(self._char_ends))):
            end = self._char_ends.popleft()
            self._flags += bytes([is_shown]) * (end - self._n_read)
            self._n_read = end
        found = []
        while self._waiting and (n_bytes := len(self._waiting[0].token.piece)) <= len(self._flags):
            entry, flags = self._waiting.popleft(), self._flags[:n_bytes]
            del self._flags[:n_bytes]
            if any(flags):
                found.append(entry if all(flags) else _part(entry, flags))
        return found

    def _ends_in(self, piece: bytes) -> Iterator[int]:
        """The places after the characters that the next bytes complete."""
        for value in piece:
            self._n_decoded += 1
            text = self._decoder.decode(bytes([value]))
            pending, _ = self._decoder.getstate()
            if _SURROGATE_HALF_FROM <= pending < _SURROGATE_HALF_BELOW:
                text, pending = text + self._decoder.decode(b"", final=True), b""
            self._text += text
            # If several characters end here, only the first may have several bytes: it began earlier and is invalid.
            end = self._n_decoded - len(pending)
            yield from range(end - len(text) + 1, end + 1)


def _part(entry: Logprob, flags: bytearray) -> Logprob:
    """The token's entry, cut to the bytes that are shown."""
    piece = bytes(byte for byte, is_shown in zip(entry.token.piece, flags, strict=False) if is_shown)
    text = piece.decode(errors="replace")
    raw = None if text.encode() == piece else piece
    return replace(entry, token=replace(entry.token, text=text, raw=raw))
