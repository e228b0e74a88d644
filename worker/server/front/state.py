"""The front: one worker's state from its start to its end (docs/protocol.md#http); admission.py has its jobs.

It runs on the front's event loop and never waits for the engine: health and refusals come from cached state.
server/web turns its methods into HTTP, serve.py starts and ends it.
"""

import asyncio
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from worker.apis.core.bodies import HealthBody, ParityBody, ReadyBody
from worker.config.settings import Settings
from worker.errors import CertificateRefused, DeadlineExceeded, WorkerBusy, WorkerDraining
from worker.observe.log_lines import get_logger
from worker.observe.metrics import Metrics
from worker.server.front.admission import FrontJobs
from worker.server.front.certificate import Examined, uncovered
from worker.server.front.client import EngineClient, EngineState
from worker.server.front.health import READY_WORDS, EngineStatus, FrontStatus, Phase, health_body
from worker.server.front.kv_events import KvEvents
from worker.server.front.progress import LoadProgress, report_loaded
from worker.server.front.work import MAX_QUESTIONS, Ask, Question
from worker.wire.blocks import BlocksChanged
from worker.wire.jobs import Prompt, TokenId
from worker.wire.load import Loaded, PrefixCacheFound, Residency, Warned
from worker.wire.questions import Detokenize, Detokenized, QuestionKey, Tokenize, Tokenized

if TYPE_CHECKING:
    from worker.observe.traces import Traces  # an extra

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
            self._engine_status.step,
            self._client.pid if self._client is not None else None,
            uptime_seconds=time.monotonic() - self._started_s,
            vram_bytes=self.vram_bytes,
            ready=self.phase is Phase.READY,
            queue_depth=self.n_waiting,
            requests_running=self.n_running,
            slots_busy=self.n_running,
            resident=facts is not None and self._engine_status.residency_of(facts).is_resident,
            parity_certified=self._parity is not None and self._parity.covers == "exact",
        )
        return self.metrics.render(accept)

    def readiness(self) -> ReadyBody:
        phase = self.phase
        state = "busy" if phase is Phase.READY and self.jobs else READY_WORDS[phase]
        is_loaded = self.facts is not None and phase in {Phase.READY, Phase.DRAINING}
        return ReadyBody(ready=phase is Phase.READY, state=state, model_loaded=is_loaded)

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

    async def next_restart(self) -> None:
        """Wait until an engine that died has been replaced."""
        await self._restarted.wait()
        self._restarted.clear()
