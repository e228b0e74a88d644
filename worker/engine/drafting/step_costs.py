"""The costs of one model's decode steps: measured once at warm-up, and corrected by each step that ran.

This module knows neither jobs nor the clock. It is pure and runs on the step thread.
"""

from collections import deque
from collections.abc import Sequence as Seq
from itertools import accumulate, pairwise
from statistics import median

N_TIMED = 9
"""The number of steps whose times are kept; one step that was delayed does not move their median."""


class StepCosts:
    """Costs by rows. `row_costs` are (tokens in a decode step, seconds it took), ascending from 1 token, linear
    between."""

    def __init__(self, row_costs: Seq[tuple[int, float]]) -> None:
        assert not row_costs or row_costs[0][0] == 1
        self._seconds = interpolated(row_costs)
        self._surplus_s: deque[float] = deque(maxlen=N_TIMED)
        self._row_surplus_s = 0.0

    @property
    def widest(self) -> int:
        """The number of tokens in the widest step with a known cost; 0 if none is known."""
        return len(self._seconds)

    def took(self, n_rows: int, seconds: float) -> None:
        """Learn from a decode step's time. The time beyond its measured cost is attributed to its rows.

        Attention over a long context costs every row the same, and was not measured at warm-up. If something else took
        the time, drafts are shorter than would pay.
        """
        if n_rows > self.widest:
            return
        self._surplus_s.append((seconds - self._seconds[n_rows - 1]) / n_rows)
        self._row_surplus_s = max(0.0, median(self._surplus_s))

    def of(self, n_rows: int) -> float:
        """Return the seconds of a step of 1 ≤ n_rows ≤ widest tokens."""
        return self._seconds[n_rows - 1] + n_rows * self._row_surplus_s

    def of_one_more(self, n_rows: int) -> float:
        """Return the seconds that one more token adds to such a step."""
        return self.of(n_rows + 1) - self.of(n_rows)


def interpolated(row_costs: Seq[tuple[int, float]]) -> list[float]:
    """Return the seconds of steps of 1, 2, ... rows. More rows never cost less; a measurement that says so is noise."""
    rising = list(accumulate((seconds for _, seconds in row_costs), max))
    costs = rising[:1]
    for ((n, _), (m, _)), (n_s, m_s) in zip(pairwise(row_costs), pairwise(rising), strict=True):
        costs += (n_s + (m_s - n_s) * i / (m - n) for i in range(1, m - n + 1))
    return costs
