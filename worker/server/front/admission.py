"""The jobs of the front: which are admitted, in which order others are refused, and how all leave.

It runs on the front's event loop and never waits for the engine (docs/protocol.md#life-of-a-job). state.py has what
else becomes of a worker.
"""

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import inf, isclose
from typing import TYPE_CHECKING

from worker.apis.core.received import parse_deadline
from worker.apis.core.request import JobRequest
from worker.config.settings import Settings
from worker.errors import (
    DeadlineExceeded,
    DuplicateJob,
    StartupError,
    WorkerBusy,
    WorkerDraining,
    WorkerLoading,
    WorkerUnhealthy,
)
from worker.observe.log_lines import get_logger
from worker.observe.metrics import Metrics
from worker.server.front.client import EngineClient, Observer
from worker.server.front.health import LEGAL_MOVES, EngineStatus, Phase
from worker.server.front.job import Admission, Job
from worker.server.front.job_log import JobLog
from worker.server.front.supervision import failures_to
from worker.wire.jobs import JobKey, StepDone
from worker.wire.load import Loaded

if TYPE_CHECKING:
    from worker.observe.traces import Traces  # an extra

log = get_logger()

LOADING_RETRY_S = 5


class FrontJobs(Observer):
    """The part of a Front that a job meets."""

    def __init__(self, settings: Settings, metrics: Metrics, traces: "Traces | None") -> None:
        self.settings = settings
        self.metrics = metrics
        self.phase = Phase.STARTING
        self.jobs: dict[str, Job] = {}
        """The jobs in flight, by the client's job_id."""
        self.unwatched = asyncio.Event()
        """It is set while no response is being written; after a drain clients get a moment to read their last events.
        """
        self.unwatched.set()
        self._n_streams = 0
        self.idle = asyncio.Event()
        self.idle.set()
        self.fatal: asyncio.Future[StartupError] = asyncio.get_running_loop().create_future()
        self._client: EngineClient | None = None
        self._n_jobs = 0
        self._traces = traces
        self._job_log = JobLog(settings, metrics, traces)
        self._timers: dict[JobKey, asyncio.TimerHandle] = {}
        self._engine_status = EngineStatus()

    @property
    def facts(self) -> Loaded | None:
        return self._client.facts if self._client is not None else None

    @property
    def vram_bytes(self) -> int:
        """The bytes of the model on the device; 0 on a CPU, where `memory_bytes` has the figure."""
        facts = self.facts
        return (
            self._engine_status.residency_of(facts).memory_bytes if facts is not None and facts.backend != "cpu" else 0
        )

    @property
    def n_running(self) -> int:
        """The number of jobs in a slot; one that has begun may wait for a slot again."""
        n_begun = sum(job.is_running for job in self.jobs.values())
        return max(0, n_begun - self._engine_status.step.n_paused)

    @property
    def n_waiting(self) -> int:
        return len(self.jobs) - self.n_running

    def _move(self, phase: Phase) -> None:
        """The only way to another phase. Raises: AssertionError for a move that LEGAL_MOVES lacks."""
        assert phase in LEGAL_MOVES[self.phase], f"front: {self.phase.name} -> {phase.name} is not a legal move"
        self.phase = phase

    def on_fatal(self, error: StartupError) -> None:
        """Fail, because a part of the worker is lost that nothing replaces. Only the first reason is reported."""
        if self.phase is not Phase.FAILED:
            self._move(Phase.FAILED)
        if not self.fatal.done():
            self.fatal.set_result(error)

    # ── jobs ─────────────────────────────────────────────────────────────────────────────────────

    def open_jobs(
        self,
        requests: Sequence[JobRequest],
        deadline: str | None,
        correlation_id: str,
        *,
        timeout_s: float | None,
        trace: Mapping[str, str],
        is_crowded: bool,
    ) -> list[Job]:
        """Admit the jobs of one answer, all or none. They share one `woken`.

        `timeout_s` is their longest life; None means as long as it takes. `trace` is Admission.trace. `is_crowded` says
        that only the reserved connections are left.
        Raises: WorkerError in docs/protocol.md#http's order: state, deadline, duplicate, busy.
        """
        arrived_s = time.monotonic()
        facts = self._check_state()
        expires_s = inf if timeout_s is None else arrived_s + timeout_s
        if deadline is not None:
            left_s = parse_deadline(deadline) - time.time()
            if left_s <= 0:
                raise DeadlineExceeded(f"X-Deadline passed {-left_s:.3f} s before the request arrived")
            expires_s = min(expires_s, arrived_s + left_s)
        if any(request.job_id in self.jobs for request in requests):
            raise DuplicateJob("a job with this job_id is in flight; wait for its terminal event or choose another id")
        if is_crowded:
            raise WorkerBusy("too many connections are open; try again later", retry_after_s=1)
        self._check_room(facts, len(requests))
        admission = Admission(
            correlation_id=correlation_id,
            trace=trace,
            arrived_s=arrived_s,
            expires_s=expires_s,
            model=facts.name,
            vram_bytes=self.vram_bytes,
            metrics=self.metrics,
        )
        return [self._begin(request, admission, facts) for request in requests]

    def _check_state(self) -> Loaded:
        facts = self.facts
        match self.phase:
            case Phase.READY:
                assert facts is not None
                return facts
            case Phase.STARTING:
                raise WorkerLoading("the model is still loading", LOADING_RETRY_S)
            case Phase.RESTARTING:
                raise WorkerLoading("the engine is being restarted", LOADING_RETRY_S)
            case Phase.DRAINING:
                raise WorkerDraining("the worker is shutting down and takes no new jobs")
            case Phase.FAILED:
                raise WorkerUnhealthy("the worker has failed and is about to exit")

    def _check_room(self, facts: Loaded, n_more: int) -> None:
        assert self._client is not None
        if len(self.jobs) + self._client.jobs.n_leaving + n_more <= facts.parallel + self.settings.max_queue:
            return
        there = f"{facts.parallel} jobs are running and {self.settings.max_queue} waiting"
        raise WorkerBusy(
            f"{there if n_more == 1 else f'there is no room for {n_more} jobs at once'}; try again later",
            self._job_log.throughput.wait_s(n_waiting=self.n_waiting, n_slots=facts.parallel),
        )

    def _begin(self, request: JobRequest, admission: Admission, facts: Loaded) -> Job:
        assert self._client is not None
        self._n_jobs += 1
        job = Job(JobKey(self._n_jobs), request, admission, self._on_job_end)
        self.jobs[request.job_id] = job
        self.idle.clear()
        if admission.expires_s < inf:
            left_s = admission.expires_s - time.monotonic()
            self._timers[job.key] = asyncio.get_running_loop().call_later(left_s, self._time_is_up, job)
        self._job_log.began(job, facts)
        self._client.jobs.submit(job)
        return job

    def _time_is_up(self, job: Job) -> None:
        with failures_to(self.on_fatal, "a job's time-out"):
            limit_s, had_s = self.settings.execute_timeout_s, job.admission.expires_s - job.admission.arrived_s
            is_own = isclose(had_s, limit_s, abs_tol=1e-6)
            job.fail(
                "TIMEOUT",
                f"the job exceeded --inference-timeout-sec ({limit_s:g} s)" if is_own else "X-Deadline passed",
            )

    def _on_job_end(self, job: Job) -> None:
        """Let a job leave, whatever ended it. This is the only place where jobs leave."""
        del self.jobs[job.request.job_id]
        if timer := self._timers.pop(job.key, None):
            timer.cancel()
        assert self._client is not None
        self._client.jobs.release(job)
        self._job_log.ended(job, self.facts)
        if not self.jobs:
            self.idle.set()

    def cancel(self, job_id: str) -> None:
        """End a job, or all jobs of an answer, whatever they are doing; unknown ids are fine."""
        for job in list(self.jobs.values()):
            if job_id in (job.request.job_id, job.request.answer_id):
                job.fail("CANCELLED", "Job cancelled by client request")

    def refused(
        self, trace: Mapping[str, str], correlation_id: str, began_s: float, code: str, operation: str | None
    ) -> None:
        """Count and trace a request that was refused before it became a job; the arguments are those of
        Traces.refused."""
        self.metrics.rejected()
        if self._traces is not None:
            self._traces.refused(trace, correlation_id, began_s, code, operation)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Count a response that is being written."""
        self._n_streams += 1
        self.unwatched.clear()
        try:
            yield
        finally:
            self._n_streams -= 1
            if not self._n_streams:
                self.unwatched.set()

    def on_step(self, step: StepDone) -> None:
        n_before, self._engine_status.step = self._engine_status.step.n_threads, step
        if n_before not in (0, step.n_threads):
            log.info("threads_changed", threads=step.n_threads, before=n_before)
        self.metrics.step(step)
