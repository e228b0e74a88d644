"""An engine on the fake backend, with a witness in the front's place that checks the laws at every frame and step."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import ceil
from typing import Literal

from tests.engine.fake_runner import FakeRunner, Outcome, Request, ToyModel, alone
from tests.engine.toy_constraint import ToyConstraint
from tests.kv_mirror import Mirror, blocks_of
from tests.queued import queued
from worker.config.engine_settings import Scheduling
from worker.engine.checkpoints import Stops
from worker.engine.config import EngineConfig
from worker.engine.loop import Engine
from worker.engine.prefill_budget import GRAIN
from worker.engine.prefix_tree import n_common
from worker.engine.scheduler import PASSES, FairShares, FirstCome, policy_of
from worker.engine.sequence import Sequence, State
from worker.engine.step import Step
from worker.limits import MAX_DRAFTS
from worker.wire.jobs import (
    Failed,
    Finished,
    JobKey,
    Logprob,
    PromptLogprobs,
    SamplingParams,
    SlotId,
    StepBegun,
    StepDone,
    StepKind,
    TokenId,
)
from worker.wire.load import PrefixCacheFound
from worker.wire.messages import BlocksChanged, Outbound

MAX_STEPS = 5_000
Misfortune = Literal["no room", "abort"]


@dataclass(slots=True)
class Story:
    """The messages of one job to the front."""

    is_started: bool = False
    is_cancelled: bool = False
    prompt_logprobs: list[Logprob] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    end: Finished | Failed | None = None

    @property
    def text(self) -> str:
        return "".join(self.texts)

    @property
    def is_over(self) -> bool:
        return self.end is not None or self.is_cancelled


class Rig:
    """Job keys count up from 0 in the order of arrival. With `stops` the model has recurrent state."""

    def __init__(
        self,
        model: ToyModel | None = None,
        *,
        n_slots: int = 8,
        chunk: int = 8,
        context_length: int = 100,
        n_cells: int = 800,
        widest_step: int = 0,
        prefix_cache_bytes: int = 0,
        can_share: bool = True,
        stops: Stops | None = None,
        max_undone: int = MAX_DRAFTS,
        row_costs: tuple[tuple[int, float], ...] = (),
        history_bytes: int = 0,
        is_deterministic: bool = False,
        n_retained: int = 1,
        max_dead_cells: int = 0,
        scheduling: Scheduling = "fair",
        reports_blocks: bool = False,
        is_asynchronous: bool = False,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self.model = model or ToyModel()
        self.n_slots = n_slots
        self.max_dead_cells = max_dead_cells
        self.context_length = context_length
        config = EngineConfig(
            n_slots=n_slots,
            n_cells=n_cells,
            context_length=context_length,
            chunk=chunk,
            widest_step=widest_step,
            prefix_cache_bytes=prefix_cache_bytes,
            retained_slots=tuple(SlotId(n_slots + i) for i in range(n_retained)),
            max_dead_cells=max_dead_cells,
            row_costs=row_costs,
            history_bytes=history_bytes,
            is_deterministic=is_deterministic,
            scheduling=scheduling,
            reports_blocks=reports_blocks,
            stops=stops,
        )
        self.runner = FakeRunner.of(
            self.model, config, can_share=can_share, has_state=stops is not None, is_asynchronous=is_asynchronous
        )
        self.runner.kv.max_undone = max_undone
        self.runner.before_run = self._at_run
        self.mirror = Mirror() if reports_blocks else None
        """The blocks that a router knows of."""
        self._tokens: list[list[TokenId]] = []
        """The tokens of all jobs there were; the lists grow with what is drawn."""
        self._can_share = can_share
        self._is_deterministic = is_deterministic
        clock = clock or (lambda: float(len(self.frames)))
        self.engine = Engine(self.runner, config, emit=self._hear, clock=clock)
        self.requests: list[Request] = []
        self.stories: list[Story] = []
        self.frames: list[Outbound] = []
        self.kinds: list[StepKind] = []
        """One for each step that ran, however often it was split."""
        self.started: list[JobKey] = []
        self.next_misfortune: Misfortune | None = None
        self.is_on_device = max_dead_cells > 0
        self.policy = policy_of(config, can_keep=can_share and (prefix_cache_bytes > 0 or self.is_on_device))
        self.n_victims = self.n_preempted = 0
        self.n_cached: dict[JobKey, int] = {}
        """The cached tokens of a job when it began."""
        self.n_cells_reported = 0
        """The cells that the front believes are in use."""
        self.without_room: set[JobKey] = set()
        """Jobs that were alone when the library had no room: there was no job to pause."""
        self._announced: tuple[JobKey, ...] = ()
        self._prefill_due: dict[JobKey, int] = {}
        """job → the number of steps by which its prompt is to be computed"""
        self._is_first_run_of_step = True

    @property
    def n_retained(self) -> int:
        """The number of tokens in retained slots."""
        return sum(len(each.tokens) for each in self.engine.prefix_cache.retained.values())

    def submit(self, request: Request) -> JobKey:
        if self.mirror is not None:
            # Events tell a block's hash, which has the salt, and its tokens, which have none (test_salt.py).
            request = replace(request, salt=b"")
        job = JobKey(len(self.requests))
        self.requests.append(request)
        self.stories.append(Story())
        prompt = [TokenId(token) for token in request.prompt]
        sampling = SamplingParams(seed=request.seed, logprobs=0 if request.has_logprobs else None)
        constraint = None if request.constraint is None else ToyConstraint(request.constraint)
        self.engine.submit(
            queued(
                job,
                prompt,
                request.max_tokens,
                sampling,
                request.stop,
                constraint=constraint,
                prompt_logprobs=request.prompt_logprobs,
                prediction=[TokenId(token) for token in request.prediction],
                salt=request.salt,
            )
        )
        sequence = self.engine.scheduler.find(job)
        assert sequence is not None
        self._tokens.append(sequence.tokens)
        return job

    def cancel(self, job: JobKey) -> None:
        story = self.stories[job]
        is_there = self.engine.scheduler.find(job) is not None
        # If a device computes, the job's tokens and end may be on their way.
        story.is_cancelled |= is_there and not self.runner.is_asynchronous
        self.engine.cancel(job)
        story.is_cancelled |= is_there
        self.check()

    def step(self) -> None:
        self._is_first_run_of_step = True
        n_saved, n_steps = self.runner.kv.n_saved, len(self.kinds)
        self.engine.step()
        if self.is_on_device:
            assert self.runner.kv.n_saved == n_saved, "a device copies nothing out for a step"
        if self.is_on_device and self.engine.scheduler.running and len(self.kinds) > n_steps:
            assert self.engine.prefix_cache.n_dead_cells <= self.max_dead_cells, "no more than the budget"
        assert self.engine.step_jobs == frozenset()
        self.check()

    def run_until_idle(self) -> None:
        for _ in range(MAX_STEPS):
            if self.engine.is_idle:
                break
            self.step()
        assert self.engine.is_idle, "nothing may be left waiting"
        while self.engine.tidy():
            self.check()
        lengths = [len(each.tokens) for each in self.engine.prefix_cache.retained.values()]
        assert self.is_on_device or len(lengths) < 2, "an idle engine holds its last job's cells at most"
        assert max(lengths, default=0) <= self.runner.kv.n_cells_used <= sum(lengths)

    def outcome(self, job: JobKey) -> Outcome:
        return alone(self.model, self.requests[job], self.context_length)

    def _hear(self, frame: Outbound) -> None:
        self.frames.append(frame)
        match frame:
            case StepBegun(jobs=jobs):
                assert jobs != self._announced, "only a change is announced"
                self._announced = jobs
            case StepDone():
                self._hear_step_done(frame)
            case BlocksChanged(changes=changes) if self.mirror is not None:
                assert changes, "only a change is reported"
                self.mirror.hear(changes)
            case PrefixCacheFound():
                pass
            case _:
                raise AssertionError(f"the loop does not send {frame}")

    def _hear_step_done(self, frame: StepDone) -> None:
        for started in frame.started:
            job = started.job
            assert not self.stories[job].is_started
            self.stories[job].is_started = True
            self.started.append(job)
            self.n_cached[job] = started.n_cached
            self._check_cached(job, started.n_cached)
            self._prefill_due[job] = len(self.kinds) + 2 * (PASSES + 1) * self._n_chunks_ahead()
        self.n_victims += frame.n_victims
        self.n_preempted += frame.n_preempted
        if frame.n_victims or frame.n_paused or isinstance(self.policy, FairShares):
            # A job that goes on after a pause comes before those that began meanwhile.
            self._prefill_due.clear()
        for part in frame.prompt_logprobs:
            self._hear_prompt_logprobs(part)
        for delta in frame.deltas:
            self._running_story(delta.job).texts.append(delta.text)
        for end in frame.finished + frame.failed:
            self._running_story(end.job).end = end
        self.n_cells_reported = frame.cells_used

    def _check_cached(self, job: JobKey, n_cached: int) -> None:
        """A job finds only tokens of other jobs of its salt; one that was paused may find its own."""
        sequence = self.engine.scheduler.find(job)
        if sequence is not None and not sequence.n_pauses and any(request.salt for request in self.requests):
            others = [tokens for other, tokens in enumerate(self._tokens) if other != job]
            n_known = max((n_common(sequence.tokens, tokens) for tokens in others), default=0)
            assert n_cached <= n_known, "nothing of another salt is shared"

    def _hear_prompt_logprobs(self, part: PromptLogprobs) -> None:
        story, request = self._running_story(part.job), self.requests[part.job]
        assert request.prompt_logprobs is not None, "a job that asked for none gets none"
        assert not story.texts, "they come before all tokens"
        assert part.tokens, "a part has some"
        assert part.start == 1 + len(story.prompt_logprobs), "they come in order, once, without gaps"
        story.prompt_logprobs += part.tokens

    def _running_story(self, job: JobKey) -> Story:
        story = self.stories[job]
        assert story.is_started, "started comes before anything else of a job"
        assert not story.is_over, "nothing comes after a job's end"
        return story

    def _n_chunks_ahead(self) -> int:
        """Slices until everything that is in prefill is computed; a first one may be short."""
        prefilling = [one for one in self.engine.scheduler.running.values() if one.state is State.PREFILL]
        return sum(ceil(one.n_to_compute / self.runner.chunk) + 1 for one in prefilling)

    def _at_run(self, step: Step) -> None:
        running = self.engine.scheduler.running
        jobs = tuple(running[slice_.slot].job for slice_ in step.slices)
        if self._is_first_run_of_step:
            self._is_first_run_of_step = False
            self._check_turns(step.kind)
            assert self._announced == jobs, "the front knows whom to blame"
            assert self.engine.step_jobs == frozenset(jobs)
        assert set(jobs) <= set(self._announced)
        for slice_ in step.slices if step.kind == "prefill" else ():
            end = slice_.start + len(slice_.tokens)
            is_last = end == len(running[slice_.slot].tokens) or end in running[slice_.slot].stops
            assert is_last or end % min(self.runner.chunk, GRAIN) == 0, "only the end stops short of an edge"
        self._let_it_happen(jobs)

    def _check_turns(self, kind: StepKind) -> None:
        """Neither prefill nor decode goes twice in a row while the other has work: no job starves."""
        if self.kinds and self.kinds[-1] == kind:
            other = State.DECODE if kind == "prefill" else State.PREFILL
            assert not any(sequence.state is other for sequence in self.engine.scheduler.running.values())
        self.kinds.append(kind)

    def _let_it_happen(self, jobs: tuple[JobKey, ...]) -> None:
        """A failure costs a prompt at most its own turn and the decode step before the next."""
        if self.next_misfortune is None:
            return
        if self.next_misfortune == "abort":
            self.runner.request_abort()
        else:
            self.runner.has_room = False
            if len(self.engine.scheduler.running) == 1:
                self.without_room.update(jobs)
        self.next_misfortune = None
        self._prefill_due = {job: due + 2 for job, due in self._prefill_due.items()}

    def check(self) -> None:
        scheduler = self.engine.scheduler
        running = scheduler.running
        assert sorted([*scheduler.free_slots, *running]) == list(range(self.n_slots))
        n_used = self.runner.kv.n_cells_used - self.engine.prefix_cache.n_dead_cells if running else 0
        assert self.n_cells_reported == n_used, "the front knows how full the cache is"
        for slot in scheduler.free_slots:
            is_retained = slot in self.engine.prefix_cache.retained
            assert not self.runner.kv.held[slot] or is_retained, "a free slot holds nothing that nobody knows of"
        for sequence in running.values():
            self._check_running(sequence)
        waiting = [sequence.job for sequence in scheduler.waiting]
        assert scheduler.waiting == sorted(scheduler.waiting, key=self.policy.rank), "the first waits first"
        if isinstance(self.policy, FirstCome):
            assert waiting == sorted(waiting), "the oldest waits first"
            # One that was paused has had a slot: it may have lost it while it waited there for its prefix.
            new = [one.job for one in scheduler.waiting if not (one.is_begun or one.n_pauses)]
            assert all(job < new[0] for job in self.started if new), "no job begins before an older one has a slot"
            assert not self.n_preempted
        over = sum(story.is_over for story in self.stories)
        assert over + len(running) + len(waiting) == len(self.stories), "every job is somewhere"
        if self.mirror is not None:
            self._check_blocks(self.mirror)

    def _check_blocks(self, mirror: Mirror) -> None:
        """The reported blocks are those that the slots hold and the index finds."""
        found = [tokens[: self.engine.prefix_cache.index.match(tokens)] for tokens in self._tokens]
        assert mirror.blocks("CPU") == set().union(*map(blocks_of, found)), "what is kept is reported"
        held = [list(tokens) for tokens in self.runner.kv.held] if self._can_share else []
        for slot, sequence in self.engine.scheduler.running.items() if self._can_share else ():
            if self._is_deterministic:
                del held[slot][len(sequence.prompt) :]
        assert mirror.blocks("GPU") == set().union(*map(blocks_of, held)), "what is computed is reported"

    def _check_running(self, sequence: Sequence) -> None:
        assert sequence.slot is not None
        tokens = sequence.prompt + sequence.generated
        assert sequence.tokens == tokens
        assert self.runner.kv.held[sequence.slot] == tokens[: sequence.n_computed], "no token lost, doubled or leaked"
        n_reported = len(self.stories[sequence.job].texts)
        assert n_reported + len(sequence.unreported) == len(sequence.generated), "one Delta per token"
        assert n_reported == 0 or not sequence.unreported, "what is forced before the first draw is reported with it"
        for i, score in enumerate(sequence.scores[1:], 1):
            assert score == self.model.score(tokens[:i], tokens[i]), "no score of another prompt"
        if sequence.is_scoring:
            assert len(sequence.scores) > sequence.n_computed, "no score is missing"
        if sequence.state is State.PREFILL and sequence.job in self._prefill_due:
            assert len(self.kinds) < self._prefill_due[sequence.job], "the prompt waits longer than its turn"

    def check_story(self, job: JobKey) -> None:
        """The job's messages are those of a run alone, or the part of them that its early end left."""
        story, expected = self.stories[job], self.outcome(job)
        self._check_prompt_logprobs(story, self.requests[job])
        assert expected.text.startswith(story.text)
        if story.is_cancelled:
            assert story.end is None
        elif job in self.without_room:
            assert isinstance(story.end, Failed)
            assert story.end.code == "VRAM_OOM"
        elif expected.end == "INFERENCE_FAILED":
            assert isinstance(story.end, Failed)
            assert (story.end.code, len(story.texts)) == (expected.end, expected.n_drawn)
        else:
            assert isinstance(story.end, Finished)
            assert (story.text, len(story.texts)) == (expected.text, expected.n_drawn)
            said = (story.end.reason, story.end.stop, story.end.is_context_full)
            assert said == (expected.end, expected.stop, expected.is_context_full)

    def _check_prompt_logprobs(self, story: Story, request: Request) -> None:
        """All of them are reported before anything else; an early end may leave a part."""
        if request.prompt_logprobs is None:
            assert not story.prompt_logprobs
            return
        expected = self.model.prompt_logprobs(request.prompt, request.prompt_logprobs)
        assert story.prompt_logprobs == expected[: len(story.prompt_logprobs)]
        if story.texts or isinstance(story.end, Finished):
            assert len(story.prompt_logprobs) == len(expected)

    def check_stories(self) -> None:
        for job in range(len(self.stories)):
            self.check_story(JobKey(job))
        self._check_drafts()

    def _check_drafts(self) -> None:
        """The jobs' counts of drafts are the steps', as far as jobs came to an end that reports them."""
        steps = [frame for frame in self.frames if isinstance(frame, StepDone)]
        ends = [story.end for story in self.stories if isinstance(story.end, Finished)]
        of_steps = [sum(step.n_drafted for step in steps), sum(step.n_accepted for step in steps)]
        of_jobs = [sum(end.n_drafted for end in ends), sum(end.n_accepted for end in ends)]
        assert all(0 <= end.n_accepted <= end.n_drafted for end in ends)
        if len(ends) == len(self.stories):
            assert of_jobs == of_steps
        else:
            assert all(n_reported <= n for n_reported, n in zip(of_jobs, of_steps, strict=True))
