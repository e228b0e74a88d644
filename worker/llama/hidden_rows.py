"""The hidden rows of each slot's last tokens: what the model's last layer has made of them, which its next-token head
reads.

Owns how many are kept, and which of them are of the slot's text as it is now. Pure but for numpy; the step thread's.
"""

import numpy as np
from numpy.typing import NDArray

from worker.limits import MAX_HIDDEN_ROWS
from worker.wire.jobs import SlotId

Rows = NDArray[np.float32]


class HiddenRows:
    """The engine's HiddenRows (backend.py): of each slot the rows of [begin, end) of its positions, at most
    MAX_HIDDEN_ROWS."""

    def __init__(self, n_slots: int, length: int) -> None:
        """`length`: the numbers of a row."""
        self.length = length
        self._rows: Rows = np.zeros((n_slots, MAX_HIDDEN_ROWS, length), np.float32)
        """The row of a position lies at its remainder."""
        self._spans: dict[SlotId, range] = {}
        self._firsts: dict[SlotId, int] = {}

    @property
    def n_bytes(self) -> int:
        return self._rows.nbytes

    def take(self, slot: SlotId, end: int, rows: Rows) -> None:
        """Keep the rows of the positions before `end`, which were computed now. What was kept of later ones is of other
        tokens; what was kept of earlier ones stays if none is missing between."""
        rows = rows[-MAX_HIDDEN_ROWS:]
        begin, span = end - len(rows), self._span(slot)
        self._rows[slot, np.arange(begin, end) % MAX_HIDDEN_ROWS] = rows
        first = span.start if span.start <= begin <= span.stop else begin
        self._spans[slot] = range(max(first, end - MAX_HIDDEN_ROWS), end)

    def forget(self, slot: SlotId) -> None:
        """Drop all rows of a slot, which has another text now."""
        self._spans.pop(slot, None)

    def of(self, slot: SlotId, position: int) -> Rows | None:
        """Return the row of a position, if it is kept."""
        return self._rows[slot, position % MAX_HIDDEN_ROWS] if position in self._span(slot) else None

    def kept(self, slot: SlotId, n_tokens: int) -> range:
        """Drop the rows from position n_tokens on, which are of wrong drafts; return the positions that have one."""
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
