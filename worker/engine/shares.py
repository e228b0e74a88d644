"""Who comes next when not all jobs can run: which waiting sequence is first, and which running ones give way.

Pure; step thread. Knows neither slots nor steps nor the clock: a sequence's service is the number of rows that were
computed for it.

Fair shares. The waiting sequence that has had least comes first. It takes the place of a running one that has had
twice as much and a quantum more. So while a job has had S rows, none of the others gets more than 2 S and a quantum;
and as the quantum is never more than the waiting job may still need, a job that names its length has its end within
twice the time that an even division of the machine gives it. Equal jobs run one after another, as ever.

Nobody waits for ever. A sequence that MAX_PASSED younger ones have passed comes before all others, as one that has had
nothing, and of several the oldest is first. One that was paused MAX_PAUSES times is admitted once all the cells that
it may need are there, and stays until its end.
"""

from collections.abc import Collection
from typing import Protocol

from worker.engine.sequence import Sequence
from worker.limits import DECODE_MARGIN
from worker.wire.messages import JobKey

QUANTUM = 256
"""How many rows a sequence has in its slot before another that needs as many takes its place: less than a second or
two of a small model on two cores, where copying its cells out and in again takes some milliseconds."""

MIN_QUANTUM = 16
"""How many rows it has at least: fewer cells are not copied but computed again (prefix_cache.MIN_KEPT)."""

CELLS_PER_ROW = 16
"""How many cells a sequence that gives way may hold for each row that it was in its slot for. On two cores 1,000 cells
take up to 12 ms out and in, and the 62 rows that they wait for at least 250 ms: 5 %."""

MAX_PAUSES = 16
"""How often a job is paused at most."""

MAX_PASSED = 4
"""How many younger sequences get a slot before a waiting one that has had more, or needs more."""

Rank = tuple[int, JobKey]


class Policy(Protocol):
    """Two of them: FirstCome and FairShares."""

    def rank(self, sequence: Sequence) -> Rank:
        """A waiting sequence's place in the queue, the lowest first."""
        ...

    def cells_to_reserve(self, sequence: Sequence) -> int:
        """How many cells a sequence is given room for, beyond those it has."""
        ...

    def may_be_preempted(self, running: Sequence, waiting: Sequence, /) -> bool:
        """Whether the running sequence is paused if that gives the waiting one its slot and its cells."""
        ...

    def victim(self, running: Collection[Sequence]) -> Sequence:
        """Which of at least two sequences is paused when the cells have run out."""
        ...


class FirstCome:
    """The oldest is first, and is never paused. Who is paused goes back to the head of the queue.

    `is_reserving`: a sequence is given all cells that it may need, so that none is ever paused. With fixed steps that
    would mean to compute in chunks what was computed one by one.
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
    """By the service received, for models whose cells can be copied out and in again."""

    def rank(self, sequence: Sequence) -> Rank:
        """By what it has had when its next turn ends, so that one that needs little does not wait for one that needs
        much. Of those that are equal up to a factor of two the oldest is first.
        """
        if _is_overdue(sequence):
            return 0, sequence.job
        return (sequence.n_served + _wanted(sequence)).bit_length(), sequence.job

    def cells_to_reserve(self, sequence: Sequence) -> int:
        """Twice the margin after each pause: one that was paused for want of cells would else be paused again soon."""
        if _stays(sequence):
            return sequence.n_cells_left
        return min(sequence.n_cells_left, sequence.n_to_compute + (DECODE_MARGIN << sequence.n_pauses))

    def may_be_preempted(self, running: Sequence, waiting: Sequence, /) -> bool:
        quantum = max(MIN_QUANTUM, _wanted(waiting), running.n_computed // CELLS_PER_ROW)
        is_due = running.n_turn >= quantum and running.n_served >= 2 * _claim(waiting) + quantum
        return is_due and not _stays(running)

    def victim(self, running: Collection[Sequence]) -> Sequence:
        """The one that has had most. Those that stay have room for all they need; only a library that finds less
        room than it said has one of them paused.
        """
        able = [sequence for sequence in running if not _stays(sequence)]
        return max(able or running, key=lambda sequence: (sequence.n_served, sequence.job))


def _wanted(sequence: Sequence) -> int:
    """How many rows its next turn has, as far as is known."""
    return min(QUANTUM, max(1, sequence.n_most - sequence.n_served))


def _claim(sequence: Sequence) -> int:
    """How much service a waiting sequence counts as having had."""
    return 0 if _is_overdue(sequence) else sequence.n_served


def _is_overdue(sequence: Sequence) -> bool:
    return sequence.n_passed >= MAX_PASSED


def _stays(sequence: Sequence) -> bool:
    return sequence.n_pauses >= MAX_PAUSES
