"""The front's handle on the engine, whichever process that is at the moment: submit, cancel, survive its death.

Runs on the front's event loop. Owns the generations, the watchdog and the rules of PROTOCOL.md 6 for jobs whose engine
died; knows nothing of HTTP. `Observer` hears what the rest of the front must know.

    LOADING ──Loaded──▶ RUNNING ──death──▶ RESTARTING ──Loaded──▶ RUNNING
       └──death, LoadFailed──▶ FAILED ◀──fifth death in ten minutes──┘
"""

import asyncio
import sys
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from enum import Enum, auto
from typing import Protocol

import msgspec

from worker.engine.contract import (
    Accepted,
    Cancel,
    Configure,
    Inbound,
    JobKey,
    Loaded,
    LoadFailed,
    Outbound,
    Progress,
    Refused,
    StepBegun,
    StepDone,
)
from worker.engine_link import EngineLink, LinkOwner
from worker.engine_setup import load_error
from worker.errors import EngineCrashed, StartupError
from worker.job import Job, StreamCode
from worker.verdict import MAX_DEATHS, Deaths, judge
from worker.watchdog import Watchdog

ENGINE_COMMAND = (sys.executable, "-P", "-m", "worker.engine_process")
"""-P: the working directory must not be able to plant modules."""


class EngineState(Enum):
    LOADING = auto()
    RUNNING = auto()
    RESTARTING = auto()
    FAILED = auto()
    CLOSED = auto()


class Observer(Protocol):
    """What the front wants to hear; front.py and the tests' recorder."""

    def on_progress(self, percent: int) -> None: ...

    def on_step(self, step: StepDone) -> None: ...

    def on_engine_line(self, line: str) -> None: ...

    def on_restarting(self, cause: str, last_words: str) -> None: ...

    def on_restarted(self, facts: Loaded) -> None: ...

    def on_engine_failed(self, error: StartupError) -> None: ...


class Link(Protocol):
    """One engine of a generation: EngineLink, and the tests' engine that is no process."""

    @property
    def pid(self) -> int: ...

    def send(self, message: Inbound) -> None: ...

    def kill(self, cause: str) -> None: ...

    async def close(self) -> None: ...


Spawn = Callable[[Sequence[str], int, LinkOwner, Mapping[str, str]], Awaitable[Link]]


class EngineClient:
    """Call `start` once; then `submit` and `release` until `close`."""

    def __init__(
        self,
        config: Configure,
        observer: Observer,
        *,
        environment: Mapping[str, str],
        watchdog_s: float,
        command: Sequence[str] = ENGINE_COMMAND,
        spawn: Spawn = EngineLink.spawn,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = config
        self._observer = observer
        self._environment = environment
        self._command = command
        self._spawn_link = spawn
        self._clock = clock
        self._watchdog = Watchdog(self._kill, floor_s=watchdog_s, clock=clock)
        self._link: Link | None = None
        self._generation = 0
        self._first_load: asyncio.Future[Loaded] | None = None
        self._load_failure: StartupError | None = None
        self._spawning: asyncio.Task[None] | None = None
        self.state = EngineState.LOADING
        self.facts: Loaded | None = None
        self._in_flight: dict[JobKey, Job] = {}
        """Every job without its terminal event, in order of arrival."""
        self._held: deque[Job] = deque()
        """Not submitted yet: no engine, or suspects run first."""
        self._suspects: deque[Job] = deque()
        self._alone: Job | None = None
        self._submitted: set[JobKey] = set()
        """What this generation's engine knows of."""
        self._undecided: dict[JobKey, Job] = {}
        """With the intake thread, which takes them in this order."""
        self._has_run: set[JobKey] = set()
        self._step_jobs: tuple[JobKey, ...] = ()
        self._deaths = Deaths()

    # ── life ─────────────────────────────────────────────────────────────────────────────────────

    async def start(self) -> Loaded:
        """Start the first engine and wait for its model. Raises: StartupError with the engine's own reason."""
        self._first_load = asyncio.get_running_loop().create_future()
        self._watchdog.start()
        await self._spawn()
        return await self._first_load

    async def close(self) -> None:
        """End the engine; idempotent. Jobs still in flight are the caller's to end."""
        self.state = EngineState.CLOSED
        self._watchdog.stop()
        if self._spawning is not None:
            await asyncio.wait([self._spawning])
        if self._link is not None:
            await self._link.close()

    async def _spawn(self) -> None:
        self._generation += 1
        self._load_failure = None
        self._watchdog.expect_load()
        try:
            link = await self._spawn_link(self._command, self._generation, self, self._environment)
        except OSError as error:
            self.on_exit(self._generation, f"it could not be started: {error}", "")
            return
        self._link = link
        link.send(self._config)

    def _kill(self, cause: str) -> None:
        if self._link is not None:
            self._link.kill(cause)

    @property
    def engine_pid(self) -> int | None:
        return self._link.pid if self._link is not None else None

    # ── jobs ─────────────────────────────────────────────────────────────────────────────────────

    def submit(self, job: Job) -> None:
        """Take responsibility for a job until its terminal event."""
        self._in_flight[job.key] = job
        self._held.append(job)
        self._pump()

    def release(self, job: Job) -> None:
        """A job has its terminal event: the engine may forget it, and the next may go. Idempotent."""
        if self._in_flight.pop(job.key, None) is None:
            return
        if self._link is not None and job.key in self._submitted:
            self._link.send(Cancel(job=job.key))
        self._settle(job.key)

    def _settle(self, key: JobKey) -> None:
        self._submitted.discard(key)
        self._undecided.pop(key, None)
        self._has_run.discard(key)
        self._watchdog.is_working = bool(self._in_flight)
        self._pump()

    def _pump(self) -> None:
        """Submit what may be submitted: suspects one at a time, before anything else."""
        if self.state is not EngineState.RUNNING:
            return
        if self._alone is not None and not self._alone.is_ended:
            return
        self._alone = None
        while self._suspects:
            job = self._suspects.popleft()
            if not job.is_ended:
                self._alone = job
                self._send(job)
                return
        while self._held:
            job = self._held.popleft()
            if not job.is_ended:
                self._send(job)

    def _send(self, job: Job) -> None:
        assert self._link is not None
        self._submitted.add(job.key)
        self._undecided[job.key] = job
        self._watchdog.is_working = True
        self._link.send(job.submission)

    # ── what the engine says (LinkOwner) ─────────────────────────────────────────────────────────

    def on_message(self, generation: int, message: Outbound) -> None:
        if generation != self._generation or self.state is EngineState.CLOSED:
            return
        self._watchdog.heartbeat()
        match message:
            case Progress(percent=percent):
                self._observer.on_progress(percent)
            case Loaded():
                self._loaded(message)
            case LoadFailed():
                self._load_failure = load_error(message)
            case Accepted(job=key, prompt_tokens=prompt_tokens):
                if job := self._undecided.pop(key, None):
                    job.accept(prompt_tokens)
            case Refused(job=key):
                if job := self._leave(key):
                    job.refuse(message)
                    self._settle(key)
            case StepBegun(jobs=jobs):
                self._step_jobs = jobs
                self._has_run.update(jobs)
            case StepDone():
                self._step_done(message)

    def on_line(self, line: str) -> None:
        self._observer.on_engine_line(line)

    def _loaded(self, facts: Loaded) -> None:
        self._watchdog.loaded()
        is_first = self.facts is None
        self.facts = facts
        self.state = EngineState.RUNNING
        # A successor gets the same shape, whatever memory looks like by then, so that accepted jobs still fit.
        self._config = msgspec.structs.replace(
            self._config, ctx_size=facts.n_cells, parallel=facts.parallel, prefill_chunk=facts.prefill_chunk
        )
        if is_first and self._first_load is not None and not self._first_load.done():
            self._first_load.set_result(facts)
        else:
            self._observer.on_restarted(facts)
        self._pump()

    def _step_done(self, step: StepDone) -> None:
        for key in step.started:
            if job := self._in_flight.get(key):
                job.start()
        for delta in step.deltas:
            if job := self._in_flight.get(delta.job):
                job.delta(delta.text, step.sampled_at_s)
        for finished in step.finished:
            if job := self._leave(finished.job):
                self._deaths.clear()
                job.finish(finished)
                self._settle(finished.job)
        for failed in step.failed:
            if job := self._leave(failed.job):
                job.fail(failed.code, failed.message)
                self._settle(failed.job)
        self._observer.on_step(step)

    def _leave(self, key: JobKey) -> Job | None:
        """The engine has forgotten this job: no Cancel is owed for it."""
        return self._in_flight.pop(key, None)

    # ── death ────────────────────────────────────────────────────────────────────────────────────

    def on_exit(self, generation: int, cause: str, last_words: str) -> None:
        if generation != self._generation or self.state is EngineState.CLOSED:
            return
        if self.state is EngineState.LOADING:
            what = "the engine died while loading the model"
            self._give_up(self._load_failure or EngineCrashed(what, cause, last_words))
            return
        if not self._judge():
            self._deaths.add(self._clock())
        if self._deaths.are_too_many:
            what = f"the engine died {MAX_DEATHS} times without finishing a job"
            self._give_up(EngineCrashed(what, cause, last_words))
            return
        self.state = EngineState.RESTARTING
        self._observer.on_restarting(str(self._load_failure or cause), last_words)
        self._spawning = asyncio.create_task(self._spawn())

    def _judge(self) -> bool:
        """Apply the verdict to each job; True when a culprit was found and ended."""
        failing = {*self._step_jobs, *list(self._undecided)[:1]}
        not_yet_tried = {job.key for job in (self._alone, *self._suspects) if job is not None}
        verdict = judge(self._in_flight.values(), present=failing | self._has_run, suspects=failing | not_yet_tried)
        for job in verdict.interrupted:
            self._end(job, "ENGINE_RESTARTED", "the engine was restarted while this job was generating")
        for job in verdict.culprits:
            self._end(job, "INFERENCE_FAILED", "the engine died twice while running this job")
        for job in (*verdict.suspects, *verdict.bystanders):
            job.rewind()
        self._suspects = deque(verdict.suspects)
        self._held = deque(verdict.bystanders)
        self._alone = None
        self._submitted.clear()
        self._undecided.clear()
        self._has_run.clear()
        self._step_jobs = ()
        self._watchdog.is_working = bool(self._in_flight)
        return bool(verdict.culprits)

    def _end(self, job: Job, code: StreamCode, message: str) -> None:
        del self._in_flight[job.key]
        job.fail(code, message)

    def _give_up(self, error: StartupError) -> None:
        self.state = EngineState.FAILED
        self._watchdog.stop()
        for job in list(self._in_flight.values()):
            self._end(job, "INFERENCE_FAILED", "the engine could not be kept alive")
        if self._first_load is not None and not self._first_load.done():
            self._first_load.set_exception(error)
        else:
            self._observer.on_engine_failed(error)
