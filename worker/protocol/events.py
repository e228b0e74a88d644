"""A job's events, and a stream of them as bytes: server-sent events or JSON lines (docs/protocol.md#post-execute).

Owns: keys, their order and their descriptions in the OpenAPI document; the framings, and the choice of one for a
client; the interface of any other form of events. Pure. `token` is called for every token.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Final, Literal

import msgspec

from worker.protocol.bodies import U64, Moment
from worker.wire.encoding import Count, doc, encode_json
from worker.wire.jobs import Finished, Logprob, StopReason

EVENT_TYPES: Final = ("started", "token", "metrics", "end", "error")
SSE_TYPE: Final = "text/event-stream"
JSON_LINES_TYPES: Final = ("application/jsonl", "application/x-ndjson")

StreamCode = Literal[
    "CANCELLED", "TIMEOUT", "VRAM_OOM", "INVALID_REQUEST", "INFERENCE_FAILED", "ENGINE_RESTARTED"
]  # fmt: skip

SIGN_OF_LIFE: Final = b": keep-alive\n\n"
"""A comment of server-sent events. It has a word in it, because some readers take a bare colon for a broken line."""

_WEIGHT = re.compile(r"\s*q\s*=\s*(0(?:\.\d{0,3})?|1(?:\.0{0,3})?)\s*", re.IGNORECASE | re.ASCII)
"""RFC 9110, 12.4.2."""


class _Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type"):
    """Base of every event; the tag comes first."""


class StartedEvent(_Event, frozen=True, kw_only=True, tag="started"):
    """The job has its slot: exactly one, first."""

    job_id: str
    model: Annotated[str, doc("As in `/health`.")]
    started_at: Moment
    seed: Annotated[U64, doc("What the request asked for, else what was drawn for it.")]
    prompt_tokens: Count
    cached_tokens: Annotated[Count, doc("How many of the prompt's tokens needed no computing.")]


class TopLogprob(msgspec.Struct, frozen=True, kw_only=True):
    """A token that could have been drawn."""

    token: str
    id: Count
    logprob: Annotated[float, doc("Natural logarithm under the softmax of the raw logits.")]


class SampledLogprob(TopLogprob, frozen=True, kw_only=True):
    """A token that was drawn."""

    top: Annotated[list[TopLogprob], doc("The most probable tokens of that step, the first of them first.")]


class TokenEvent(_Event, frozen=True, kw_only=True, tag="token"):
    """Text that may be shown. Tokens without any come with the next that has."""

    t: Annotated[str, msgspec.Meta(min_length=1)]
    i: Annotated[Count, doc("0, 1, 2, …")]
    logprobs: Annotated[
        list[SampledLogprob] | msgspec.UnsetType,
        doc("Where the request asked for `logprobs`: every sampled token that no event before this one covers."),
    ] = msgspec.UNSET


class MetricsEvent(_Event, frozen=True, kw_only=True, tag="metrics"):
    """Once a second while tokens are generated."""

    tokens_per_sec: Annotated[float, msgspec.Meta(ge=0)]
    vram_bytes: Count
    job_id: str
    tokens_out: Annotated[Count, doc("`token` events so far.")]
    decode_time_ms: Count


class EndEvent(_Event, frozen=True, kw_only=True, tag="end"):
    """The job ran to an ordinary end: the last event."""

    tokens_out: Annotated[Count, doc("`token` events.")]
    decode_time_ms: Annotated[Count, doc("From the first to the last sampled token.")]
    stop_reason: StopReason
    stop_sequence_matched: Annotated[
        str | msgspec.UnsetType, doc("With STOP_SEQUENCE: the one of `stop` that matched.")
    ] = msgspec.UNSET
    tokens_sampled: Annotated[Count, doc("What `max_tokens` limits.")]
    prompt_tokens: Count
    time_to_first_token_ms: Annotated[Count, doc("From the request's arrival.")]
    context_full: Annotated[bool, doc("The context ended before `max_tokens` was reached.")] = False


class ErrorEvent(_Event, frozen=True, kw_only=True, tag="error"):
    """The job did not come to its end: the last event."""

    code: StreamCode
    message: str
    retriable: Annotated[bool, doc("Whether the same request may succeed on this worker later, or on another one.")]


Event = StartedEvent | TokenEvent | MetricsEvent | EndEvent | ErrorEvent


def _sampled(entry: Logprob) -> SampledLogprob:
    top = [TopLogprob(token=other.text, id=other.id, logprob=other.logprob) for other in entry.top]
    token = entry.token
    return SampledLogprob(token=token.text, id=token.id, logprob=token.logprob, top=top)


class Piece(msgspec.Struct, frozen=True):
    """Some text of a job, not empty and without lone surrogates."""

    text: str
    index: int = 0
    """0, 1, 2, …"""
    logprobs: Sequence[Logprob] = ()
    """Those of every sampled token that no earlier event covers, if the request asked for them. The list is the
    job's."""
    n_sampled: int = 0
    """The number of tokens that the job has drawn so far."""
    is_reasoning: bool = False
    """True if the text is not the answer's; only if the job's control tokens divide its text (Submit.marks)."""


class Dialect(ABC):
    """The form of one job's events for its client. A method that returns b"" leaves its event out, or keeps it."""

    media_type: str
    is_collecting = False
    """True if nothing leaves before the job's end, so that until then the job may run again."""

    @property
    def is_overfull(self) -> bool:
        """True if it keeps more bytes than it may. This is read only after it left an event out."""
        return False

    def sign_of_life(self) -> bytes:
        """Bytes that show the client in a long silence that the job lives, and mean nothing else; b"" if there are
        none. This is called only if they leave."""
        return b""

    @abstractmethod
    def started(self, event: StartedEvent) -> bytes:
        """The job has its slot. This is called once, even if the job runs again."""

    def prompt_logprobs(self, tokens: Sequence[Logprob]) -> bytes:  # noqa: ARG002 - most requests have none
        """The next part of the prompt's log-probabilities has come; they start at its second token."""
        return b""

    @abstractmethod
    def token(self, piece: Piece) -> bytes:
        """Some text has come."""

    def metrics(self, event: MetricsEvent) -> bytes:  # noqa: ARG002 - only `/execute` has this event
        return b""

    @abstractmethod
    def end(self, event: EndEvent, finished: Finished, logprobs: Sequence[Logprob] = ()) -> bytes:
        """The job came to its ordinary end; `logprobs` are those that no earlier event covers."""

    @abstractmethod
    def error(self, event: ErrorEvent) -> bytes:
        """The job did not come to its end."""

    def rewind(self) -> None:  # noqa: B027 - a dialect that keeps nothing has nothing to forget
        """The job runs again from its start: forget everything but `started`."""


@dataclass(frozen=True)
class Framing(Dialect):
    """The dialect of `/execute`: each event is its JSON between a lead and a tail. It keeps nothing, so that all jobs
    share it."""

    media_type: str
    leads: Mapping[str, bytes]
    """The bytes before the JSON, by event type."""
    tail: bytes
    comment: bytes = b""
    """The sign of life."""

    def sign_of_life(self) -> bytes:
        return self.comment

    def started(self, event: StartedEvent) -> bytes:
        return self._frame("started", event)

    def token(self, piece: Piece) -> bytes:
        sampled = [_sampled(entry) for entry in piece.logprobs] if piece.logprobs else msgspec.UNSET
        return self._frame("token", TokenEvent(t=piece.text, i=piece.index, logprobs=sampled))

    def metrics(self, event: MetricsEvent) -> bytes:
        return self._frame("metrics", event)

    def end(self, event: EndEvent, finished: Finished, logprobs: Sequence[Logprob] = ()) -> bytes:  # noqa: ARG002
        return self._frame("end", event)

    def error(self, event: ErrorEvent) -> bytes:
        return self._frame("error", event)

    def _frame(self, event_type: str, event: _Event) -> bytes:
        return self.leads[event_type] + encode_json(event) + self.tail


class _TextOnly(Framing):
    """No framing: a token event is its text, and the others are left out."""

    def _frame(self, event_type: str, event: _Event) -> bytes:  # noqa: ARG002 - the base class's signature
        return event.t.encode() if isinstance(event, TokenEvent) else b""


TEXT_ONLY: Final = _TextOnly("text/plain", {}, b"")
"""The form that `llorch-worker generate` writes; no client can ask for it."""

_SSE = Framing(SSE_TYPE, dict.fromkeys(EVENT_TYPES, b"data: "), b"\n\n", SIGN_OF_LIFE)
_NAMED_LEADS = {name: b"event: %b\ndata: " % name.encode() for name in EVENT_TYPES}
_NAMED_SSE = Framing(SSE_TYPE, _NAMED_LEADS, b"\n\n", SIGN_OF_LIFE)
_JSON_LINES = {name: Framing(name, dict.fromkeys(EVENT_TYPES, b""), b"\n") for name in JSON_LINES_TYPES}


def choose_dialect(accept: str | None, *, sse_event_names: bool) -> Framing:
    """Return the framing for an Accept header: the one that it names with the most weight, the first among equals.

    Wildcards ask for nothing in particular, and no header is refused: everything else gets server-sent events.
    """
    best, best_weight = SSE_TYPE, 0.0
    for entry in (accept or "").split(","):
        media_type, *parameters = entry.split(";")
        name = media_type.strip().lower()
        weight = _weight(parameters)
        if (name == SSE_TYPE or name in _JSON_LINES) and weight > best_weight:
            best, best_weight = name, weight
    if best in _JSON_LINES:
        return _JSON_LINES[best]
    return _NAMED_SSE if sse_event_names else _SSE


def _weight(parameters: list[str]) -> float:
    matches = filter(None, map(_WEIGHT.fullmatch, parameters))
    return next((float(match[1]) for match in matches), 1.0)
