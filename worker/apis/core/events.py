"""A job's events, and the interface of all forms in which clients get them."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Annotated, Final, Literal

import msgspec

from worker.apis.core.bodies import U64, Moment
from worker.wire.encoding import Count, doc
from worker.wire.jobs import Finished, Logprob, StopReason

EVENT_TYPES: Final = ("started", "token", "metrics", "end", "error")
SSE_TYPE: Final = "text/event-stream"

StreamCode = Literal["CANCELLED", "TIMEOUT", "VRAM_OOM", "INVALID_REQUEST", "INFERENCE_FAILED", "ENGINE_RESTARTED"]

SIGN_OF_LIFE: Final = b": keep-alive\n\n"
"""A comment of server-sent events. It has a word in it, because some readers take a bare colon for a broken line."""


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
        """Bytes that show the client in a long silence that the job lives, and mean nothing else. This is called only
        if they leave."""
        return b""

    @abstractmethod
    def started(self, event: StartedEvent) -> bytes:
        """The job has its slot. This is called once, even if the job runs again."""

    def prompt_logprobs(self, tokens: Sequence[Logprob]) -> bytes:  # noqa: ARG002 - most requests have none
        """The next part of the prompt's log-probabilities has come; they start at its second token."""
        return b""

    @abstractmethod
    def token(self, piece: Piece) -> bytes:
        """Some text has come. This is called for every token."""

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
