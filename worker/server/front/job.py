"""One request in flight in the front: its state, its figures, and the events that its client has not taken yet.

The engine client feeds it, one response drains it (`next_chunk_of`); neither waits for the other. After its end every
further message is ignored, so exactly one terminal event leaves, whatever the order of messages.

    ARRIVED ──accepted──▶ ACCEPTED ◀──engine died── RUNNING
       │                     │  └───────slot─────────▶ │
       └──────── end ────────┴───────────┬─────────────┘
                                         ▼
                                       ENDED
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum, auto
from typing import Final

import msgspec

from worker.apis.core.bodies import refused_by_engine
from worker.apis.core.events import EndEvent, ErrorEvent, MetricsEvent, Piece, StartedEvent, StreamCode
from worker.apis.core.request import JobRequest
from worker.errors import DeadlineExceeded, WorkerError
from worker.observe.metrics import Metrics
from worker.observe.series import FinishReason, Outcome
from worker.wire.jobs import Finished, JobKey, Logprob, PromptLogprobs, StopReason
from worker.wire.messages import Refused

RETRIABLE: Final[frozenset[StreamCode]] = frozenset({"TIMEOUT", "ENGINE_RESTARTED"})
_OUTCOMES: Final[dict[StreamCode, Outcome]] = {"CANCELLED": "cancelled", "TIMEOUT": "timeout"}

_REASONS: dict[StopReason | Outcome, FinishReason] = {
    "EOS": "stop",
    "STOP_SEQUENCE": "stop",
    "MAX_TOKENS": "length",
    "cancelled": "abort",
    "timeout": "abort",
    "error": "error",
}

MAX_BUFFERED_BYTES = 4 * 1024 * 1024
"""The limit of docs/protocol.md#life-of-a-job: a client that is further behind loses its job."""

MAX_CHUNK_BYTES = 64 * 1024
"""The largest send. It is small enough that a send without progress means a client that does not read."""

METRICS_EVERY_S = 1.0

TOO_LARGE = "the answer is larger than one that does not stream may be: ask for fewer log-probabilities, or for less"


class JobState(Enum):
    ARRIVED = auto()
    """The engine has not accepted the job yet: no header may leave."""
    ACCEPTED = auto()
    """The engine has accepted it, and it waits for a slot; headers may leave."""
    RUNNING = auto()
    """It has a slot."""
    ENDED = auto()
    """Its terminal event, or its refusal, is ready for the client."""


LEGAL_MOVES: dict[JobState, frozenset[JobState]] = {
    JobState.ARRIVED: frozenset({JobState.ACCEPTED, JobState.ENDED}),
    JobState.ACCEPTED: frozenset({JobState.RUNNING, JobState.ENDED}),
    JobState.RUNNING: frozenset({JobState.ACCEPTED, JobState.ENDED}),
    JobState.ENDED: frozenset(),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """The facts that the jobs of one answer share once the front has admitted them."""

    correlation_id: str
    trace: Mapping[str, str] = field(default_factory=dict)
    """The trace that the request belongs to, as received.trace_context found it."""
    arrived_s: float
    """time.monotonic() at arrival; all limits count from here."""
    expires_s: float
    """The end of the jobs' time: the earlier of the API's time limit and X-Deadline; infinite without either."""
    model: str
    vram_bytes: int
    metrics: Metrics
    woken: asyncio.Event = field(default_factory=asyncio.Event)
    """It is set when there is an event to take, or when none will come. Jobs whose answers leave together share it."""


class Job:
    """A job. `on_end(job)` is called once, synchronously, when the terminal event has been queued."""

    def __init__(self, key: JobKey, request: JobRequest, admission: Admission, on_end: Callable[["Job"], None]) -> None:
        self.key = key
        self.request = request
        self.admission = admission
        self.frame = request.submit(key)
        """It gives the job to an engine."""
        self.dialect = request.dialect
        self.state = JobState.ARRIVED
        self.outcome: Outcome | None = None
        """The way it ended; None before its end."""
        self.failure: StreamCode | None = None
        self.failure_message = ""
        self.refusal: WorkerError | None = None
        self.prompt_tokens = 0
        self.unenforced_tools: tuple[int, ...] = ()
        """The places of offered tools whose schemas are not enforced."""
        self.tokens_out = 0
        self.tokens_sampled = 0
        self.queue_time_s: float | None = None
        """The time from its arrival to its first slot; None before that."""
        self.cached_tokens = 0
        self.n_deaths = 0
        """The number of engines that died while this job was running or being tokenised."""
        self.decided = asyncio.Event()
        """It is set once the job has left ARRIVED: headers may leave, or `refusal` says why not."""
        self._on_end = on_end
        self._started_event: bytes | None = None
        self._early_sign: bytes | None = None
        """The last sign of life before the started event, which may begin the stream."""
        self._slot_since_s: float | None = None
        self._first_sampled_s: float | None = None
        self._last_sampled_s = 0.0
        self._stop_reason: StopReason | None = None
        self._metrics_sent_s = 0.0
        self._logprobs: list[Logprob] = []
        """The log-probabilities of sampled tokens that no token event has covered yet."""
        self._events: deque[bytes] = deque()
        self._n_buffered_bytes = 0

    # ── what others ask ──────────────────────────────────────────────────────────────────────────

    @property
    def is_ended(self) -> bool:
        return self.state is JobState.ENDED

    @property
    def is_running(self) -> bool:
        """True if it holds a slot, as far as the front knows."""
        return self.state is JobState.RUNNING

    @property
    def service_s(self) -> float:
        """The seconds since it got its slot; 0 without one."""
        return 0.0 if self._slot_since_s is None else time.monotonic() - self._slot_since_s

    @property
    def has_sent_token(self) -> bool:
        """True if text of it may have left, so that it cannot run again without its client noticing."""
        return self.tokens_out > 0 and not self.dialect.is_collecting

    @property
    def age_s(self) -> float:
        """The seconds since it arrived."""
        return time.monotonic() - self.admission.arrived_s

    @property
    def prefill_time_s(self) -> float | None:
        """The time from its slot to its first token; None before that."""
        if self._first_sampled_s is None or self._slot_since_s is None:
            return None
        return self._first_sampled_s - self._slot_since_s

    @property
    def decode_time_s(self) -> float:
        """The time from its first token to its last."""
        return 0.0 if self._first_sampled_s is None else self._last_sampled_s - self._first_sampled_s

    @property
    def time_to_first_token_s(self) -> float | None:
        """The time from its arrival to its first token; None before that."""
        return None if self._first_sampled_s is None else self._first_sampled_s - self.admission.arrived_s

    @property
    def finish_reason(self) -> FinishReason | None:
        """The reason for its end, in the words of routers; None before its end, and if it was refused."""
        why = self._stop_reason if self.outcome == "success" else self.outcome
        return None if why is None else _REASONS.get(why)

    @property
    def code(self) -> str | None:
        """The code that the client was given, if the job failed or was refused."""
        return self.refusal.code if self.refusal is not None else self.failure

    # ── what the engine says ─────────────────────────────────────────────────────────────────────

    def _move(self, state: JobState) -> None:
        """The only way to another state. Raises: AssertionError for a move that LEGAL_MOVES lacks; nothing changes."""
        assert state in LEGAL_MOVES[self.state], f"job: {self.state.name} -> {state.name} is not a legal move"
        self.state = state
        self.decided.set()

    def accept(self, prompt_tokens: int, unenforced_tools: tuple[int, ...] = ()) -> None:
        """The engine has tokenised the prompt and accepts the job. A second engine does so again."""
        self.prompt_tokens = prompt_tokens
        self.unenforced_tools = unenforced_tools
        if self.state is JobState.ARRIVED:
            self._move(JobState.ACCEPTED)

    def refuse(self, refused: Refused) -> None:
        """The engine refuses the job. If a second engine does, a 400 comes too late, and the stream fails."""
        refusal = refused_by_engine(refused.violations)
        if self.state is JobState.ARRIVED:
            self.refusal = refusal
            self._end("rejected")
        else:
            self.fail("INVALID_REQUEST", str(refusal))

    def start(self, n_cached: int, at_s: float) -> None:
        """The job got a slot at `at_s`, and `n_cached` tokens of its prompt were cached.

        A job that runs again after an engine death has no second `started` event.
        """
        if self.is_ended:
            return
        self._move(JobState.RUNNING)
        self._slot_since_s = at_s
        if self._started_event is None:
            self.queue_time_s, self.cached_tokens = at_s - self.admission.arrived_s, n_cached
            self.admission.metrics.started(queued_s=self.queue_time_s, n_prompt=self.prompt_tokens, n_cached=n_cached)
            self._push_started(n_cached)

    def prompt_logprobs(self, part: PromptLogprobs) -> None:
        """The next tokens of the prompt were computed."""
        if not self.is_ended:
            self._push(self.dialect.prompt_logprobs(part.tokens))

    def delta(self, text: str, logprob: Logprob | None, sampled_at_s: float, *, is_reasoning: bool = False) -> None:
        """One token was drawn; `text` may be shown now, and includes text that was held back of earlier tokens."""
        if self.is_ended:
            return
        self.tokens_sampled += 1
        if self._first_sampled_s is None:
            self._first_sampled_s = self._metrics_sent_s = sampled_at_s
            self.admission.metrics.first_token(waited_s=sampled_at_s - self.admission.arrived_s)
        else:
            self.admission.metrics.next_token(gap_s=sampled_at_s - self._last_sampled_s)
        self._last_sampled_s = sampled_at_s
        if logprob is not None:
            self._logprobs.append(logprob)
        if text:
            piece = Piece(text, self.tokens_out, self._logprobs, self.tokens_sampled, is_reasoning)
            self._push(self.dialect.token(piece))
            self._logprobs.clear()
            self.tokens_out += 1
        if sampled_at_s - self._metrics_sent_s >= METRICS_EVERY_S:
            self._metrics_sent_s = sampled_at_s
            self._push(self._metrics_event())

    def finish(self, finished: Finished) -> None:
        """The engine has computed the whole answer."""
        if self.is_ended:
            return
        event = EndEvent(
            tokens_out=self.tokens_out,
            decode_time_ms=round(self.decode_time_s * 1000),
            stop_reason=finished.reason,
            stop_sequence_matched=msgspec.UNSET if finished.stop is None else finished.stop,
            tokens_sampled=self.tokens_sampled,
            prompt_tokens=self.prompt_tokens,
            time_to_first_token_ms=in_ms(self.time_to_first_token_s) or 0,  # none if nothing was generated
            context_full=finished.is_context_full,
        )
        self._stop_reason = finished.reason
        self._push(self.dialect.end(event, finished, self._logprobs))
        self._end("success")

    def rewind(self) -> None:
        """The engine died before any text had left: the job will run again from its start."""
        assert not self.has_sent_token
        if self.state is JobState.RUNNING:
            self._move(JobState.ACCEPTED)
        self._slot_since_s = None
        self.tokens_out = self.tokens_sampled = 0
        self._logprobs.clear()
        self._first_sampled_s = None
        self.dialect.rewind()

    def fail(self, code: StreamCode, message: str, *, is_retriable: bool | None = None) -> None:
        """End with an error event; before the headers may leave, a time-out is a 504 instead.

        `is_retriable` is given if the cause decides it, not the code (RETRIABLE).
        """
        if self.is_ended:
            return
        self.failure, self.failure_message = code, message
        if code == "TIMEOUT" and self.state is JobState.ARRIVED:
            self.refusal = DeadlineExceeded(message)
        else:
            if self._started_event is None:
                self._push_started(0)
            self._forget_unsent_tokens()
            retriable = code in RETRIABLE if is_retriable is None else is_retriable
            self._push(self.dialect.error(ErrorEvent(code=code, message=message, retriable=retriable)))
        self._end(_OUTCOMES.get(code, "error"))

    def show_life(self) -> None:
        """Show the client that the job lives, unless there is an event to send. This is no event and is not counted."""
        if self._events or not (sign := self.dialect.sign_of_life()):
            return
        if self._started_event is None:
            self._early_sign = sign
        self._push(sign)

    # ── what the client takes ────────────────────────────────────────────────────────────────────

    def take_chunk(self) -> bytes:
        """Return all events that are ready, at most MAX_CHUNK_BYTES (or one event); b"" if there is none now."""
        chunk = bytearray()
        while self._events and (not chunk or len(chunk) + len(self._events[0]) <= MAX_CHUNK_BYTES):
            chunk += self._events.popleft()
        self._n_buffered_bytes -= len(chunk)
        return bytes(chunk)

    # ── inside ───────────────────────────────────────────────────────────────────────────────────

    def _metrics_event(self) -> bytes:
        decode_ms = round(self.decode_time_s * 1000)
        event = MetricsEvent(
            tokens_per_sec=1000 * (self.tokens_sampled - 1) / decode_ms if decode_ms else 0.0,
            vram_bytes=self.admission.vram_bytes,
            job_id=self.request.job_id,
            tokens_out=self.tokens_out,
            decode_time_ms=decode_ms,
        )
        return self.dialect.metrics(event)

    def _push_started(self, n_cached: int) -> None:
        event = StartedEvent(
            job_id=self.request.job_id,
            model=self.admission.model,
            started_at=datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            seed=self.frame.sampling.drawn_seed,
            prompt_tokens=self.prompt_tokens,
            cached_tokens=n_cached,
        )
        self._started_event = self.dialect.started(event)
        self._push(self._started_event)

    def _push(self, event: bytes) -> None:
        if self.is_ended:
            return
        if not event:  # a dialect may leave an event out, or keep it
            if self.failure is None and self.dialect.is_overfull:
                self.fail("INVALID_REQUEST", TOO_LARGE)
            return
        self._events.append(event)
        self._n_buffered_bytes += len(event)
        self.admission.woken.set()
        if self._n_buffered_bytes > MAX_BUFFERED_BYTES:
            self.fail("CANCELLED", f"the client is more than {MAX_BUFFERED_BYTES} bytes behind")

    def _forget_unsent_tokens(self) -> None:
        """Drop tokens that have not left: after a failure none may leave, because a cancel's 202 may be on its way."""
        kept = (self._early_sign, self._started_event)
        self._events = deque(event for event in self._events if any(event is one for one in kept))
        self._n_buffered_bytes = sum(len(event) for event in self._events)

    def _end(self, outcome: Outcome) -> None:
        if self.is_ended:  # queueing the end event was itself too much for the buffer
            return
        self.outcome = outcome
        self._move(JobState.ENDED)
        self.admission.woken.set()
        self._on_end(self)


def in_ms(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1000)


async def next_chunk_of(jobs: Sequence[Job]) -> bytes:
    """Return the ready events of jobs that share their `woken`, at most one chunk more than MAX_CHUNK_BYTES; b"" after
    the terminal event of each. Once one has failed, only its events come."""
    while True:
        if failed := next((job for job in jobs if job.failure is not None), None):
            return failed.take_chunk()
        chunk = b""
        for job in jobs:
            chunk += job.take_chunk()
            if len(chunk) >= MAX_CHUNK_BYTES:
                break
        if chunk or all(job.is_ended for job in jobs):
            return chunk
        woken = jobs[0].admission.woken
        woken.clear()
        await woken.wait()
