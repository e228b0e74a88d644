"""The front's view of one request in flight: what happened to it and what its client is still owed.

Lives on the front's event loop. The engine client feeds it (accept, start, delta, finish, fail, rewind), one response
drains it (`next_chunk`); neither waits for the other. After its end every further message is ignored, so exactly one
terminal event leaves whatever races.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime

from worker.errors import DeadlineExceeded, WorkerError
from worker.front.checked_request import CheckedRequest, JobDeps
from worker.front.metrics import Outcome
from worker.protocol.events import StreamCode
from worker.protocol.field_errors import FieldsRefused, field_error
from worker.wire.messages import Finished, JobKey, Logprob, Refused, Submit

RETRIABLE: dict[StreamCode, bool] = {
    "CANCELLED": False,
    "TIMEOUT": True,
    "VRAM_OOM": False,
    "INVALID_REQUEST": False,
    "INFERENCE_FAILED": False,
    "ENGINE_RESTARTED": True,
}
_OUTCOMES: dict[StreamCode, Outcome] = {"CANCELLED": "cancelled", "TIMEOUT": "timeout"}

MAX_BUFFERED_BYTES = 4 * 1024 * 1024
"""docs/protocol.md 6: a client further behind than this loses its job."""

MAX_CHUNK_BYTES = 64 * 1024
"""One send; small enough that a send without progress means a client that does not read."""

METRICS_EVERY_S = 1.0


class Job:
    """`on_end(job)` is called once, synchronously, when the terminal event has been queued."""

    def __init__(self, key: JobKey, order: CheckedRequest, around: JobDeps, on_end: Callable[["Job"], None]) -> None:
        self.key = key
        self.order = order
        self.dialect = around.dialect
        self.outcome: Outcome | None = None
        self.failure: StreamCode | None = None
        self.refusal: WorkerError | None = None
        self.prompt_tokens = 0
        self.tokens_out = 0
        self.tokens_sampled = 0
        self.queue_time_ms: int | None = None
        """From arrival to the first slot; None without one."""
        self.cached_tokens = 0
        """Of the prompt, found computed when it got its slot."""
        self.n_deaths = 0
        """Engine deaths at which this job was running."""
        self.decided = asyncio.Event()
        """Set when headers may leave, or `refusal` says why not."""
        self._around = around
        self._on_end = on_end
        self._started_event: bytes | None = None
        self._slot_since_s: float | None = None
        self._first_sampled_s: float | None = None
        self._last_sampled_s = 0.0
        self._metrics_sent_s = 0.0
        self._logprobs: list[Logprob] = []
        """Of the sampled tokens that no token event has covered yet."""
        self._events: deque[bytes] = deque()
        self._n_buffered_bytes = 0
        self._woken = asyncio.Event()

    # ── what others ask ──────────────────────────────────────────────────────────────────────────

    @property
    def is_ended(self) -> bool:
        return self.outcome is not None

    @property
    def is_running(self) -> bool:
        """Holds a slot, as far as the front knows."""
        return self._slot_since_s is not None and not self.is_ended

    @property
    def service_s(self) -> float:
        """How long it has had its slot."""
        return 0.0 if self._slot_since_s is None else time.monotonic() - self._slot_since_s

    @property
    def has_sent_token(self) -> bool:
        return self.tokens_out > 0

    @property
    def decode_time_ms(self) -> int:
        if self._first_sampled_s is None:
            return 0
        return round((self._last_sampled_s - self._first_sampled_s) * 1000)

    @property
    def time_to_first_token_ms(self) -> int | None:
        """From arrival; None before it."""
        if self._first_sampled_s is None:
            return None
        return round((self._first_sampled_s - self.order.arrived_s) * 1000)

    @property
    def code(self) -> str | None:
        """What the client was told of a job that failed or was refused."""
        return self.refusal.code if self.refusal is not None else self.failure

    @property
    def submission(self) -> Submit:
        return Submit(
            job=self.key,
            prompt=self.order.prompt,
            max_tokens=self.order.max_tokens,
            sampling=self.order.sampling,
            stop=self.order.stop,
            grammar=self.order.grammar,
            json_schema=self.order.json_schema,
            regex=self.order.regex,
        )

    # ── what the engine says ─────────────────────────────────────────────────────────────────────

    def accept(self, prompt_tokens: int) -> None:
        self.prompt_tokens = prompt_tokens
        self.decided.set()

    def refuse(self, refused: Refused) -> None:
        """The engine cannot take it; too late for a 400 when it is a job's second run, on another engine."""
        refusal = FieldsRefused([field_error(violation) for violation in refused.violations])
        if self.decided.is_set():
            self.fail("INVALID_REQUEST", str(refusal))
        elif not self.is_ended:
            self.refusal = refusal
            self._end("rejected")

    def start(self, n_cached: int) -> None:
        """A slot is theirs, and `n_cached` tokens of the prompt were found computed.

        A job that runs again after an engine death does not start twice.
        """
        if self.is_ended:
            return
        self._slot_since_s = time.monotonic()
        if self._started_event is None:
            queued_s = self._slot_since_s - self.order.arrived_s
            self.queue_time_ms, self.cached_tokens = round(queued_s * 1000), n_cached
            self._around.metrics.started(queued_s=queued_s, n_cached=n_cached)
            self._push_started(n_cached)

    def delta(self, text: str, logprob: Logprob | None, sampled_at_s: float) -> None:
        """One token was drawn; `text` is what it lets us show, with that of the tokens before it that was held back."""
        if self.is_ended:
            return
        self._count_sampled(sampled_at_s)
        if logprob is not None:
            self._logprobs.append(logprob)
        if text:
            self._push(self.dialect.token(text, self.tokens_out, self._logprobs))
            self._logprobs.clear()
            self.tokens_out += 1
        if sampled_at_s - self._metrics_sent_s >= METRICS_EVERY_S:
            self._metrics_sent_s = sampled_at_s
            self._push(self._metrics_event())

    def finish(self, finished: Finished) -> None:
        if self.is_ended:
            return
        first_token_ms = self.time_to_first_token_ms
        assert first_token_ms is not None
        self._push(
            self.dialect.end(
                tokens_out=self.tokens_out,
                decode_time_ms=self.decode_time_ms,
                stop_reason=finished.reason,
                stop_sequence_matched=finished.stop,
                tokens_sampled=self.tokens_sampled,
                prompt_tokens=self.prompt_tokens,
                time_to_first_token_ms=first_token_ms,
                context_full=finished.is_context_full,
            )
        )
        self._end("success")

    def rewind(self) -> None:
        """The engine died before any text was sent: the job will run again from its beginning."""
        assert not self.has_sent_token
        self._slot_since_s = None
        self.tokens_sampled = 0
        self._logprobs.clear()
        self._first_sampled_s = None

    def fail(self, code: StreamCode, message: str, *, is_retriable: bool | None = None) -> None:
        """End with an error event; before the headers left, a time-out is a 504 instead.

        `is_retriable` where the cause decides it, not the code (RETRIABLE).
        """
        if self.is_ended:
            return
        self.failure = code
        if code == "TIMEOUT" and not self.decided.is_set():
            self.refusal = DeadlineExceeded(message)
        else:
            if self._started_event is None:
                self._push_started(0)
            self._forget_unsent_tokens()
            retriable = RETRIABLE[code] if is_retriable is None else is_retriable
            self._push(self.dialect.error(code=code, message=message, retriable=retriable))
        self._end(_OUTCOMES.get(code, "error"))

    # ── what the client takes ────────────────────────────────────────────────────────────────────

    async def next_chunk(self) -> bytes:
        """All events that are ready, at most MAX_CHUNK_BYTES (or one event); b"" after the terminal one."""
        while not self._events:
            if self.is_ended:
                return b""
            self._woken.clear()
            await self._woken.wait()
        chunk = [self._events.popleft()]
        size = len(chunk[0])
        while self._events and size + len(self._events[0]) <= MAX_CHUNK_BYTES:
            chunk.append(self._events.popleft())
            size += len(chunk[-1])
        self._n_buffered_bytes -= size
        return b"".join(chunk)

    # ── inside ───────────────────────────────────────────────────────────────────────────────────

    def _count_sampled(self, sampled_at_s: float) -> None:
        self.tokens_sampled += 1
        if self._first_sampled_s is None:
            self._first_sampled_s = self._metrics_sent_s = sampled_at_s
            self._around.metrics.first_token(waited_s=sampled_at_s - self.order.arrived_s)
        else:
            self._around.metrics.next_token(gap_s=sampled_at_s - self._last_sampled_s)
        self._last_sampled_s = sampled_at_s

    def _metrics_event(self) -> bytes:
        decode_ms = self.decode_time_ms
        return self.dialect.metrics(
            tokens_per_sec=1000 * (self.tokens_sampled - 1) / decode_ms if decode_ms else 0.0,
            vram_bytes=self._around.vram_bytes,
            job_id=self.order.job_id,
            tokens_out=self.tokens_out,
            decode_time_ms=decode_ms,
        )

    def _push_started(self, n_cached: int) -> None:
        self._started_event = self.dialect.started(
            job_id=self.order.job_id,
            model=self._around.model,
            started_at=datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            seed=self.order.sampling.seed,
            prompt_tokens=self.prompt_tokens,
            cached_tokens=n_cached,
        )
        self._push(self._started_event)

    def _push(self, event: bytes) -> None:
        if self.is_ended:
            return
        self._events.append(event)
        self._n_buffered_bytes += len(event)
        self._woken.set()
        if self._n_buffered_bytes > MAX_BUFFERED_BYTES:
            self.fail("CANCELLED", f"the client is more than {MAX_BUFFERED_BYTES} bytes behind")

    def _forget_unsent_tokens(self) -> None:
        """No token leaves after a job failed: a cancel's 202 may already be on its way."""
        self._events = deque(event for event in self._events if event is self._started_event)
        self._n_buffered_bytes = sum(len(event) for event in self._events)

    def _end(self, outcome: Outcome) -> None:
        if self.is_ended:  # queueing the end event was itself too much for the buffer
            return
        self.outcome = outcome
        self.decided.set()
        self._woken.set()
        self._on_end(self)
