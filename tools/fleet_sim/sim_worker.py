"""A worker without a model: the real engine over memory that only counts, whose steps take what they were measured to.

`SimKv` and `SimRunner` are backend.py's Kv and Runner.
"""

from collections import Counter, deque
from collections.abc import Collection
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count
from pathlib import Path

import msgspec
from msgspec.structs import replace

from tools.fleet_sim.workloads import Ask
from worker.engine.backend import Checkpoint, Meanwhile, Saved, do_nothing
from worker.engine.config import EngineConfig
from worker.engine.drafting.pricing import interpolated
from worker.engine.loop import Engine
from worker.engine.sequence import Queued
from worker.engine.step import Sampled, Score, Step
from worker.errors import UsageError
from worker.limits import MAX_DRAFTS
from worker.models.plan.memory import retained_slots
from worker.wire.jobs import JobKey, Logprob, SlotId, StepDone, StepKind, Submit, TokenId
from worker.wire.messages import Outbound

RowsMs = tuple[tuple[int, float], ...]
"""(rows of a step, milliseconds that it takes while the memory is empty), ascending."""


class StepCosts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, dict=True):
    """A worker's sizes, and what its steps take. Milliseconds, and tokens for all sizes."""

    measured_on: str
    parallel: int
    cells: int
    context_length: int
    chunk: int
    widest_step: int
    itl_target_ms: float
    prefix_cache_tokens: int
    """The number of tokens of finished jobs that the worker caches in host memory."""
    decode_ms: RowsMs
    prefill_ms: RowsMs
    decode_ms_per_1000_cells: float
    """The extra time of each row of a decode step per 1,000 cells of its own job, because attention reads them."""
    prefill_ms_per_1000_cells: float
    others_ms_per_1000_cells: float
    """The extra time of each row of any step per 1,000 cells of other jobs, because attention has to skip them."""
    save_ms_per_1000: float
    """Copying the cells of 1,000 tokens out into host memory."""
    load_ms_per_1000: float
    request_ms: float
    """The time of a request outside its steps: the connection, HTTP, two processes."""

    def __post_init__(self) -> None:
        for name, costs in (("decode_ms", self.decode_ms), ("prefill_ms", self.prefill_ms)):
            rows = [n for n, _ in costs]
            if not rows or rows[0] != 1 or rows != sorted(set(rows)) or min(ms for _, ms in costs) <= 0:
                raise ValueError(f"{name} must have ascending numbers of rows from 1 on, and times above 0")

    def step_s(self, kind: StepKind, n_rows: int, n_own: int = 0, n_others: int = 0) -> float:
        """The seconds of a step of this many rows. `n_own` and `n_others`: for each row the cells that were in use
        before the step, of its job and of others, all together.
        """
        per_1000 = self.decode_ms_per_1000_cells if kind == "decode" else self.prefill_ms_per_1000_cells
        of_cells = (per_1000 * n_own + self.others_ms_per_1000_cells * n_others) / 1000
        return (self._tables[kind][n_rows] + of_cells) / 1000

    @cached_property
    def _tables(self) -> dict[StepKind, list[float]]:
        widest = max(self.chunk * 2, self.widest_step)
        return {"decode": _table(self.decode_ms, self.parallel), "prefill": _table(self.prefill_ms, widest)}

    @property
    def n_all_slots(self) -> int:
        """The slots for jobs and the slots that hold the cells of finished jobs."""
        return self.parallel + retained_slots(is_on_gpu=False)

    @property
    def engine_config(self) -> EngineConfig:
        """The engine that has these sizes; a token takes one byte of its prefix cache. There are no drafts."""
        return EngineConfig(
            n_slots=self.parallel,
            n_cells=self.cells,
            context_length=self.context_length,
            chunk=self.chunk,
            widest_step=self.widest_step,
            itl_target_s=self.itl_target_ms / 1000,
            prefix_cache_bytes=self.prefix_cache_tokens,
            retained_slots=tuple(SlotId(slot) for slot in range(self.parallel, self.n_all_slots)),
        )


def read_costs(path: Path) -> StepCosts:
    """Raises: UsageError."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=StepCosts)
    except OSError as error:
        raise UsageError(f"--costs {path}: {error.strerror or error}") from None
    except msgspec.DecodeError as error:
        raise UsageError(f"--costs {path}: {error}; costs.json is an example") from None


def _table(costs: RowsMs, n_most: int) -> list[float]:
    """Milliseconds by the number of rows, as the engine reckons them, and on beyond the last as the last two rise."""
    table = [0.0, *interpolated(costs)]
    n_last, n_before = costs[-1][0], costs[-2][0] if len(costs) > 1 else 0
    rise = (table[n_last] - table[n_before]) / (n_last - n_before)
    return table + [table[n_last] + rise * i for i in range(1, n_most - n_last + 1)]


@dataclass(slots=True)
class Clock:
    now_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Copy:
    """backend.py's Saved: how many tokens, of a byte each."""

    n_tokens: int

    @property
    def n_bytes(self) -> int:
        return self.n_tokens

    def split(self, n_tokens: int) -> tuple["Copy", "Copy"]:
        return Copy(n_tokens), Copy(self.n_tokens - n_tokens)


class SimKv:
    """Counts cells by the number of their slots. Cells that slots share count once; copies take the clock forward."""

    can_share = True
    has_state = False
    max_undone = MAX_DRAFTS

    def __init__(self, costs: StepCosts, clock: Clock) -> None:
        self._costs = costs
        self._clock = clock
        self._cells: list[list[int]] = [[] for _ in range(costs.n_all_slots)]
        """Each slot's cells, by numbers that are never used again."""
        self._holders: dict[int, int] = {}
        self._numbers = count()

    @property
    def n_used(self) -> int:
        return len(self._holders)

    @property
    def n_free_cells(self) -> int:
        return self._costs.cells - self.n_used

    def checkpoint(self, slot: SlotId, tokens: Seq[TokenId] = ()) -> Checkpoint:
        raise AssertionError(f"slot {slot} has no recurrent state after {len(tokens)} tokens")

    def count_tokens(self) -> list[int]:
        return [len(cells) for cells in self._cells]

    def hold(self, slot: SlotId, n_tokens: int) -> None:
        """Add cells after the slot's last one."""
        new = [next(self._numbers) for _ in range(n_tokens)]
        self._cells[slot] += new
        self._holders.update(dict.fromkeys(new, 1))

    def trim(self, slot: SlotId, n_keep: int) -> None:
        cells = self._cells[slot]
        for cell in cells[n_keep:]:
            self._holders[cell] -= 1
            if not self._holders[cell]:
                del self._holders[cell]
        del cells[n_keep:]

    def share(self, source: SlotId, target: SlotId, n_tokens: int, _: Checkpoint | None = None) -> None:
        assert not self._cells[target], "only an empty slot is given another's cells"
        self._cells[target] = self._cells[source][:n_tokens]
        for cell in self._cells[target]:
            self._holders[cell] += 1

    def n_cells_of(self, slots: Collection[SlotId]) -> int:
        held = Counter(cell for slot in slots for cell in self._cells[slot])
        return sum(n == self._holders[cell] for cell, n in held.items())

    def save(self, slot: SlotId, start: int, _: Seq[TokenId] = (), *, end: int | None = None) -> Copy:
        n_tokens = (len(self._cells[slot]) if end is None else end) - start
        self._clock.now_s += self._costs.save_ms_per_1000 * n_tokens / 1e6
        return Copy(n_tokens)

    def load(self, slot: SlotId, parts: Seq[Saved], n_tokens: int, _: Checkpoint | None = None) -> None:
        assert n_tokens <= sum(part.n_tokens for part in parts)
        self._clock.now_s += self._costs.load_ms_per_1000 * n_tokens / 1e6
        self.hold(slot, n_tokens)


class SimRunner:
    """Draws what each job says that it is answered (`Ask.sampling`)."""

    n_threads = 1
    is_asynchronous = False
    can_abort = False  # no request arrives while a step runs

    def __init__(self, costs: StepCosts, clock: Clock) -> None:
        self.kv = SimKv(costs, clock)
        self._costs = costs
        self._clock = clock

    def run(self, step: Step, meanwhile: Meanwhile = do_nothing) -> list[Sampled]:  # noqa: ARG002 - it is synchronous
        n_rows, n_own = step.n_tokens, sum(len(slice_.tokens) * slice_.start for slice_ in step.slices)
        self._clock.now_s += self._costs.step_s(step.kind, n_rows, n_own, n_rows * self.kv.n_used - n_own)
        for slice_ in step.slices:
            self.kv.hold(slice_.slot, len(slice_.tokens))
        return [
            Sampled(slice_.slot, TokenId(int(next(iter(slice_.sampling.logit_bias)))), b"", is_end=False)
            for slice_ in step.slices
            if slice_.sampling is not None
        ]

    def logprob(self, score: Score, n_top: int) -> Logprob:
        raise NotImplementedError("no job of a workload asks for log-probabilities")

    def request_abort(self) -> None:
        """No request is cancelled."""

    def forget_abort(self) -> None:
        """No request is cancelled."""


@dataclass(slots=True)
class Served:
    """The fate of a request. Times are the simulation's; -1 is not yet. `n_cached`: cached tokens of its prompt."""

    ask: Ask
    worker: int
    sent_s: float
    first_s: float = -1.0
    ended_s: float = -1.0
    n_cached: int = 0
    n_tokens: int = 0


@dataclass(slots=True)
class SimWorker:
    """Takes requests when they arrive, and runs one step after the other while it has some."""

    costs: StepCosts
    clock: Clock = field(default_factory=Clock)
    inbox: deque[tuple[float, Served]] = field(default_factory=deque)  # (arrival, request)
    is_awake: bool = False  # one of its steps is due
    engine: Engine = field(init=False)
    _jobs: dict[JobKey, Served] = field(default_factory=dict)
    _ended: list[Served] = field(default_factory=list)
    _n_jobs: int = 0

    def __post_init__(self) -> None:
        runner = SimRunner(self.costs, self.clock)
        self.engine = Engine(runner, self.costs.engine_config, emit=self._hear, clock=lambda: self.clock.now_s)

    def step(self, now_s: float) -> list[Served]:
        """Take what has arrived and run a step, as server/process/main.py does; the clock is then at its end. Returns
        what has ended with it.
        """
        self.clock.now_s = now_s
        while self.inbox and self.inbox[0][0] <= now_s:
            _, served = self.inbox.popleft()
            job = JobKey(self._n_jobs)
            self._n_jobs += 1
            self._jobs[job] = served
            ask, prompt = served.ask, served.ask.prompt
            sampling = replace(ask.sampling, max_tokens=ask.n_tokens)
            submit = Submit(job=job, prompt=tuple(prompt), sampling=sampling)
            self.engine.submit(Queued(submit, list(prompt)))
        self.engine.step()
        while self.engine.is_idle and self.engine.tidy():
            pass
        ended, self._ended = self._ended, []
        return ended

    def _hear(self, frame: Outbound) -> None:
        if not isinstance(frame, StepDone):
            return
        for started in frame.started:
            self._jobs[started.job].n_cached = started.n_cached
        for delta in frame.deltas:
            served = self._jobs[delta.job]
            served.n_tokens += 1
            if served.n_tokens == 1:
                served.first_s = self.clock.now_s
        for finished in frame.finished:
            served = self._jobs.pop(finished.job)
            served.ended_s = self.clock.now_s
            self._ended.append(served)
        assert not frame.failed, "nothing can go wrong here"
