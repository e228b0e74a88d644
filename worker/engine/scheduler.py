"""The scheduler gives waiting sequences slots and cells, and chooses one Step at a time.

It is pure and single-threaded (the step thread). It knows neither the runner nor the text nor the clock: callers report
how many cells are free and how long steps took, so every decision can be replayed.

Admission. The head of the queue gets the lowest free slot once its tokens have room, and no sequence passes it. Cells
for its answer are not reserved: when the cells run out, a sequence is paused and goes back to the queue. shares.py
decides who is the head, who is paused, and who is preempted for a head with less service.

A step is either prefill or decode, because decode steps of one shape reuse the compute graph. If both kinds have work,
they alternate: a long prompt delays the other jobs by one chunk per token. While no job generates, a prefill step is
wide; otherwise its size follows from the times of the last ones (prefill_budget.py). Of several prompts the shortest
rest goes first, but at most PASSES times before the oldest; parts of the next prompts fill the rest of the step.
"""

from bisect import insort
from collections.abc import Callable
from collections.abc import Sequence as Seq
from heapq import heapify, heappop, heappush
from math import ceil

from worker.engine.prefill_budget import WIDENING, PrefillBudget
from worker.engine.sequence import Sequence, State
from worker.engine.shares import Policy
from worker.engine.step import Slice, Step
from worker.limits import DECODE_MARGIN
from worker.wire.jobs import JobKey, SlotId, StepKind

MAX_FORCED = 16
"""The largest number of forced tokens in a decode step beyond one token per slot; more would delay the other jobs."""

PASSES = 2
"""The number of prefill steps in a row that may leave out the oldest prompt."""


class Scheduler:
    def __init__(self, *, n_slots: int, n_cells: int, budget: PrefillBudget, policy: Policy) -> None:
        """Start without jobs. If the budget is fixed, every prefill step is the next chunk of one prompt, whatever
        other jobs there are."""
        self.n_cells = n_cells
        self.free_slots = [SlotId(i) for i in range(n_slots)]
        heapify(self.free_slots)
        self.waiting: list[Sequence] = []
        """The sequences without a slot, the next one first."""
        self.running: dict[SlotId, Sequence] = {}
        """The sequences that have a slot, in the order of their admission."""
        self._prefill_budget = budget
        self._policy = policy
        self._jobs: dict[JobKey, Sequence] = {}
        self._last_kind: StepKind = "decode"
        self._n_passes = 0

    @property
    def is_idle(self) -> bool:
        return not self._jobs

    @property
    def is_generating(self) -> bool:
        return any(sequence.state is State.DECODE for sequence in self.running.values())

    def find(self, job: JobKey) -> Sequence | None:
        return self._jobs.get(job)

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence that fits the context: n_most ≤ n_cells, or it could never finish."""
        assert sequence.n_most <= self.n_cells
        assert sequence.job not in self._jobs
        self._jobs[sequence.job] = sequence
        insort(self.waiting, sequence, key=self._policy.rank)

    # ── slots and cells ──────────────────────────────────────────────────────────────────────────

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
            self._give_slot(sequence)
            n_spare -= n_needed

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

    def _give_slot(self, sequence: Sequence) -> None:
        self.waiting.remove(sequence)
        for other in self.waiting:
            other.n_passed += other.job < sequence.job
        self.waiting.sort(key=self._policy.rank)
        sequence.slot = heappop(self.free_slots)
        sequence.n_turn = sequence.n_passed = 0
        sequence.move(State.FOLLOW)
        self.running[sequence.slot] = sequence

    def remove(self, sequence: Sequence) -> None:
        """End a sequence wherever it is; its slot is free at once."""
        is_waiting = sequence.state is State.WAITING
        sequence.move(State.DONE)
        del self._jobs[sequence.job]
        if is_waiting:
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

    # ── steps ────────────────────────────────────────────────────────────────────────────────────

    def next_step(self) -> Step | None:
        """Return the next decode call, or None while nothing can run."""
        prefilling = [sequence for sequence in self.running.values() if sequence.state is State.PREFILL]
        decoding = [sequence for sequence in self.running.values() if sequence.state is State.DECODE]
        if prefilling and (not decoding or self._last_kind == "decode"):
            in_order = self._in_order(prefilling)
            size = self._size_beside(in_order) if decoding else self._size_alone(in_order)
            return Step("prefill", self._prefill(in_order, size))
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

    # ── prefill steps ────────────────────────────────────────────────────────────────────────────

    def _in_order(self, prefilling: list[Sequence]) -> list[Sequence]:
        """Sort by the shortest rest first, unless the oldest has been passed too often."""
        is_oldest_first = self._n_passes == PASSES
        return sorted(prefilling, key=lambda one: one.job if is_oldest_first else one.n_to_compute)

    def _size_beside(self, prefilling: Seq[Sequence]) -> int:
        n_whole = sum(one.n_turn + one.n_to_compute for one in prefilling)
        return self._prefill_budget.size_beside(n_whole, _deepest(prefilling))

    def _size_alone(self, in_order: Seq[Sequence]) -> int:
        """Return the size of a step while no job generates. If it can be stopped for a new job, the first prompt has as
        much of it as it may lose. Others are read to their end in the same step if all fit within a few targets.
        """
        budget, first, depth = self._prefill_budget, in_order[0], _deepest(in_order)
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

    # ── steps that are stopped ───────────────────────────────────────────────────────────────────

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


def _deepest(prefilling: Seq[Sequence]) -> int:
    return max(sequence.n_computed for sequence in prefilling)
