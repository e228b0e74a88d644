"""The width of a GPU's decode steps while jobs end: it stays for a while, because a change of width takes time.

A step of another width is handed over anew, and its graph is captured anew: milliseconds in which no stream has a
token. So a step with fewer jobs keeps its width, filled up with unread rows, while those cost next to
nothing, and until they have cost together as much as a change. Whatever comes, that is the price of one change at most;
and where another job ends or a prompt is read before, a change is saved. Pure; step thread.
"""

from math import inf

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
        is_known = n_rows < self._width <= len(self._seconds)
        own_s, held_s = (self._seconds[n_rows - 1], self._seconds[self._width - 1]) if is_known else (0.0, inf)
        self._lost_s += held_s - own_s
        if held_s - own_s > MAX_SURPLUS * own_s or self._lost_s > self._change_s:
            self._width, self._lost_s = n_rows, 0.0
        return self._width

    def forget(self) -> None:
        """A step of another kind comes between: the next one is handed over anew, whatever its width."""
        self._width, self._lost_s = 0, 0.0
