"""The width of a GPU's decode steps while jobs end: it stays for a while, because a change of width takes time.

A step of another width is handed over anew, and its graph is captured anew: milliseconds in which no stream has a
token. So a step with fewer jobs keeps its width, filled up with unread rows, while those cost next to
nothing, and until they have cost together as much as a change. Whatever comes, that is the price of one change at most;
and where another job ends or a prompt is read before, a change is saved. Pure; step thread.
"""

from worker.engine.drafting.pricing import interpolated
from worker.wire.load import RowCosts

MAX_SURPLUS = 0.1
"""The share of its time by which a step may be longer than one without the unread rows."""


class HeldWidth:
    """`row_costs` as Loaded has them; `change_s`: the extra seconds of the steps behind one change of width."""

    def __init__(self, row_costs: RowCosts, change_s: float) -> None:
        self._seconds = interpolated(row_costs)
        self._change_s = change_s
        self._width, self._lost_s = 0, 0.0

    def of(self, n_rows: int) -> int:
        """Return the width of the next step, which has `n_rows` rows, one for each job."""
        surplus_s = self._surplus_s(n_rows)
        if surplus_s is None or self._lost_s + surplus_s > self._change_s:
            self._width, self._lost_s = n_rows, 0.0
        else:
            self._lost_s += surplus_s
        return self._width

    def forget(self) -> None:
        """A step of another kind comes between: the next one is handed over anew, whatever its width."""
        self._width, self._lost_s = 0, 0.0

    def _surplus_s(self, n_rows: int) -> float | None:
        """Return what the last width costs beyond the step's own; None if it is not to be kept."""
        if not n_rows < self._width <= len(self._seconds):
            return None
        own_s = self._seconds[n_rows - 1]
        surplus_s = self._seconds[self._width - 1] - own_s
        return surplus_s if surplus_s <= MAX_SURPLUS * own_s else None
