"""The front: one worker's state from its start to its end (docs/protocol.md#http); admission.py has its jobs.

It never waits for the engine: health and refusals come from cached state.
"""

import asyncio
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from worker.apis.core.bodies import HealthBody, KernelsBody, ParityBody, PrefixCacheBody, ReadyBody
from worker.config.settings import Settings
from worker.errors import CertificateRefused, DeadlineExceeded, WorkerBusy, WorkerDraining
from worker.observe.log_lines import get_logger
from worker.observe.metrics import Metrics
from worker.server.front.admission import EngineStatus, FrontJobs, Phase
from worker.server.front.certificate import Examined, uncovered
from worker.server.front.client import EngineClient
from worker.server.front.dispatch import MAX_QUESTIONS, Question, Report
from worker.server.front.progress import LoadProgress, report_loaded
from worker.wire.jobs import Prompt, StepDone, TokenId
from worker.wire.load import Loaded, PrefixCacheFound, Progress, Residency, Warned
from worker.wire.messages import AllBlocksCleared, BlocksChanged, QuestionKey, Tokenize, Tokenized

if TYPE_CHECKING:
    from worker.observe.traces import Traces  # an extra
    from worker.server.front.kv_events import Events, KvEvents  # an extra

log = get_logger()

LIBRARY_LINES = ("llama.cpp warning: ", "llama.cpp error: ")
"""The beginnings of lines that models/loading/load.py writes to the engine's stderr; its other lines have no level."""


class Front(FrontJobs):
    """One worker's front; it observes the engine client."""

    def __init__(self, settings: Settings, metrics: Metrics, traces: "Traces | None" = None) -> None:
        super().__init__(settings, metrics, traces)
        self.certificate: Examined | None = None
        """The parity report, once it was compared with the model file."""
        self._parity: ParityBody | None = None
        """The certificate compared with the current engine; None while there is none."""
        self.kv_events: KvEvents | None = None
        """The KV events, if --kv-events is given."""
        self.drain_requested = asyncio.Event()
        self._progress = LoadProgress(settings.log_format)
        self._started_s = time.monotonic()
        self._n_questions = 0
        self._restarted = asyncio.Event()

    # ── state ────────────────────────────────────────────────────────────────────────────────────

    def open(self, client: EngineClient) -> None:
        """Open health, readiness and /execute together, because the model is loaded and warm.

        Raises: CertificateRefused if --require-parity is given and the report does not cover the loaded model.
        """
        self._client = client
        facts = self.facts
        assert facts is not None
        self._compare(facts)
        self._is_open = True
        self.metrics.loaded(facts, self.settings.reported_model_ref, self.settings.served_name(facts.name))
        self._publish((AllBlocksCleared(),))  # a router may know the blocks of an earlier worker

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
        self._is_draining = True

    def end_all(self, message: str) -> None:
        """Give every job in flight its terminal event, and every question an error. The worker is the cause, so another
        worker may run them."""
        for job in list(self.jobs.values()):
            job.fail("CANCELLED", message, is_retriable=True)
        if self._client is not None:
            self._client.jobs.fail_questions(WorkerDraining(message))

    def health(self) -> HealthBody:
        """Make the body of `/health` of what is known now. An answer never waits for the engine."""
        settings, facts, engine = self.settings, self.facts, self._engine_status
        verdict = facts.determinism if facts else None
        return HealthBody(
            status="healthy" if self.phase in {Phase.READY, Phase.DRAINING} else "unhealthy",
            vram_bytes=self.vram_bytes,
            worker_id=settings.worker_id,
            state=self.phase.word,
            model=facts.name if facts else None,
            model_ref=settings.reported_model_ref,
            quant_kind=facts.quant_kind if facts else None,
            resident=self._is_resident,
            vram_bytes_used=self.vram_bytes,
            memory_bytes=facts.memory_bytes if facts else 0,
            tokenizer_kind=facts.tokenizer_kind if facts else None,
            vocab_size=facts.vocab_size if facts else None,
            context_length=facts.context_length if facts else None,
            uptime_seconds=int(time.monotonic() - self._started_s),
            slots_total=facts.parallel if facts else 0,
            slots_busy=self.n_running,
            queue_depth=self.n_waiting,
            prefill_chunk=facts.prefill_chunk if facts else None,
            prefix_cache=PrefixCacheBody(
                tokens=engine.step.prefix_tokens,
                bytes=engine.step.prefix_bytes,
                limit_bytes=facts.prefix_cache_bytes if facts else 0,
                off_because=facts.prefix_cache_off if facts else None,
                restored_tokens=engine.found.n_tokens if engine.found else 0,
                restored_bytes=engine.found.n_bytes if engine.found else 0,
                checkpoint_bytes=facts.checkpoint_bytes if facts else 0,
                checkpoint_stride=facts.checkpoint_stride if facts else 0,
            ),
            deterministic=settings.deterministic,
            determinism="untested" if verdict is None else "same" if verdict.is_same else "differs",
            determinism_differences=verdict.differences if verdict else (),
            determinism_tried=verdict.tried if verdict else None,
            parity=self._parity,
            drafts=facts.drafts if facts else None,
            draft_model=facts.draft if facts else None,
            amx=facts.amx if facts else None,
            batch_invariant=facts.batch_invariance if facts else None,
            kernels=KernelsBody(why=facts.kernels.why, ours=dict(facts.kernels.ours), stock=dict(facts.kernels.stock))
            if facts
            else None,
            attention=facts.attention if facts else None,
        )

    @property
    def _is_resident(self) -> bool:
        return self.facts is not None and self._engine_status.residency_of(self.facts).is_resident

    def scrape(self, accept: str | None) -> tuple[bytes, str]:
        """Return the body and the content type of `/metrics`. Gauges are looked up now, not at every step."""
        self.metrics.load(
            self._engine_status.step,
            self._client.pid if self._client is not None else None,
            uptime_seconds=time.monotonic() - self._started_s,
            vram_bytes=self.vram_bytes,
            ready=self.phase is Phase.READY,
            queue_depth=self.n_waiting,
            requests_running=self.n_running,
            slots_busy=self.n_running,
            resident=self._is_resident,
            parity_certified=self._parity is not None and self._parity.covers == "exact",
        )
        return self.metrics.render(accept)

    def readiness(self) -> ReadyBody:
        phase = self.phase
        state = "busy" if phase is Phase.READY and self.jobs else phase.ready_word
        is_loaded = self.facts is not None and phase in {Phase.READY, Phase.DRAINING}
        return ReadyBody(ready=phase is Phase.READY, state=state, model_loaded=is_loaded)

    # ── questions ────────────────────────────────────────────────────────────────────────────────

    async def tokenize(self, prompt: Prompt, *, add_special: bool = True, parse_special: bool = True) -> Tokenized:
        """Return the tokens and the text of a prompt, from the engine or its successor. The switches apply to a text.

        Raises: WorkerError in the order of `open_jobs`; FieldsRefused if the engine refuses the prompt; InferenceFailed
        if two engines died over it; DeadlineExceeded after the time limit of `/execute`.
        """
        self._check_state()
        assert self._client is not None
        if self._client.jobs.n_questions >= MAX_QUESTIONS:
            raise WorkerBusy(f"{MAX_QUESTIONS} tokenize requests are in progress; try again in 1 s", retry_after_s=1)
        self._n_questions += 1
        key = QuestionKey(self._n_questions)
        frame = Tokenize(question=key, prompt=prompt, add_special=add_special, parse_special=parse_special)
        question = Question(frame)
        self._client.jobs.ask(question)
        try:
            async with asyncio.timeout(self.settings.execute_timeout_s):
                return await question.answer
        except TimeoutError as error:
            limit_s = self.settings.execute_timeout_s
            raise DeadlineExceeded(f"the request exceeded --inference-timeout-sec ({limit_s:g} s)") from error
        finally:
            self._client.jobs.drop(question)

    async def detokenize(self, tokens: Sequence[TokenId]) -> str:
        """Return the text of tokens, special ones by their names. Raises: as `tokenize`."""
        return (await self.tokenize(tuple(tokens))).text

    # ── the engine client's Observer ─────────────────────────────────────────────────────────────

    def on_report(self, report: Report) -> None:
        match report:
            case StepDone():
                n_before, self._engine_status.step = self._engine_status.step.n_threads, report
                if n_before not in (0, report.n_threads):
                    log.info("threads_changed", threads=report.n_threads, before=n_before)
                self.metrics.step(report)
            case BlocksChanged():
                self._publish(report.changes)
            case Progress():
                self._progress.show(report.percent)
            case Residency():
                self._note_residency(report)
            case PrefixCacheFound():
                self._engine_status.found = report
                if report.n_parts:
                    log.info(
                        "prefix_cache_restored", parts=report.n_parts, tokens=report.n_tokens, bytes=report.n_bytes
                    )
                if report.n_dropped:
                    log.warning("prefix_cache_dropped", parts=report.n_dropped, reason=report.dropped_because)
            case Warned():
                log.warning("engine", line=report.text)

    def _note_residency(self, residency: Residency) -> None:
        assert self.facts is not None
        was_resident, self._engine_status.residency = self._is_resident, residency
        if residency.is_resident != was_resident:
            log.warning(
                "residency_changed",
                resident=residency.is_resident,
                vram_bytes=residency.memory_bytes,
                device=self.facts.device_name,
            )

    def _publish(self, changes: "Events") -> None:
        if self.kv_events is not None:
            self.kv_events.publish(changes)
            self.metrics.kv_events_published()

    def on_engine_line(self, line: str) -> None:
        """Log llama.cpp's warnings and errors for operators, and any other line of the process for developers."""
        if line.startswith(LIBRARY_LINES):
            log.warning("engine", line=line)
        else:
            log.debug("engine", line=line)

    def on_restarting(self, cause: str, last_words: str) -> None:
        self._progress.close()
        self._progress = LoadProgress(self.settings.log_format)
        self.metrics.engine_restarted()
        self._engine_status = EngineStatus()
        self._publish((AllBlocksCleared(),))
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
        report_loaded(facts, self.settings)
        self._restarted.set()

    async def next_restart(self) -> None:
        """Wait until an engine that died has been replaced."""
        await self._restarted.wait()
        self._restarted.clear()
