"""The jobs of the front (docs/protocol.md#life-of-a-job): how they are admitted and refused, how all leave, and what is
written of each in the log, the counters and the spans. It never waits for the engine.
"""

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from math import ceil, inf, isclose
from typing import TYPE_CHECKING

from worker.apis.core.bodies import ReadyState, State
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
from worker.observe.redaction import Secrets
from worker.server.front.client import EngineClient, EngineState, Observer
from worker.server.front.job import Admission, Job, in_ms
from worker.server.front.supervision import failures_to
from worker.wire.jobs import JobKey, StepDone
from worker.wire.load import Loaded, PrefixCacheFound, Residency
from worker.wire.prompts import Conversation

if TYPE_CHECKING:
    from worker.observe.traces import Traces, Value  # an extra

log = get_logger()

LOADING_RETRY_S = 5
MAX_RETRY_S = 600

_NEWEST_WEIGHT = 0.1
"""The weight of the newest job in the running mean of the times that jobs have their slots."""

MAX_LOGGED_ID = 256
"""The largest number of characters of a client's job_id in a log line, and of any client's text in a span."""


class Phase(Enum):
    """The rows of docs/protocol.md#http, with the words of `state` in `/health`, and in `/v1/ready`, where a ready
    worker with jobs is "busy"."""

    STARTING = "starting", "loading"
    READY = "ready", "idle"
    RESTARTING = "restarting", "loading"
    """The engine died, and its successor is not ready yet."""
    DRAINING = "draining", "draining"
    """No new work is taken; accepted jobs go on."""
    FAILED = "failed", "error"
    """The worker is about to exit with code 1."""

    def __init__(self, word: State, ready_word: ReadyState) -> None:
        self.word, self.ready_word = word, ready_word


@dataclass(slots=True)
class EngineStatus:
    """The last reports of the current engine about itself; `EngineStatus()` before the first."""

    step: StepDone = field(default_factory=StepDone)
    residency: Residency | None = None
    found: PrefixCacheFound | None = None

    def residency_of(self, facts: Loaded) -> Residency:
        """Return where the model is, by the engine's last report, or after the load if there is none."""
        return self.residency or Residency(is_resident=facts.resident, memory_bytes=facts.memory_bytes)


def retry_after_s(service_s: float, *, n_waiting: int, n_slots: int) -> int:
    """Return the whole seconds until a place should be free for one more; 1..MAX_RETRY_S. Jobs have their slots for
    `service_s`."""
    return min(max(1, ceil(service_s * (n_waiting + 1) / n_slots)), MAX_RETRY_S)


class FrontJobs(Observer):
    """The part of a Front that a job meets."""

    def __init__(self, settings: Settings, metrics: Metrics, traces: "Traces | None") -> None:
        self.settings = settings
        self.metrics = metrics
        self._is_open = self._is_draining = False
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
        self._service_s = 1.0
        self._secrets = Secrets(settings.api_key)
        self._traces = traces
        self._timers: dict[JobKey, asyncio.TimerHandle] = {}
        self._engine_status = EngineStatus()

    @property
    def phase(self) -> Phase:
        """The worker's phase: nothing leads away from a failure, and only a failure ends a drain."""
        if self.fatal.done():
            return Phase.FAILED
        if self._is_draining:
            return Phase.DRAINING
        if self._client is None or not self._is_open:
            return Phase.STARTING
        return Phase.READY if self._client.state is EngineState.RUNNING else Phase.RESTARTING

    @property
    def facts(self) -> Loaded | None:
        return self._client.facts if self._client is not None else None

    @property
    def vram_bytes(self) -> int:
        """The bytes of the model on the device; 0 on a CPU, where `memory_bytes` has the figure."""
        if (facts := self.facts) is None or facts.backend == "cpu":
            return 0
        return self._engine_status.residency_of(facts).memory_bytes

    @property
    def n_running(self) -> int:
        """The number of jobs in a slot; one that has begun may wait for a slot again."""
        n_begun = sum(job.is_running for job in self.jobs.values())
        return max(0, n_begun - self._engine_status.step.n_paused)

    @property
    def n_waiting(self) -> int:
        return len(self.jobs) - self.n_running

    def on_fatal(self, error: StartupError) -> None:
        """Fail, because a part of the worker is lost that nothing replaces. Only the first reason is reported."""
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
        return [self._begin(request, admission) for request in requests]

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
            retry_after_s(self._service_s, n_waiting=self.n_waiting, n_slots=facts.parallel),
        )

    def _begin(self, request: JobRequest, admission: Admission) -> Job:
        assert self._client is not None
        self._n_jobs += 1
        job = Job(JobKey(self._n_jobs), request, admission, self._on_job_end)
        self.jobs[request.job_id] = job
        self.idle.clear()
        if admission.expires_s < inf:
            left_s = admission.expires_s - time.monotonic()
            self._timers[job.key] = asyncio.get_running_loop().call_later(left_s, self._time_is_up, job)
        log.info("execute_start", **self._logged(job))
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
        self._report_end(job)
        if not self.jobs:
            self.idle.set()

    def _report_end(self, job: Job) -> None:
        """Write one canonical line, the counters and the span of a job that has its outcome."""
        assert job.outcome is not None
        if job.outcome == "success":
            self._service_s += _NEWEST_WEIGHT * (job.service_s - self._service_s)
        if job.finish_reason is None:
            self.metrics.rejected()
        else:
            self.metrics.finished(
                job.outcome,
                job.finish_reason,
                had_slot=job.queue_time_s is not None,
                n_answers=job.request.asked.n if job.request.number == 0 else None,
                max_tokens=job.frame.sampling.max_tokens,
                prompt_tokens=job.prompt_tokens,
                cached_tokens=job.cached_tokens,
                tokens_generated=job.tokens_sampled,
                duration_s=job.age_s,
                prefill_s=job.prefill_time_s,
                decode_s=job.decode_time_s,
            )
        if self._traces is not None:
            its = job.admission
            self._traces.add(its.trace, its.correlation_id, its.arrived_s, job.code, self._span_of(job))
        log.info(
            "execute_end",
            **self._logged(job),
            outcome=job.outcome,
            code=job.code,
            tokens_in=job.prompt_tokens,
            cached_tokens=job.cached_tokens,
            tokens_out=job.tokens_out,
            queue_time_ms=in_ms(job.queue_time_s),
            time_to_first_token_ms=in_ms(job.time_to_first_token_s),
            decode_time_ms=in_ms(job.decode_time_s),
        )

    def _logged(self, job: Job) -> dict[str, object]:
        return {
            "job_id": self._shown(job.request.job_id),
            "correlation_id": job.admission.correlation_id,
            "model_ref": self.settings.reported_model_ref,
            "device": self.facts.device_name if self.facts is not None else None,
        }

    def _shown(self, text: str) -> str:
        """Mask a client's text before it is cut: a client may send the API key anywhere in its job_id."""
        return self._secrets.mask_known(text)[:MAX_LOGGED_ID]

    def _span_of(self, job: Job) -> "dict[str, Value | None]":
        request, frame, sampling = job.request, job.frame, job.frame.sampling
        served = self.settings.served_name(self.facts.name if self.facts is not None else "")
        return {
            "gen_ai.operation.name": "chat" if isinstance(frame.prompt, Conversation) else "text_completion",
            "gen_ai.request.id": self._shown(request.job_id),
            "gen_ai.request.model": self._shown(request.asked.model or served),
            "gen_ai.request.max_tokens": sampling.max_tokens,
            "gen_ai.request.temperature": sampling.temperature,
            "gen_ai.request.top_p": sampling.top_p,
            "gen_ai.response.model": served,
            "gen_ai.response.finish_reasons": None if job.finish_reason is None else [job.finish_reason],
            "gen_ai.usage.prompt_tokens": job.prompt_tokens,
            "gen_ai.usage.input_tokens": job.prompt_tokens,
            "gen_ai.usage.cache_read.input_tokens": job.cached_tokens,
            "gen_ai.usage.completion_tokens": job.tokens_sampled,
            "gen_ai.usage.output_tokens": job.tokens_sampled,
            "gen_ai.latency.time_in_queue": job.queue_time_s,
            "gen_ai.latency.time_to_first_token": job.time_to_first_token_s,
            "gen_ai.latency.time_in_model_prefill": job.prefill_time_s,
            "gen_ai.latency.time_in_model_decode": None if job.time_to_first_token_s is None else job.decode_time_s,
            "gen_ai.latency.e2e": job.age_s,
        }

    def cancel(self, job_id: str) -> None:
        """End a job, or all jobs of an answer, whatever they are doing; unknown ids are fine."""
        for job in list(self.jobs.values()):
            if job_id in (job.request.job_id, job.request.answer_id):
                job.fail("CANCELLED", "Job cancelled by client request")

    def refused(
        self, trace: Mapping[str, str], correlation_id: str, began_s: float, code: str, operation: str | None
    ) -> None:
        """Count and trace a request that was refused before it became a job; `operation` is None if only the body could
        show it."""
        self.metrics.rejected()
        if self._traces is not None:
            self._traces.add(trace, correlation_id, began_s, code, {"gen_ai.operation.name": operation})

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
