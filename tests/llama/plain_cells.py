"""Cells and their owners, one by one, with which the bookkeeping of spans is compared."""

from itertools import count

from worker.wire.jobs import SlotId


class PlainCells:
    """`of[slot]`: the slot's cells in the order of their positions, each a number of its own."""

    def __init__(self, n_slots: int) -> None:
        self.of: list[list[int]] = [[] for _ in range(n_slots)]
        self._fresh = count()

    @property
    def n_cells(self) -> int:
        return len({cell for cells in self.of for cell in cells})

    def grow(self, slot: SlotId, n: int) -> None:
        self.of[slot] += [next(self._fresh) for _ in range(n)]

    def share(self, source: SlotId, target: SlotId, n: int) -> None:
        self.of[target] = self.of[source][:n]

    def cut(self, slot: SlotId, n: int) -> None:
        del self.of[slot][n:]

    def n_shared(self, slot: SlotId) -> int:
        """Cells of the slot that others have too."""
        others = {cell for other, cells in enumerate(self.of) if other != slot for cell in cells}
        return sum(cell in others for cell in self.of[slot])
