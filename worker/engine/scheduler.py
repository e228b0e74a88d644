"""Who runs next: waiting sequences → slots and cells → one Step at a time.

Pure and single-threaded (the step thread). Knows neither the runner nor the text; every decision can be replayed.

Policy. Admission is first-come: the head of the queue gets the lowest free slot once its cells (prompt + max_tokens)
are free, and nobody passes it. A step is either prefill or decode, because decode steps of one shape reuse the compute
graph. While both kinds have work they alternate, so a long prompt costs the others one chunk per token, and decoding
never holds a prompt up. A prefill step carries one prompt's next chunk, or several short ones together; chunk edges
lie at absolute multiples of `chunk`.
"""

from collections import deque
from heapq import heapify, heappop, heappush

from worker.engine.backend import Step
from worker.engine.contract import JobKey, SlotId, StepKind
from worker.engine.sequence import Sequence, State


class Scheduler:
    def __init__(self, *, n_slots: int, n_cells: int, chunk: int) -> None:
        self._chunk = chunk
        self.n_cells = n_cells
        self.n_free_cells = n_cells
        self.free_slots = [SlotId(i) for i in range(n_slots)]
        heapify(self.free_slots)
        self.waiting: deque[Sequence] = deque()
        self.running: dict[SlotId, Sequence] = {}
        """In admission order."""
        self._jobs: dict[JobKey, Sequence] = {}
        self._last_kind: StepKind = "decode"

    @property
    def is_idle(self) -> bool:
        return not self._jobs

    @property
    def n_cells_used(self) -> int:
        return sum(sequence.n_computed for sequence in self.running.values())

    def find(self, job: JobKey) -> Sequence | None:
        return self._jobs.get(job)

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence that fits the context: n_reserved ≤ n_cells, or it would wait for ever."""
        assert sequence.n_reserved <= self.n_cells
        assert sequence.job not in self._jobs
        self._jobs[sequence.job] = sequence
        self.waiting.append(sequence)

    def admit(self) -> list[Sequence]:
        """Give slots to the head of the queue for as long as slots and cells last."""
        admitted = []
        while self.waiting and self.free_slots and self.waiting[0].n_reserved <= self.n_free_cells:
            sequence = self.waiting.popleft()
            sequence.slot = heappop(self.free_slots)
            sequence.move(State.PREFILL)
            self.n_free_cells -= sequence.n_reserved
            self.running[sequence.slot] = sequence
            admitted.append(sequence)
        return admitted

    def remove(self, sequence: Sequence) -> None:
        """End a sequence wherever it is; its slot and cells are free at once."""
        sequence.move(State.DONE)
        del self._jobs[sequence.job]
        if sequence.slot is None:
            self.waiting.remove(sequence)
            return
        del self.running[sequence.slot]
        heappush(self.free_slots, sequence.slot)
        self.n_free_cells += sequence.n_reserved

    def next_step(self) -> Step | None:
        """The next decode call, or None while nothing holds a slot."""
        prefilling = [sequence for sequence in self.running.values() if sequence.state is State.PREFILL]
        decoding = [sequence for sequence in self.running.values() if sequence.state is State.DECODE]
        if prefilling and (not decoding or self._last_kind == "decode"):
            step = self._prefill(prefilling)
        elif decoding:
            step = Step("decode", tuple(sequence.decode_slice() for sequence in decoding))
        else:
            return None
        self._last_kind = step.kind
        return step

    def _prefill(self, prefilling: list[Sequence]) -> Step:
        """The oldest prompt's next chunk; prompts behind it come along while the step stays within one chunk."""
        first, *others = (sequence.prefill_slice(self._chunk) for sequence in prefilling)
        slices = [first]
        room = self._chunk - len(first.tokens)
        for piece in others:
            room -= len(piece.tokens)
            if room < 0:
                break
            slices.append(piece)
        return Step("prefill", tuple(slices))
