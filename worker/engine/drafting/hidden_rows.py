"""The tokens of each slot that have a hidden row: the last layer's output, which the model's next-token head reads."""

from worker.limits import MAX_HIDDEN_ROWS
from worker.wire.jobs import SlotId


class HiddenRows:
    """The positions [begin, end) of each slot that have a row, at most MAX_HIDDEN_ROWS. A head reads a token and the
    row of the token before it. Its cells of a slot begin with a token of the text, whose position is `first`."""

    def __init__(self) -> None:
        self._spans: dict[SlotId, range] = {}
        self._firsts: dict[SlotId, int] = {}

    def add(self, slot: SlotId, end: int, n_rows: int) -> None:
        """Count the rows of the positions before `end`, which were computed now. Those of later positions are of other
        tokens; those of earlier ones stay if none is missing between."""
        begin, span = end - n_rows, self._span(slot)
        start = span.start if span.start <= begin <= span.stop else begin
        self._spans[slot] = range(max(start, end - MAX_HIDDEN_ROWS), end)

    def forget(self, slot: SlotId) -> None:
        """Drop all rows of a slot, which has another text now."""
        self._spans.pop(slot, None)

    def has(self, slot: SlotId, position: int) -> bool:
        return position in self._span(slot)

    def kept(self, slot: SlotId, n_tokens: int) -> range:
        """Drop the rows from position n_tokens on, which are of wrong drafts. Return the positions that have a row."""
        span = self._span(slot)
        end = min(span.stop, n_tokens)
        self._spans[slot] = range(min(span.start, end), end)
        return self._spans[slot]

    def begin(self, slot: SlotId, first: int) -> None:
        """Let the head's cells of a slot begin with the token at position `first`."""
        self._firsts[slot] = first

    def first(self, slot: SlotId) -> int:
        return self._firsts.get(slot, 0)

    def _span(self, slot: SlotId) -> range:
        return self._spans.get(slot, range(0))
