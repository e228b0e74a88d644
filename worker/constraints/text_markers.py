"""Markers in a text that is free: control tokens and texts between them, which any tokens may spell.

The bytes by which such a marker is found, its spelling, and the markers around a reasoning that no token divides. Used
on the step thread.
"""

from worker.constraints.vocabulary import SPECIAL, Tokens


class TextMarker:
    """A text of control tokens, and of texts between them."""

    def __init__(self, parts: tuple[str | int, ...], tokens: Tokens) -> None:
        self._tokens = tokens
        self._parts = [
            (part, part.encode() if isinstance(part, str) else SPECIAL + tokens.name(part)) for part in parts
        ]
        self.data = b"".join(data for _, data in self._parts)
        """The bytes that are looked for. A control token's name stands behind a byte that no text has."""

    def spelled(self, rest: bytes) -> list[int]:
        """The tokens of the text and the bytes behind it; empty if they cannot be spelled."""
        found: list[int] = []
        for place, (part, data) in enumerate(self._parts, 1):
            spelled = (
                [part] if isinstance(part, int) else self._tokens.spelled(data + rest * (place == len(self._parts)))
            )
            if not spelled:
                return []
            found += spelled
        return found

    def rest(self, n_bytes: int) -> list[int]:
        """The tokens of the marker behind its first bytes."""
        found: list[int] = []
        for part, data in self._parts:
            if isinstance(part, int):
                found += [part] if n_bytes <= 0 else []
            elif n_bytes < len(data):
                found += self._tokens.spelled(data[max(0, n_bytes) :])
            n_bytes -= len(data)
        return found


class TextReasoning:
    """The markers around a reasoning that are text."""

    def __init__(self, begin: TextMarker, end: TextMarker, *, is_ended_by_call: bool) -> None:
        """No white space ends `end`: what is forced stops where the reasoning does."""
        self.is_ended_by_call = is_ended_by_call
        self._closing = end
        self._begin, self._end = begin.data.strip(), end.data.strip()
        self._n_heard = max(len(self._begin), len(end.data))

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
        whole = self._closing.data
        n_space = len(whole) - len(self._end)
        n_had = next(
            n for n in range(len(whole) - 1, -1, -1) if heard.endswith(whole[n_space if n > n_space else 0 : n])
        )
        return self._closing.rest(n_had)
