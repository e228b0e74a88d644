"""The parts that all answers of `/v1` share: their heading, their usage, and how a job's events become one choice.

Owns: the counts of tokens, the limit on an answer before it is sent, the frames of a stream. Pure.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import msgspec

from worker.openai.errors import error_body, failure, failure_detail
from worker.openai.fields import StreamOptions
from worker.protocol.events import SIGN_OF_LIFE, SSE_TYPE, EndEvent, ErrorEvent, MetricsEvent, StartedEvent
from worker.wire.encoding import Count, doc, encode_json
from worker.wire.jobs import Finished, Logprob, StopReason

FinishReason = Literal["stop", "length"]

JSON_TYPE = "application/json"
DONE = b"data: [DONE]\n\n"

MAX_HELD_BYTES = 16 * 1024 * 1024
"""The most bytes that a request may hold until its answer is sent: 8,000 tokens of a prompt with 20 alternatives each
are 13 MiB."""

MIN_LOGPROB = -9999.0
"""This number stands for minus infinity, which JSON cannot express; OpenAI sends it too."""

_REASONS: dict[StopReason, FinishReason] = {"MAX_TOKENS": "length", "EOS": "stop", "STOP_SEQUENCE": "stop"}


class PromptDetails(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of the prompt's tokens."""

    cached_tokens: Annotated[Count, doc("Tokens whose KV cells were cached.")]


class CompletionDetails(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of the generated tokens."""

    reasoning_tokens: Count = 0
    accepted_prediction_tokens: Annotated[Count, doc("Drafted tokens that were accepted.")] = 0
    rejected_prediction_tokens: Annotated[Count, doc("Drafted tokens that were rejected.")] = 0


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """The cost of an answer in tokens. A prompt counts once, however many answers it has."""

    prompt_tokens: Count
    completion_tokens: Annotated[Count, doc("Sampled tokens, including the model's end token.")]
    total_tokens: Count
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails


@dataclass(frozen=True, slots=True, kw_only=True)
class Heading:
    """The fields that are the same in all objects of an answer."""

    id: str
    created: int
    """Unix time in seconds."""
    model: str
    system_fingerprint: str


class _ChunkHead(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: str
    created: int
    model: str
    system_fingerprint: str


class Allowance:
    """The bytes that the choices of one answer may still hold until it is sent."""

    def __init__(self, n_bytes: int = MAX_HELD_BYTES) -> None:
        self.n_left = n_bytes


class Choice(ABC):
    """One job's part of an answer. It is the job's Dialect (protocol/events.py), and holds the job's numbers
    afterwards.

    Subclasses decide which bytes are sent at once and which are held.
    """

    media_type = JSON_TYPE
    is_collecting = True

    def __init__(self, index: int, allowance: Allowance) -> None:
        self.index = index
        self.n_prompt = self.n_cached = self.n_drawn = self.n_drafted = self.n_accepted = self.n_reasoning = 0
        self.finish_reason: FinishReason | None = None
        self.ended_by: StopReason = "EOS"
        self.failed: ErrorEvent | None = None
        """The reason why there is no answer; None if there is one."""
        self._allowance = allowance
        self._n_held = 0

    @property
    def is_overfull(self) -> bool:
        return self._allowance.n_left < 0

    def sign_of_life(self) -> bytes:
        return b""

    def started(self, event: StartedEvent) -> bytes:
        self.n_prompt, self.n_cached = event.prompt_tokens, event.cached_tokens
        return self._begun()

    def prompt_logprobs(self, tokens: Sequence[Logprob]) -> bytes:  # noqa: ARG002 - most answers have none
        return b""

    @abstractmethod
    def token(
        self,
        text: str,
        index: int,
        logprobs: Sequence[Logprob] = (),
        n_sampled: int = 0,
        *,
        is_reasoning: bool = False,
    ) -> bytes: ...

    def metrics(self, event: MetricsEvent) -> bytes:  # noqa: ARG002 - these answers have none
        return b""

    def end(self, event: EndEvent, finished: Finished, logprobs: Sequence[Logprob] = ()) -> bytes:
        self.n_drawn = event.tokens_sampled
        self.n_drafted, self.n_accepted = finished.n_drafted, finished.n_accepted
        self.n_reasoning = finished.n_reasoning
        self.ended_by, self.finish_reason = finished.reason, _REASONS[finished.reason]
        return self._ended(logprobs)

    def error(self, event: ErrorEvent) -> bytes:
        self.failed = event
        return b""

    def rewind(self) -> None:
        self._hold(-self._n_held)

    def _begun(self) -> bytes:
        return b""

    @abstractmethod
    def _ended(self, logprobs: Sequence[Logprob]) -> bytes: ...

    def _hold(self, n_bytes: int) -> None:
        """Count bytes that the choice holds from now on; a negative number counts bytes that it no longer holds."""
        self._n_held += n_bytes
        self._allowance.n_left -= n_bytes


class CollectedChoice(Choice):
    """A choice whose text is sent when it is complete."""

    def __init__(self, index: int, allowance: Allowance) -> None:
        super().__init__(index, allowance)
        self._texts: list[str] = []

    def token(
        self,
        text: str,
        index: int,  # noqa: ARG002
        logprobs: Sequence[Logprob] = (),
        n_sampled: int = 0,  # noqa: ARG002
        *,
        is_reasoning: bool = False,  # noqa: ARG002 - chat_message.py's alone
    ) -> bytes:
        self._texts.append(text)
        self._hold(len(text))
        self._keep(logprobs)
        return b""

    def rewind(self) -> None:
        super().rewind()
        self._texts.clear()

    @property
    def _text(self) -> str:
        return "".join(self._texts)

    def _ended(self, logprobs: Sequence[Logprob]) -> bytes:
        self._keep(logprobs)
        return b""

    @abstractmethod
    def _keep(self, logprobs: Sequence[Logprob]) -> None:
        """Keep the log-probabilities of the tokens that were sampled since the last call."""


class StreamedChoice(Choice):
    """A choice whose text is sent as it is generated."""

    media_type = SSE_TYPE
    is_collecting = False
    kind: ClassVar[str]
    """The `object` of a chunk."""

    def __init__(self, index: int, allowance: Allowance, heading: Heading, options: StreamOptions) -> None:
        super().__init__(index, allowance)
        self._opening = chunk_opening(heading, self.kind) + b'"choices":[{"index":%d,' % index
        self._has_usage = bool(options.continuous_usage_stats)
        self._closing = b'}],"usage":null}\n\n' if options.include_usage else b"}]}\n\n"

    def sign_of_life(self) -> bytes:
        return SIGN_OF_LIFE

    def error(self, event: ErrorEvent) -> bytes:
        super().error(event)
        return b"data: " + error_body(failure_detail(event)) + b"\n\n"

    def _chunk(self, members: bytes, n_drawn: int) -> bytes:
        """A chunk whose choice has its index and these members."""
        if not self._has_usage:
            return self._opening + members + self._closing
        usage = encode_json(usage_of([self], n_drawn=n_drawn))
        return self._opening + members + b'}],"usage":' + usage + b"}\n\n"


def chunk_opening(heading: Heading, kind: str) -> bytes:
    """The first bytes of each of a stream's chunks, up to its choices."""
    head = _ChunkHead(
        id=heading.id,
        object=kind,
        created=heading.created,
        model=heading.model,
        system_fingerprint=heading.system_fingerprint,
    )
    return b"data: " + encode_json(head)[:-1] + b","


def last_chunks(heading: Heading, kind: str, choices: Sequence[Choice], n: int, options: StreamOptions) -> bytes:
    """The chunks after every choice has ended: the usage if the request asked for it, and the end of the stream."""
    if not options.include_usage:
        return DONE
    usage = encode_json(usage_of(choices, n=n))
    return chunk_opening(heading, kind) + b'"choices":[],"usage":' + usage + b"}\n\n" + DONE


def failure_body(event: ErrorEvent) -> bytes:
    """The body of a job that failed, in OpenAI's shape."""
    return error_body(failure_detail(event))


def whole(
    choices: Sequence[Choice], body: Callable[[], bytes], failed_body: Callable[[ErrorEvent], bytes] = failure_body
) -> tuple[int, bytes]:
    """The status and the bytes of an answer that does not stream: `body`'s, or `failed_body`'s for the first job that
    failed."""
    failed = next((choice.failed for choice in choices if choice.failed is not None), None)
    if failed is not None:
        return failure(failed).status, failed_body(failed)
    return 200, body()


def usage_of(choices: Sequence[Choice], n: int = 1, n_drawn: int | None = None) -> Usage:
    """The usage of an answer whose prompts have `n` consecutive choices each. Pass `n_drawn` if the only choice has not
    ended."""
    firsts = choices[::n]
    n_prompt = sum(choice.n_prompt for choice in firsts)
    drawn = sum(choice.n_drawn for choice in choices) if n_drawn is None else n_drawn
    n_drafted, n_accepted = sum(choice.n_drafted for choice in choices), sum(choice.n_accepted for choice in choices)
    return Usage(
        prompt_tokens=n_prompt,
        completion_tokens=drawn,
        total_tokens=n_prompt + drawn,
        prompt_tokens_details=PromptDetails(cached_tokens=sum(choice.n_cached for choice in firsts)),
        completion_tokens_details=CompletionDetails(
            reasoning_tokens=sum(choice.n_reasoning for choice in choices),
            accepted_prediction_tokens=n_accepted,
            rejected_prediction_tokens=n_drafted - n_accepted,
        ),
    )


def array(items: Sequence[bytes]) -> msgspec.Raw:
    """A JSON array of items that are JSON already."""
    return msgspec.Raw(b"[" + b",".join(items) + b"]")


def finite(logprob: float) -> float:
    return max(logprob, MIN_LOGPROB)


def json_array(of: dict[str, Any]) -> Any:
    """The schema of an `array` in the OpenAPI document."""
    return msgspec.Meta(extra_json_schema={"type": "array", "items": of})
