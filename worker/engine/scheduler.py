"""The scheduler gives waiting sequences slots and cells, and chooses one Step at a time.

It has no clock: callers report how many cells are free and how long steps took, so every decision can be replayed.

The head of the queue gets the lowest free slot once its tokens have room, and no sequence passes it. Cells for its
answer are not reserved: when the cells run out, a sequence is paused and goes back to the queue.

A step is either prefill or decode, because decode steps of one shape reuse the compute graph. If both kinds have work,
they alternate: a long prompt delays the other jobs by one chunk per token. Of several prompts the shortest rest goes
first, but at most PASSES times before the oldest; parts of the next prompts fill the rest of the step.
"""

from bisect import insort
from collections.abc import Callable, Collection
from collections.abc import Sequence as Seq
from heapq import heappop, heappush
from math import ceil

from worker.engine.config import EngineConfig
from worker.engine.prefill_budget import WIDENING, PrefillBudget
from worker.engine.sequence import Sequence, State
from worker.engine.step import Slice, Step
from worker.limits import DECODE_MARGIN
from worker.wire.jobs import JobKey, SlotId, StepKind

MAX_FORCED = 16
"""The largest number of forced tokens in a decode step beyond one token per slot; more would delay the other jobs."""

PASSES = 2
"""The number of prefill steps in a row that may leave out the oldest prompt."""


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


class Scheduler:
    def __init__(self, config: EngineConfig, *, can_abort: bool, can_keep: bool) -> None:
        """Start without jobs. If steps are fixed, every prefill step is the next chunk of one prompt, whatever other
        jobs there are. `can_abort` says that a step can be stopped while it runs, `can_keep` that a paused job's cells
        need not be computed again."""
        self.n_cells = config.n_cells
        self.free_slots = [SlotId(i) for i in range(config.n_slots)]
        self.waiting: list[Sequence] = []
        """The sequences without a slot, the next one first."""
        self.running: dict[SlotId, Sequence] = {}
        """The sequences that have a slot, in the order of their admission."""
        self._prefill_budget = PrefillBudget(config, can_abort=can_abort)
        self._policy = policy_of(config, can_keep=can_keep)
        self._last_kind: StepKind = "decode"
        self._n_passes = 0

    @property
    def is_idle(self) -> bool:
        return not self.waiting and not self.running

    @property
    def is_generating(self) -> bool:
        return any(sequence.state is State.DECODE for sequence in self.running.values())

    def find(self, job: JobKey) -> Sequence | None:
        return next((one for one in (*self.waiting, *self.running.values()) if one.job == job), None)

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence that fits the context: n_most ≤ n_cells, or it could never finish."""
        assert sequence.n_most <= self.n_cells
        assert self.find(sequence.job) is None
        insort(self.waiting, sequence, key=self._policy.rank)

    def admit(self, n_free_cells: int, n_shared: Callable[[Sequence], int]) -> None:
        """Give slots to the head of the queue for as long as slots and cells last; they are in FOLLOW then.

        `n_shared` returns how many of a sequence's tokens other running ones have computed; these take no cells.
        """
        n_spare = self._n_spare(n_free_cells)
        while self.waiting and self.free_slots:
            sequence = self.waiting[0]
            n_needed = self._policy.cells_to_reserve(sequence)
            if self.running and n_needed > n_spare and n_needed - n_shared(sequence) > n_spare:
                break
            n_spare -= n_needed
            self.waiting.remove(sequence)
            for other in self.waiting:
                other.n_passed += other.job < sequence.job
            self.waiting.sort(key=self._policy.rank)
            sequence.slot = heappop(self.free_slots)
            sequence.n_turn = sequence.n_passed = 0
            sequence.move(State.FOLLOW)
            self.running[sequence.slot] = sequence

    def choose_preemptions(self, n_free_cells: int, n_shared: Callable[[Sequence], int]) -> list[Sequence]:
        """The running sequences to pause so that the head of the queue has a slot and room; none if it waits on.

        The arguments are those of `admit`, which has been called.
        """
        if not self.waiting:
            return []
        head = self.waiting[0]
        able = [one for one in self.running.values() if self._policy.may_be_preempted(one, head)]
        n_missing = self._policy.cells_to_reserve(head) - self._n_spare(n_free_cells)
        n_missing_slots = 0 if self.free_slots else 1
        chosen: list[Sequence] = []
        for one in sorted(able, key=lambda each: each.n_served, reverse=True):
            if len(chosen) >= n_missing_slots and n_missing <= 0:
                break
            chosen.append(one)
            n_missing -= one.n_computed - n_shared(one) + self._policy.cells_to_reserve(one)
        has_room = n_missing <= 0 or len(chosen) == len(self.running)
        return chosen if has_room and len(chosen) >= n_missing_slots else []

    def _n_spare(self, n_free_cells: int) -> int:
        """Return how many of the free cells are not reserved."""
        return n_free_cells - sum(self._policy.cells_to_reserve(one) for one in self.running.values())

    def remove(self, sequence: Sequence) -> None:
        """End a sequence wherever it is; its slot is free at once."""
        sequence.move(State.DONE)
        if sequence.slot is None:
            self.waiting.remove(sequence)
        else:
            self._take_slot(sequence)

    def victim(self) -> Sequence | None:
        """The sequence to pause when the cells run out; None when there is only one, or none."""
        return self._policy.victim(self.running.values()) if len(self.running) > 1 else None

    def pause(self, sequence: Sequence) -> None:
        """Put a sequence back into the queue. The caller frees its cells."""
        sequence.move(State.WAITING)
        self._take_slot(sequence)
        sequence.n_computed = 0
        sequence.n_pauses += 1
        sequence.leader = None
        insort(self.waiting, sequence, key=self._policy.rank)

    def _take_slot(self, sequence: Sequence) -> None:
        assert sequence.slot is not None
        del self.running[sequence.slot]
        heappush(self.free_slots, sequence.slot)
        sequence.slot = None

    def next_step(self) -> Step | None:
        """Return the next decode call, or None while nothing can run."""
        prefilling = [sequence for sequence in self.running.values() if sequence.state is State.PREFILL]
        decoding = [sequence for sequence in self.running.values() if sequence.state is State.DECODE]
        if prefilling and (not decoding or self._last_kind == "decode"):
            # The shortest rest is first, unless the oldest has been passed too often.
            is_oldest_first = self._n_passes == PASSES
            prefilling.sort(key=lambda one: one.job if is_oldest_first else one.n_to_compute)
            depth = max(one.n_computed for one in prefilling)
            n_whole = sum(one.n_turn + one.n_to_compute for one in prefilling)
            beside = self._prefill_budget.size_beside
            size = beside(n_whole, depth) if decoding else self._size_alone(prefilling, depth)
            return Step("prefill", self._prefill(prefilling, size))
        return Step("decode", self._decode(decoding)) if decoding else None

    def begin(self, step: Step) -> None:
        """Count the turn of a step that runs now. A step that did not fit does not count as a turn."""
        self._last_kind = step.kind
        if step.kind == "prefill":
            oldest = min((one for one in self.running.values() if one.state is State.PREFILL), key=lambda one: one.job)
            has_oldest = any(slice_.slot == oldest.slot for slice_ in step.slices)
            self._n_passes = 0 if has_oldest else self._n_passes + 1

    def complete(self, step: Step, seconds: float) -> None:
        """Count the tokens that a step has computed, or a part of it that ran alone; its time shapes later steps.

        `step` has the slices that were decoded, drafts included.
        """
        if step.kind == "decode":
            self._prefill_budget.decode_took(seconds)
        elif self.is_generating:
            self._prefill_budget.took_beside(step.n_tokens, step.depth, seconds)
        else:
            self._prefill_budget.took_alone(step.n_tokens, step.depth, seconds)
        for slice_ in step.slices:
            self.running[slice_.slot].advance(len(slice_.tokens) - slice_.n_drafts, slice_.n_drafts)

    def _decode(self, decoding: list[Sequence]) -> tuple[Slice, ...]:
        """Return slices with the next token of each sequence, and with up to MAX_FORCED more that need no draw.

        If steps are fixed, each gives one token; otherwise the number of rows would depend on the other jobs.
        """
        n_more = 0 if self._prefill_budget.is_fixed else MAX_FORCED
        slices: list[Slice] = []
        for sequence in decoding:
            slice_ = sequence.decode_slice(n_most=1 + n_more)
            n_more -= len(slice_.tokens) - 1
            slices.append(slice_)
        return tuple(slices)

    def _size_alone(self, in_order: Seq[Sequence], depth: int) -> int:
        """Return the size of a step while no job generates. If it can be stopped for a new job, the first prompt has as
        much of it as it may lose. Others are read to their end in the same step if all fit within a few targets.
        """
        budget, first = self._prefill_budget, in_order[0]
        if not budget.can_abort:
            return budget.widest
        size = max(budget.size_within(1, depth), min(first.n_to_compute, self._most_lost(first)))
        n_shared = budget.size_within(WIDENING, depth)
        for other in in_order[1:]:
            if size + other.n_to_compute > n_shared or other.n_to_compute > self._most_lost(other):
                break
            size += other.n_to_compute
        return min(size, budget.widest)

    def _prefill(self, in_order: list[Sequence], size: int) -> tuple[Slice, ...]:
        """Return the next slices of as many prompts as `size` tokens have room for; prompts with log-probabilities
        share the rows that there are for them.
        """
        if self._prefill_budget.is_fixed:
            del in_order[1:]
            size -= in_order[0].n_computed % size
        slices: list[Slice] = []
        n_scored = self._prefill_budget.most_scored
        for sequence in in_order:
            room = min(size, n_scored) if sequence.is_scoring else size
            slice_ = sequence.prefill_slice(room, self._prefill_budget.grain)
            if slice_ is not None:
                slices.append(slice_)
                size -= len(slice_.tokens)
                n_scored -= len(slice_.tokens) if sequence.is_scoring else 0
        return tuple(slices)

    def may_lose(self, step: Step) -> bool:
        """Return True if a step may be stopped for a new job: no job generates, and no prompt in it has lost
        too much."""
        return (
            step.kind == "prefill"
            and self._prefill_budget.can_abort
            and not self.is_generating
            and all(len(each.tokens) <= self._most_lost(self.running[each.slot]) for each in step.slices)
        )

    def lose(self, step: Step, share: float) -> None:
        """Count this share of a step's tokens, which it had computed when it was stopped."""
        for slice_ in step.slices:
            self.running[slice_.slot].n_lost += ceil(share * len(slice_.tokens))

    def _most_lost(self, sequence: Sequence) -> int:
        return self._prefill_budget.most_lost(sequence.n_turn, sequence.n_lost)

    def expected_s(self, step: Step) -> float:
        """Return the expected seconds of a prefill step that may be stopped."""
        return self._prefill_budget.expected_s(step.n_tokens, step.depth)

    def is_first(self, n_tokens: int, n_free_cells: int, step: Step) -> bool:
        """Return True if a new job with n_tokens to compute would get a slot and cells, and its prompt would be read
        before those of the step.
        """
        has_room = self.free_slots and not self.waiting and n_tokens + DECODE_MARGIN <= self._n_spare(n_free_cells)
        return bool(has_room) and n_tokens < min(self.running[each.slot].n_to_compute for each in step.slices)


class FirstCome:
    """The oldest job is first, and is never paused. A paused job goes back to the head of the queue.

    If `is_reserving`, all cells that a sequence may need are reserved, so that none is ever paused. With fixed steps a
    paused job would have to compute in chunks what was computed token by token.
    """

    def __init__(self, *, is_reserving: bool = False) -> None:
        self._is_reserving = is_reserving

    def rank(self, sequence: Sequence) -> Rank:
        """Return the place of a waiting sequence in the queue; the lowest is first."""
        return 0, sequence.job

    def cells_to_reserve(self, sequence: Sequence) -> int:
        """Return how many cells to reserve for a sequence, beyond those it has."""
        return sequence.n_cells_left if self._is_reserving else sequence.n_to_compute + DECODE_MARGIN

    def may_be_preempted(self, _running: Sequence, _waiting: Sequence) -> bool:
        """Return True if the running sequence may be paused to give the waiting one its slot and its cells."""
        return False

    def victim(self, running: Collection[Sequence]) -> Sequence:
        """Return the one of at least two sequences to pause when the cells have run out."""
        return max(running, key=lambda sequence: sequence.job)


class FairShares:
    """The job with the least service is first: the number of rows that were computed for it. This is for models whose
    cells can be copied out and in again.

    The waiting sequence with the least service preempts a running one that has had twice as much and a quantum more. So
    while a job has had S rows, no other job gets more than 2 S and a quantum. The quantum is never more than the
    waiting job may still need, so a job that names its length ends within twice the time that an even division of the
    machine gives it. Equal jobs run one after another.

    No job waits for ever. A sequence that MAX_PASSED younger ones have passed comes before all others, as if it had had
    no service; of several the oldest is first. A sequence that was paused MAX_PAUSES times is admitted once all the
    cells that it may need are free, and stays until its end.
    """

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

    def may_be_preempted(self, running: Sequence, waiting: Sequence) -> bool:
        quantum = max(MIN_QUANTUM, _wanted(waiting), running.n_computed // CELLS_PER_ROW)
        claim = 0 if _is_overdue(waiting) else waiting.n_served
        is_due = running.n_turn >= quantum and running.n_served >= 2 * claim + quantum
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


def _is_overdue(sequence: Sequence) -> bool:
    return sequence.n_passed >= MAX_PASSED


def _stays(sequence: Sequence) -> bool:
    return sequence.n_pauses >= MAX_PAUSES


Policy = FirstCome | FairShares


def policy_of(config: EngineConfig, *, can_keep: bool) -> Policy:
    """Return the scheduling policy. `can_keep` says that a paused job's cells need not be computed again."""
    if config.scheduling == "fair" and can_keep and not config.is_deterministic:
        return FairShares()
    return FirstCome(is_reserving=config.is_deterministic)
