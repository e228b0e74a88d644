"""Scheduling policy: the waiting job to run next, and the running jobs to preempt, if not all jobs can run.

This is pure and runs on the step thread. It knows neither slots nor steps nor the clock: a sequence's service is the
number of rows that were computed for it.

Fair shares. The waiting sequence with the least service comes first. It preempts a running one that has had twice as
much and a quantum more. So while a job has had S rows, no other job gets more than 2 S and a quantum. The quantum is
never more than the waiting job may still need, so a job that names its length ends within twice the time that an even
division of the machine gives it. Equal jobs run one after another.

No job waits for ever. A sequence that MAX_PASSED younger ones have passed comes before all others, as if it had had
no service; of several the oldest is first. A sequence that was paused MAX_PAUSES times is admitted once all the cells
that it may need are free, and stays until its end.
"""

from collections.abc import Collection
from typing import Protocol

from worker.engine.sequence import Sequence
from worker.limits import DECODE_MARGIN
from worker.wire.jobs import JobKey

QUANTUM = 256
"""The number of rows that a sequence gets in its slot before another that needs as many preempts it. A small model
takes less than a second or two for them on two cores, where copying its cells out and in again takes some milliseconds.
"""

MIN_QUANTUM = 16
"""The least number of rows that it gets: fewer cells are not copied but computed again (prefix_cache.MIN_KEPT)."""

CELLS_PER_ROW = 16
"""The largest number of cells that a preempted sequence may hold for each row that it got in its slot. On two cores
1,000 cells take up to 12 ms out and in, and the 62 rows that they wait for at least 250 ms: 5 %."""

MAX_PAUSES = 16
"""After this many pauses a job is not paused again, as long as another can be."""

MAX_PASSED = 4
"""The number of younger sequences that may get a slot before a waiting one that has had more, or needs more."""

Rank = tuple[int, JobKey]


class Policy(Protocol):
    """The order of jobs. FirstCome and FairShares implement it."""

    def rank(self, sequence: Sequence) -> Rank:
        """Return the place of a waiting sequence in the queue; the lowest is first."""

    def cells_to_reserve(self, sequence: Sequence) -> int:
        """Return how many cells to reserve for a sequence, beyond those it has."""

    def may_be_preempted(self, running: Sequence, waiting: Sequence, /) -> bool:
        """Return True if the running sequence may be paused to give the waiting one its slot and its cells."""

    def victim(self, running: Collection[Sequence]) -> Sequence:
        """Return the one of at least two sequences to pause when the cells have run out."""


class FirstCome:
    """The oldest job is first, and is never paused. A paused job goes back to the head of the queue.

    If `is_reserving`, all cells that a sequence may need are reserved, so that none is ever paused. With fixed steps a
    paused job would have to compute in chunks what was computed token by token.
    """

    def __init__(self, *, is_reserving: bool = False) -> None:
        self._is_reserving = is_reserving

    def rank(self, sequence: Sequence) -> Rank:
        return 0, sequence.job

    def cells_to_reserve(self, sequence: Sequence) -> int:
        return sequence.n_cells_left if self._is_reserving else sequence.n_to_compute + DECODE_MARGIN

    def may_be_preempted(self, _running: Sequence, _waiting: Sequence) -> bool:
        return False

    def victim(self, running: Collection[Sequence]) -> Sequence:
        return max(running, key=lambda sequence: sequence.job)


class FairShares:
    """The job with the least service is first. This is for models whose cells can be copied out and in again."""

    def rank(self, sequence: Sequence) -> Rank:
        """Rank a sequence by the service that it will have had when its next turn ends, so that a short job does not
        wait for a long one. Of those that are equal up to a factor of two the oldest is first.
        """
        if _is_overdue(sequence):
            return 0, sequence.job
        return (sequence.n_served + _wanted(sequence)).bit_length(), sequence.job

    def cells_to_reserve(self, sequence: Sequence) -> int:
        """Double the margin after each pause. Otherwise a job that was paused for lack of cells would soon be paused
        again."""
        if _stays(sequence):
            return sequence.n_cells_left
        return min(sequence.n_cells_left, sequence.n_to_compute + (DECODE_MARGIN << sequence.n_pauses))

    def may_be_preempted(self, running: Sequence, waiting: Sequence, /) -> bool:
        quantum = max(MIN_QUANTUM, _wanted(waiting), running.n_computed // CELLS_PER_ROW)
        is_due = running.n_turn >= quantum and running.n_served >= 2 * _claim(waiting) + quantum
        return is_due and not _stays(running)

    def victim(self, running: Collection[Sequence]) -> Sequence:
        """Return the one that has had most. Jobs that must stay have room for all they need; one of them is paused only
        if the library finds less room than it had reported.
        """
        able = [sequence for sequence in running if not _stays(sequence)]
        return max(able or running, key=lambda sequence: (sequence.n_served, sequence.job))


def _wanted(sequence: Sequence) -> int:
    """Return the expected number of rows of its next turn."""
    return min(QUANTUM, max(1, sequence.n_most - sequence.n_served))


def _claim(sequence: Sequence) -> int:
    """Return the service that a waiting sequence is credited with."""
    return 0 if _is_overdue(sequence) else sequence.n_served


def _is_overdue(sequence: Sequence) -> bool:
    return sequence.n_passed >= MAX_PASSED


def _stays(sequence: Sequence) -> bool:
    return sequence.n_pauses >= MAX_PAUSES
