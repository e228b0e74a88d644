"""A worker without a model: the real engine over memory that only counts, whose steps take what they were measured to.

Owns one worker's clock. `SimKv` and `SimRunner` are backend.py's Kv and Runner.
"""

from collections import deque
from collections.abc import Collection
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

from tools.fleet_sim.costs import StepCosts
from tools.fleet_sim.workloads import Ask
from worker.engine.backend import Checkpoint, Meanwhile, Saved, do_nothing
from worker.engine.loop import Engine
from worker.engine.prefix_tree import n_common
from worker.engine.sequence import Queued
from worker.engine.step import Sampled, Score, Step
from worker.limits import MAX_DRAFTS
from worker.wire.jobs import JobKey, Logprob, SlotId, StepDone, Submit, TokenId
from worker.wire.messages import Outbound


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


@dataclass(slots=True, eq=False)
class _Span:
    """Cells that the same slots hold."""

    n_cells: int
    n_holders: int = 1


class SimKv:
    """Counts cells. Shared ones count once; what was copied takes the clock forward."""

    def __init__(self, costs: StepCosts, clock: Clock) -> None:
        self._costs = costs
        self._clock = clock
        self._spans: list[list[_Span]] = [[] for _ in range(costs.n_all_slots)]
        self._n_tokens = [0] * len(self._spans)
        self.n_used = 0

    @property
    def n_free_cells(self) -> int:
        return self._costs.cells - self.n_used

    @property
    def can_share(self) -> bool:
        return True

    @property
    def has_state(self) -> bool:
        return False

    @property
    def max_undone(self) -> int:
        return MAX_DRAFTS

    def checkpoint(self, slot: SlotId, tokens: Seq[TokenId] = ()) -> Checkpoint:
        raise AssertionError(f"slot {slot} has no recurrent state after {len(tokens)} tokens")

    def count_tokens(self) -> list[int]:
        return list(self._n_tokens)

    def hold(self, slot: SlotId, n_tokens: int) -> None:
        """Add cells after the slot's last one."""
        spans = self._spans[slot]
        if spans and spans[-1].n_holders == 1:
            spans[-1].n_cells += n_tokens
        else:
            spans.append(_Span(n_tokens))
        self._n_tokens[slot] += n_tokens
        self.n_used += n_tokens

    def trim(self, slot: SlotId, n_keep: int) -> None:
        spans = self._spans[slot]
        n_spans = self._cut(slot, n_keep)
        for span in spans[n_spans:]:
            span.n_holders -= 1
            self.n_used -= span.n_cells if span.n_holders == 0 else 0
        del spans[n_spans:]
        self._n_tokens[slot] = n_keep

    def share(self, source: SlotId, target: SlotId, n_tokens: int, _: Checkpoint | None = None) -> None:
        assert not self._n_tokens[target], "only an empty slot is given another's cells"
        shared = self._spans[source][: self._cut(source, n_tokens)]
        for span in shared:
            span.n_holders += 1
        self._spans[target] = shared
        self._n_tokens[target] = n_tokens

    def n_cells_of(self, slots: Collection[SlotId]) -> int:
        own = {id(span): span for slot in slots for span in self._spans[slot]}
        return sum(
            span.n_cells for span in own.values() if span.n_holders == sum(span in self._spans[slot] for slot in slots)
        )

    def save(self, slot: SlotId, start: int, _: Seq[TokenId] = (), *, end: int | None = None) -> Copy:
        n_tokens = (self._n_tokens[slot] if end is None else end) - start
        self._clock.now_s += self._costs.save_ms_per_1000 * n_tokens / 1e6
        return Copy(n_tokens)

    def load(self, slot: SlotId, parts: Seq[Saved], n_tokens: int, _: Checkpoint | None = None) -> None:
        assert n_tokens <= sum(part.n_tokens for part in parts)
        self._clock.now_s += self._costs.load_ms_per_1000 * n_tokens / 1e6
        self.hold(slot, n_tokens)

    def _cut(self, slot: SlotId, n_tokens: int) -> int:
        """The number of the slot's spans that its first tokens fill. A span that goes beyond them is first split, for
        all holders."""
        n_left = n_tokens
        for at, span in enumerate(self._spans[slot]):
            if n_left == 0:
                return at
            if span.n_cells > n_left:
                halves = [_Span(n_left, span.n_holders), _Span(span.n_cells - n_left, span.n_holders)]
                for spans in self._spans:
                    if span in spans:
                        place = spans.index(span)
                        spans[place : place + 1] = halves
                return at + 1
            n_left -= span.n_cells
        assert n_left == 0, "the slot has enough cells"
        return len(self._spans[slot])


class SimRunner:
    """Draws what each job says that it is answered (`Ask.sampling`)."""

    n_threads = 1
    is_asynchronous = False
    can_abort = False
    """The clock stands still between two steps: no request arrives while one runs."""

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
            Sampled(slice_.slot, slice_.sampling.logit_bias[0][0], b"", is_end=False)
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
    """The fate of a request. Times are the simulation's, in seconds."""

    ask: Ask
    worker: int
    sent_s: float
    first_s: float = -1.0
    """The time of its first token; -1 before."""
    ended_s: float = -1.0
    n_cached: int = 0
    """The number of cached tokens of its prompt."""
    n_tokens: int = 0


@dataclass(slots=True)
class SimWorker:
    """Takes requests when they arrive, and runs one step after the other while it has some."""

    costs: StepCosts
    clock: Clock = field(default_factory=Clock)
    inbox: deque[tuple[float, Served]] = field(default_factory=deque)
    """The sent requests by the time of their arrival."""
    is_awake: bool = False
    """True if one of its steps is due."""
    engine: Engine = field(init=False)
    _jobs: dict[JobKey, Served] = field(default_factory=dict)
    _ended: list[Served] = field(default_factory=list)
    _n_jobs: int = 0

    def __post_init__(self) -> None:
        runner = SimRunner(self.costs, self.clock)
        self.engine = Engine(runner, self.costs.engine_config, emit=self._hear, clock=lambda: self.clock.now_s)

    def step(self, now_s: float) -> list[Served]:
        """Take what has arrived and run a step, as process/main.py does; the clock is then at its end. Returns what has
        ended with it.
        """
        self.clock.now_s = now_s
        while self.inbox and self.inbox[0][0] <= now_s:
            _, served = self.inbox.popleft()
            job = JobKey(self._n_jobs)
            self._n_jobs += 1
            self._jobs[job] = served
            ask, prompt = served.ask, served.ask.prompt
            submit = Submit(job=job, prompt=tuple(prompt), max_tokens=ask.n_tokens, sampling=ask.sampling)
            self.engine.submit(Queued(submit, list(prompt)))
        self.engine.step()
        while self.engine.is_idle and self.engine.tidy():
            pass
        ended, self._ended = self._ended, []
        return ended

    def n_held(self, prompt: Seq[TokenId]) -> int:
        """The number of a prompt's first tokens that are cached here; a router that hears of every block knows it."""
        tokens = list(prompt)
        cache = self.engine.prefix_cache
        running = [one.tokens[: one.n_computed] for one in self.engine.scheduler.running.values()]
        return max(cache.index.match(tokens), *(n_common(tokens, held) for held in ([], *cache.retained, *running)))

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
