"""The front: one worker's state, its jobs, and the order of its refusals (docs/protocol.md 3, 4 and 6).

It runs on the front's event loop and never waits for the engine: health and refusals come from cached state.
web/ turns its methods into HTTP, serve.py starts and ends it.
"""

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import inf, isclose
from typing import TYPE_CHECKING

from worker.config.settings import Settings
from worker.errors import (
    CertificateRefused,
    DeadlineExceeded,
    DuplicateJob,
    StartupError,
    WorkerBusy,
    WorkerDraining,
    WorkerLoading,
    WorkerUnhealthy,
)
from worker.front.certificate import Examined, uncovered
from worker.front.client import EngineClient, EngineState
from worker.front.health import LEGAL_MOVES, READY_WORDS, EngineStatus, FrontStatus, Phase, health_body
from worker.front.job import Admission, Job
from worker.front.job_log import JobLog
from worker.front.kv_events import KvEvents
from worker.front.observer import Observer
from worker.front.progress import LoadProgress, report_loaded
from worker.front.questions import MAX_QUESTIONS, Ask, Question
from worker.front.supervision import failures_to
from worker.observe.log_lines import get_logger
from worker.observe.metrics import Metrics
from worker.protocol.bodies import HealthBody, ParityBody, ReadyBody
from worker.protocol.headers import parse_deadline
from worker.protocol.job_request import JobRequest
from worker.wire.blocks import BlocksChanged
from worker.wire.jobs import JobKey, Prompt, StepDone, TokenId
from worker.wire.load import Loaded, PrefixCacheFound, Residency, SelfTested, Warned
from worker.wire.questions import Detokenize, Detokenized, QuestionKey, Tokenize, Tokenized

if TYPE_CHECKING:
    from worker.observe.traces import Traces  # an extra

log = get_logger()

LOADING_RETRY_S = 5

LIBRARY_LINES = ("llama.cpp warning: ", "llama.cpp error: ")
"""The beginnings of lines that loading/load.py writes to the engine's stderr; its other lines have no level."""


class Front(Observer):
    """One worker's front; it observes the engine client."""

    def __init__(self, settings: Settings, metrics: Metrics, traces: "Traces | None" = None) -> None:
        self.settings = settings
        self.metrics = metrics
        self.phase = Phase.STARTING
        self.jobs: dict[str, Job] = {}
        """The jobs in flight, by the client's job_id."""
        self.certificate: Examined | None = None
        """The parity report, once it was compared with the model file."""
        self._parity: ParityBody | None = None
        """The certificate compared with the current engine; None while there is none."""
        self.kv_events: KvEvents | None = None
        """The KV events, if --kv-events is given."""
        self.unwatched = asyncio.Event()
        """It is set while no response is being written; after a drain clients get a moment to read their last events.
        """
        self.unwatched.set()
        self._n_streams = 0
        self.drain_requested = asyncio.Event()
        self.idle = asyncio.Event()
        self.idle.set()
        self.fatal: asyncio.Future[StartupError] = asyncio.get_running_loop().create_future()
        self._client: EngineClient | None = None
        self._progress = LoadProgress(settings.log_format)
        self._started_s = time.monotonic()
        self._n_jobs = 0
        self._n_questions = 0
        self._traces = traces
        self._job_log = JobLog(settings, metrics, traces)
        self._timers: dict[JobKey, asyncio.TimerHandle] = {}
        self._restarted = asyncio.Event()
        self._engine_status = EngineStatus()

    # ── state ────────────────────────────────────────────────────────────────────────────────────

    def _move(self, phase: Phase) -> None:
        """The only way to another phase. Raises: AssertionError for a move that LEGAL_MOVES lacks."""
        assert phase in LEGAL_MOVES[self.phase], f"front: {self.phase.name} -> {phase.name} is not a legal move"
        self.phase = phase

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

    def open(self, client: EngineClient) -> None:
        """Open health, readiness and /execute together, because the model is loaded and warm.

        Raises: CertificateRefused if --require-parity is given and the report does not cover the loaded model.
        """
        self._client = client
        facts = self.facts
        assert facts is not None
        self._compare(facts)
        if self.phase is Phase.STARTING:  # a drain may have come first
            self._move(Phase.READY if client.state is EngineState.RUNNING else Phase.RESTARTING)
        self.metrics.loaded(facts, self.settings.reported_model_ref, self.settings.served_name(facts.name))
        self._clear_blocks()

    def _compare(self, facts: Loaded) -> None:
        """Compare the certificate with the current engine. Raises: as `open`."""
        if self.certificate is None:
            return
        body = self._parity = self.certificate.body(facts.numerics)
        if body.differences and self.settings.require_parity:
            raise uncovered(body.differences)
        if body.differences:
            log.warning("parity_differs", run_id=body.run_id, differences=list(body.differences))

    def load_ended(self) -> None:
        """Show no more progress, whether or not the model was loaded. Idempotent."""
        self._progress.close()

    def drain(self) -> None:
        """Refuse new work from now on; accepted jobs go on. Idempotent."""
        if self.phase not in (Phase.DRAINING, Phase.FAILED):
            self._move(Phase.DRAINING)

    def end_all(self, message: str) -> None:
        """Give every job in flight its terminal event, and every question an error. The worker is the cause, so another
        worker may run them."""
        for job in list(self.jobs.values()):
            job.fail("CANCELLED", message, is_retriable=True)
        if self._client is not None:
            self._client.jobs.fail_questions(WorkerDraining(message))

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

    def health(self) -> HealthBody:
        status = FrontStatus(
            phase=self.phase,
            vram_bytes=self.vram_bytes,
            uptime_s=time.monotonic() - self._started_s,
            n_running=self.n_running,
            n_waiting=self.n_waiting,
            parity=self._parity,
        )
        return health_body(self.settings, self.facts, self._engine_status, status)

    def scrape(self, accept: str | None) -> tuple[bytes, str]:
        """Return the body and the content type of `/metrics`. Gauges are looked up now, not at every step."""
        facts = self.facts
        self.metrics.load(
            vram_bytes=self.vram_bytes,
            is_ready=self.phase is Phase.READY,
            queue_depth=self.n_waiting,
            running=self.n_running,
            step=self._engine_status.step,
            engine_pid=self._client.pid if self._client is not None else None,
            is_resident=facts is not None and self._engine_status.residency_of(facts).is_resident,
            is_certified=self._parity is not None and self._parity.covers == "exact",
        )
        return self.metrics.render(accept)

    def readiness(self) -> ReadyBody:
        phase = self.phase
        state = "busy" if phase is Phase.READY and self.jobs else READY_WORDS[phase]
        is_loaded = self.facts is not None and phase in {Phase.READY, Phase.DRAINING}
        return ReadyBody(ready=phase is Phase.READY, state=state, model_loaded=is_loaded)

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
        Raises: WorkerError in docs/protocol.md 3's order: state, deadline, duplicate, busy.
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

    def refused(
        self, trace: Mapping[str, str], correlation_id: str, began_s: float, code: str, operation: str | None
    ) -> None:
        """Count and trace a request that was refused before it became a job; the arguments are those of
        Traces.refused."""
        self.metrics.rejected()
        if self._traces is not None:
            self._traces.refused(trace, correlation_id, began_s, code, operation)

    def cancel(self, job_id: str) -> None:
        """End a job, or all jobs of an answer, whatever they are doing; unknown ids are fine."""
        for job in list(self.jobs.values()):
            if job_id in (job.request.job_id, job.request.answer_id):
                job.fail("CANCELLED", "Job cancelled by client request")

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

    # ── questions ────────────────────────────────────────────────────────────────────────────────

    async def tokenize(self, prompt: Prompt, *, add_special: bool = True, parse_special: bool = True) -> Tokenized:
        """Return the tokens and the text of a prompt. The two switches apply to a text.

        Raises: WorkerError in the order of `open_jobs`; FieldsRefused if the engine refuses the prompt; InferenceFailed
        if two engines died over it; DeadlineExceeded after the time limit of `/execute`.
        """
        answer = await self._ask(
            lambda key: Tokenize(question=key, prompt=prompt, add_special=add_special, parse_special=parse_special)
        )
        assert isinstance(answer, Tokenized)
        return answer

    async def detokenize(self, tokens: Sequence[TokenId]) -> str:
        """Return the text of tokens, special ones by their names. Raises: as `tokenize`."""
        answer = await self._ask(lambda key: Detokenize(question=key, tokens=tuple(tokens)))
        assert isinstance(answer, Detokenized)
        return answer.text

    async def _ask(self, ask: Ask) -> Tokenized | Detokenized:
        """Ask the engine, or its successor if it dies meanwhile. If the caller is cancelled, the question is
        dropped."""
        self._check_state()
        assert self._client is not None
        if self._client.jobs.n_questions >= MAX_QUESTIONS:
            raise WorkerBusy(f"{MAX_QUESTIONS} tokenize requests are in progress; try again in 1 s", retry_after_s=1)
        self._n_questions += 1
        question = Question(ask(QuestionKey(self._n_questions)))
        self._client.jobs.ask(question)
        try:
            async with asyncio.timeout(self.settings.execute_timeout_s):
                return await question.answer
        except TimeoutError as error:
            limit_s = self.settings.execute_timeout_s
            raise DeadlineExceeded(f"the request exceeded --inference-timeout-sec ({limit_s:g} s)") from error
        finally:
            self._client.jobs.drop(question)

    # ── the engine client's Observer ─────────────────────────────────────────────────────────────

    def on_progress(self, percent: int) -> None:
        self._progress.show(percent)

    def on_step(self, step: StepDone) -> None:
        n_before, self._engine_status.step = self._engine_status.step.n_threads, step
        if n_before not in (0, step.n_threads):
            log.info("threads_changed", threads=step.n_threads, before=n_before)
        self.metrics.step(step)

    def on_blocks_changed(self, message: BlocksChanged) -> None:
        assert self.kv_events is not None, "it was not asked for"
        self.kv_events.changed(message.changes)
        self.metrics.kv_events_published()

    def _clear_blocks(self) -> None:
        """Report that there are no blocks, because the engine is new, or dead. A router may know those of an earlier
        worker."""
        if self.kv_events is not None:
            self.kv_events.cleared()
            self.metrics.kv_events_published()

    def on_self_tested(self, result: SelfTested) -> None:
        self._engine_status.self_tested = result

    def on_residency(self, residency: Residency) -> None:
        assert self.facts is not None
        was_resident = self._engine_status.residency_of(self.facts).is_resident
        self._engine_status.residency = residency
        if residency.is_resident != was_resident:
            log.warning(
                "residency_changed",
                resident=residency.is_resident,
                vram_bytes=residency.memory_bytes,
                device=self.facts.device_name,
            )

    def on_prefix_cache_found(self, found: PrefixCacheFound) -> None:
        self._engine_status.found = found
        if found.n_parts:
            log.info("prefix_cache_restored", parts=found.n_parts, tokens=found.n_tokens, bytes=found.n_bytes)
        if found.n_dropped:
            log.warning("prefix_cache_dropped", parts=found.n_dropped, reason=found.dropped_because)

    def on_warned(self, warned: Warned) -> None:
        log.warning("engine", line=warned.text)

    def on_engine_line(self, line: str) -> None:
        """Log llama.cpp's warnings and errors for operators, and any other line of the process for developers."""
        if line.startswith(LIBRARY_LINES):
            log.warning("engine", line=line)
        else:
            log.debug("engine", line=line)

    def on_restarting(self, cause: str, last_words: str) -> None:
        if self.phase is Phase.READY:
            self._move(Phase.RESTARTING)
        self._progress.close()
        self._progress = LoadProgress(self.settings.log_format)
        self.metrics.engine_restarted()
        self._engine_status = EngineStatus()
        self._clear_blocks()
        self._parity = None
        log.error(
            "engine_restarted",
            cause=cause,
            last_words=last_words,
            jobs=len(self.jobs),
            model_ref=self.settings.reported_model_ref,
        )

    def on_restarted(self, facts: Loaded) -> None:
        if self._client is not None:  # otherwise `open` compares
            try:
                self._compare(facts)
            except CertificateRefused as error:
                self._client.on_fatal(error)
                return
        if self.phase is Phase.RESTARTING:
            self._move(Phase.READY)
        report_loaded(facts, self.settings)
        self._restarted.set()

    def on_fatal(self, error: StartupError) -> None:
        """Fail, because a part of the worker is lost that nothing replaces. Only the first reason is reported."""
        if self.phase is not Phase.FAILED:
            self._move(Phase.FAILED)
        if not self.fatal.done():
            self.fatal.set_result(error)

    async def next_restart(self) -> None:
        """Wait until an engine that died has been replaced."""
        await self._restarted.wait()
        self._restarted.clear()
