"""An engine with a draft model, both of them fakes whose steps take modelled time; and step costs of machines."""

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from math import log
from typing import Any
from zlib import crc32

from hypothesis import strategies as st

from tests.engine.fake_runner import FakeRunner, Request, ToyModel, alone
from tests.engine.toy_constraint import N_VOCAB, ToyConstraint
from tests.queued import queued
from worker.engine.backend import HiddenRows, LoadedDraft
from worker.engine.config import EngineConfig
from worker.engine.drafting.pricing import NO_DRAFT, Draft
from worker.engine.loop import Engine
from worker.engine.step import Sampled, Step
from worker.wire.jobs import Finished, JobKey, Logprob, SamplingParams, SlotId, StepDone, StepKind, TokenId, TopToken
from worker.wire.messages import Outbound

CPU = ((1, 7.5e-3), (2, 11e-3), (4, 19e-3), (8, 34e-3), (16, 66e-3))
"""A small model on two cores: a row computes for half as long as the weights take to read."""
GPU = ((1, 5e-3), (2, 5.05e-3), (8, 5.2e-3), (32, 6e-3), (80, 8e-3))
N_MOST = 16
RIGHT, WRONG = TokenId(1), TokenId(0)
MATCHES = st.sampled_from((1, 2, 5, 9, 16, 400))

Costs = tuple[tuple[int, float], ...]


def cheap(costs: Costs) -> Costs:
    """The costs of a model that is a twentieth as large."""
    return tuple((n, seconds / 20) for n, seconds in costs)


@st.composite
def row_costs(draw: st.DrawFn, n_rows: int = 24) -> Costs:
    """Any costs that rise: flat, straight, or with steps where a kernel's tile is full."""
    rises = draw(st.lists(st.sampled_from((0.0, 0.05, 0.5, 1.0, 3.0)), min_size=n_rows - 1, max_size=n_rows - 1))
    return tuple(enumerate(accumulate(rises, initial=1.0), 1))


def cost(costs: Costs, n_rows: int) -> float:
    for (n, n_s), (m, m_s) in pairwise(costs):
        if n <= n_rows <= m:
            return n_s + (m_s - n_s) * (n_rows - n) / (m - n)
    raise AssertionError(n_rows)


def draft_of(n_drafts: int, n_matched: int = 1) -> Draft:
    return Draft((RIGHT,) * n_drafts, n_matched) if n_drafts else NO_DRAFT


CONTEXT = 2_000
ITL_TARGET_S = 0.05


@dataclass(frozen=True, slots=True)
class Guesser(ToyModel):
    """A draft model that draws what another one would, as often as `share` says; of the others it is as sure."""

    of: ToyModel = field(default_factory=ToyModel)
    share: float = 1.0
    probability: float = 0.9
    useless_until: int = 0
    """Behind fewer tokens it is never right."""

    def draw(self, slot: SlotId, held: Seq[TokenId], seed: int, constraint: ToyConstraint | None = None) -> Sampled:
        assert constraint is None
        right = self.of.draw(slot, held, seed)
        is_right = (
            len(held) >= self.useless_until and crc32(repr(("luck", list(held))).encode()) % 1_000 < 1_000 * self.share
        )
        token = right.token if is_right else TokenId((right.token + 1) % N_VOCAB)
        logprob = Logprob(TopToken("", token, log(self.probability)), ())
        return Sampled(slot, token, b"", is_end=False, logprob=logprob)


class DraftRig:
    """`costs`: of the model's steps; `draft_costs`: of the draft model's, None for an engine without one. `has_state`:
    the draft model has recurrent state. `is_head`: it is the model's own head, which sees only the last tokens that the
    model has computed for the job, and there must be a row for the token before each that it reads."""

    def __init__(
        self,
        guesser: Guesser,
        costs: Costs,
        draft_costs: Costs | None,
        *,
        n_slots: int = 4,
        n_cells: int = 4_000,
        n_draft_cells: int = 4_000,
        has_state: bool = False,
        is_head: bool = False,
    ) -> None:
        self.now_s = 0.0
        self.hidden = HiddenRows()
        self._is_head = is_head
        self._jobs: dict[SlotId, JobKey] = {}
        """The job of which each slot has rows."""
        self.model = guesser.of
        self.steps_s: list[tuple[StepKind, float]] = []
        self.draft_steps: list[tuple[StepKind, float]] = []
        """Kind and seconds of each of the draft model's steps."""
        self.warnings: list[str] = []
        self.frames: list[Outbound] = []
        config = EngineConfig(
            n_slots=n_slots,
            n_cells=n_cells,
            context_length=CONTEXT,
            chunk=64,
            widest_step=512,
            itl_target_s=ITL_TARGET_S,
            retained_slots=(SlotId(n_slots),),
            row_costs=costs,
            has_own_text=False,
            prefix_cache_bytes=1 << 20,
        )
        runner = FakeRunner.of(self.model, config)
        n_draft_slots = 2 * n_slots if has_state else n_slots
        draft_config = replace(config, n_slots=n_draft_slots, n_cells=n_draft_cells)
        self.draft = FakeRunner.of(guesser, draft_config, has_state=has_state)
        runner.before_run = lambda step: self._compute_rows(step, costs)
        self.draft.before_run = lambda step: self._read_rows(step, draft_costs or ())
        self.engine = Engine(
            runner,
            config,
            emit=self.frames.append,
            clock=lambda: self.now_s,
            draft=None
            if draft_costs is None
            else LoadedDraft(self.draft, draft_costs, self.hidden if is_head else None),
            warn=self.warnings.append,
        )
        self.requests: list[Request] = []

    def _compute_rows(self, step: Step, costs: Costs) -> None:
        self._compute(step, costs, self.steps_s)
        for slice_ in step.slices:
            job = self.engine.scheduler.running[slice_.slot].job
            if self._jobs.get(slice_.slot) != job:
                self.hidden.forget(slice_.slot)
                self._jobs[slice_.slot] = job
            n_tokens = len(slice_.tokens)
            self.hidden.add(slice_.slot, slice_.start + n_tokens, n_tokens)

    def _read_rows(self, step: Step, costs: Costs) -> None:
        self._compute(step, costs, self.draft_steps)
        if not self._is_head:
            return
        for slice_ in step.slices:
            tokens = self.engine.scheduler.running[slice_.slot].tokens
            first = self.hidden.firsts[slice_.slot] + slice_.start
            for position in range(first, min(first + len(slice_.tokens), len(tokens))):
                assert slice_.tokens[position - first] == tokens[position]
                assert self.hidden.has(slice_.slot, position - 1)
            assert not self.hidden.has(slice_.slot, len(tokens) - 1), "the rows of wrong drafts are gone"

    def _compute(self, step: Step, costs: Costs, record: list[tuple[StepKind, float]]) -> None:
        """Let the time of a step go by, and write it down."""
        n_rows = min(step.n_tokens, costs[-1][0])
        seconds = cost(costs, n_rows) * step.n_tokens / n_rows
        self.now_s += seconds
        record.append((step.kind, seconds))

    def submit(self, request: Request) -> JobKey:
        job = JobKey(len(self.requests))
        self.requests.append(request)
        prompt = [TokenId(token) for token in request.prompt]
        constraint = None if request.constraint is None else ToyConstraint(request.constraint)
        self.engine.submit(
            queued(
                job, prompt, request.max_tokens, SamplingParams(seed=request.seed), request.stop, constraint=constraint
            )
        )
        return job

    def serve(self, requests: Seq[Request]) -> float:
        """The modelled seconds that some requests take, which come together; their texts are checked."""
        for request in requests:
            self.submit(request)
        spent_s = self.run()
        self.check()
        return spent_s

    def play(self, operations: Seq[Any]) -> None:
        """Submit requests, cancel jobs and run steps as asked, and then all that is left; nothing fails."""
        for operation in operations:
            match operation:
                case Request():
                    self.submit(operation)
                case ("cancel", job):
                    self.engine.cancel(JobKey(job))
                case (_, n_steps):
                    for _ in range(n_steps):
                        self.engine.step()
        self.serve([])
        assert not self.warnings

    def serve_until_it_fails(self, requests: Seq[Request]) -> str:
        """Serve requests with drafts that fail after 20 steps. Return the only warning."""
        for request in requests:
            self.submit(request)
        for _ in range(20):
            self.engine.step()
        self.draft.has_room = False
        self.serve([])
        assert len(self.warnings) == 1
        return self.warnings[0]

    def run(self) -> float:
        """Modelled seconds until nothing is left to do."""
        began_s = self.now_s
        while not self.engine.is_idle:
            self.engine.step()
        return self.now_s - began_s

    @property
    def steps(self) -> list[StepDone]:
        return [frame for frame in self.frames if isinstance(frame, StepDone)]

    def text(self, job: JobKey) -> str:
        return "".join(delta.text for step in self.steps for delta in step.deltas if delta.job == job)

    def check(self) -> None:
        """Every finished job has got the text that it gives alone."""
        for end in (end for step in self.steps for end in step.finished):
            assert isinstance(end, Finished)
            assert self.text(end.job) == alone(self.model, self.requests[end.job], CONTEXT).text
        assert not [failed for step in self.steps for failed in step.failed]
