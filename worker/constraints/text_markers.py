"""Markers in a text that is free: control tokens and texts between them, which any tokens may spell.

The bytes by which such a marker is found, its spelling, and the markers around a reasoning that no token divides. Used
on the step thread.
"""

from dataclasses import dataclass

from worker.constraints.vocabulary import SPECIAL, Tokens


@dataclass(frozen=True, slots=True)
class Begin:
    """A text that begins a call: control tokens, and texts between them."""

    parts: tuple[str | int, ...]

    def encoded(self, tokens: Tokens) -> bytes:
        """The bytes that are looked for. A control token's name stands behind a byte that no text has."""
        return b"".join(part.encode() if isinstance(part, str) else SPECIAL + tokens.name(part) for part in self.parts)

    def spelled(self, rest: bytes, tokens: Tokens) -> list[int]:
        """The tokens of the text and the bytes behind it; empty if they cannot be spelled."""
        found: list[int] = []
        for place, part in enumerate(self.parts):
            if isinstance(part, int):
                found.append(part)
                continue
            data = part.encode() + (rest if place == len(self.parts) - 1 else b"")
            spelled = tokens.spelled(data)
            if not spelled:
                return []
            found += spelled
        return found

    def rest(self, n_bytes: int, tokens: Tokens) -> list[int]:
        """The tokens of the marker behind its first bytes, as `encoded` has them."""
        found: list[int] = []
        for part in self.parts:
            size = len(part.encode() if isinstance(part, str) else SPECIAL + tokens.name(part))
            if isinstance(part, int):
                found += [part] if n_bytes <= 0 else []
            elif n_bytes < size:
                found += tokens.spelled(part.encode()[max(0, n_bytes) :])
            n_bytes -= size
        return found


class TextReasoning:
    """The markers around a reasoning that are text."""

    def __init__(self, begin: Begin, end: Begin, tokens: Tokens, *, is_ended_by_call: bool) -> None:
        """No white space ends `end`: what is forced stops where the reasoning does."""
        self.is_ended_by_call = is_ended_by_call
        self._tokens = tokens
        self._closing = end
        self._begin, self._whole_end = begin.encoded(tokens).strip(), end.encoded(tokens)
        self._end = self._whole_end.strip()
        self._n_heard = max(len(self._begin), len(self._whole_end))

    def after_begin(self, text: bytes) -> bytes | None:
        """The text behind the marker that begins the reasoning; None if it is not there."""
        _, found, rest = text.partition(self._begin)
        return rest if found else None

    def after_end(self, text: bytes) -> bytes | None:
        """The text behind the marker that ends the reasoning; None if it is not there."""
        _, found, rest = text.partition(self._end)
        return rest if found else None

    def heard(self, text: bytes) -> bytes:
        """The end of a text in which a marker may have begun."""
        return text[-self._n_heard :]

    def closing(self, heard: bytes) -> list[int]:
        """The tokens that close the reasoning, without what the text has of them already."""
        n_space = len(self._whole_end) - len(self._end)
        n_had = next(
            n
            for n in range(len(self._whole_end) - 1, -1, -1)
            if heard.endswith(self._whole_end[n_space if n > n_space else 0 : n])
        )
        return self._closing.rest(n_had, self._tokens)
