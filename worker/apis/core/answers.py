"""The parts that all answers of `/v1` share: their heading, their usage, and how a job's text becomes one choice, whole
or streamed."""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any, ClassVar, Literal

import msgspec

from worker.apis.core.errors import failure_body, failure_status
from worker.apis.core.events import SIGN_OF_LIFE, SSE_TYPE, Dialect, EndEvent, ErrorEvent, Piece, StartedEvent
from worker.apis.core.reading import Names, Reading
from worker.formats.read.parse import Content, Delta, Thought
from worker.wire.chat_format import ReasoningFormat
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


class StreamOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of a stream other than the text."""

    include_usage: Annotated[bool | None, doc("Send the usage in a last chunk without choices.")] = None
    continuous_usage_stats: Annotated[bool | None, doc("Send the usage so far in every chunk.")] = None


NO_OPTIONS = StreamOptions()


@dataclass(frozen=True, slots=True, kw_only=True)
class Heading:
    """The fields that are the same in all objects of an answer."""

    id: str
    created: int
    """Unix time in seconds."""
    model: str
    system_fingerprint: str


class Allowance:
    """The bytes that the choices of one answer may still hold until it is sent."""

    def __init__(self, n_bytes: int = MAX_HELD_BYTES) -> None:
        self.n_left = n_bytes


class Choice(Dialect):
    """One job's part of an answer, whole or streamed; and the job's numbers afterwards. A stream sends what comes at
    once, a whole answer keeps it until the end. Subclasses have the shapes."""

    kind: ClassVar[str | None] = None
    """The `object` of its chunks; None if a stream ends with its last event."""
    shape: ClassVar[Callable[..., Any] | None] = None
    """The struct of a whole answer, which has choices; None if the answer is its only choice."""
    keeps_text: bool
    """True if the text counts as held until the answer is sent."""

    def __init__(self, index: int, allowance: Allowance, *, is_stream: bool) -> None:
        self.media_type = SSE_TYPE if is_stream else JSON_TYPE
        self.is_collecting = self.keeps_text = not is_stream
        self.index = index
        self.seed = self.n_prompt = self.n_cached = 0
        self.n_drawn = 0
        """The number of tokens that were drawn so far."""
        self.ended: EndEvent | None = None
        self.finished: Finished | None = None
        """The job's end, which these two have; None before it."""
        self.failed: ErrorEvent | None = None
        """The reason why there is no answer; None if there is one."""
        self._allowance = allowance
        self._n_held = 0

    @property
    def is_overfull(self) -> bool:
        return self._allowance.n_left < 0

    @property
    def finish_reason(self) -> FinishReason | None:
        """None before the end."""
        return None if self.finished is None else _REASONS[self.finished.reason]

    def sign_of_life(self) -> bytes:
        return SIGN_OF_LIFE

    def started(self, event: StartedEvent) -> bytes:
        self.seed, self.n_prompt, self.n_cached = event.seed, event.prompt_tokens, event.cached_tokens
        return b"" if self.is_collecting else self._begun()

    def token(self, piece: Piece) -> bytes:
        if self.keeps_text:
            self._hold(len(piece.text))
        self.n_drawn = piece.n_sampled
        return self._grown(piece)

    def end(self, event: EndEvent, finished: Finished, logprobs: Sequence[Logprob] = ()) -> bytes:
        self.n_drawn, self.ended, self.finished = event.tokens_sampled, event, finished
        return self._ended(logprobs)

    def error(self, event: ErrorEvent) -> bytes:
        self.failed = event
        return b"" if self.is_collecting else self._failed(event)

    def rewind(self) -> None:
        self._hold(-self._n_held)

    @abstractmethod
    def made(self) -> Any:
        """The choice as a part of the whole answer, once it has ended."""

    def failed_body(self, event: ErrorEvent) -> bytes:
        """The body of an answer that has failed."""
        return failure_body(event)

    def _begun(self) -> bytes:
        """The first bytes of a stream."""
        return b""

    @abstractmethod
    def _grown(self, piece: Piece) -> bytes:
        """Some text has come: return its bytes in a stream, or keep it."""

    @abstractmethod
    def _ended(self, logprobs: Sequence[Logprob]) -> bytes:
        """All text has come: return the last bytes of a stream. `logprobs`: those that came with no text."""

    def _failed(self, event: ErrorEvent) -> bytes:
        return b"data: " + self.failed_body(event) + b"\n\n"

    def _hold(self, n_bytes: int) -> None:
        """Count bytes that the choice holds from now on; a negative number counts bytes that it no longer holds."""
        self._n_held += n_bytes
        self._allowance.n_left -= n_bytes


_THOUGHTS = ReasoningFormat(begin="<think>", end="</think>")
"""The markers of reasoning that the model's format does not name."""


class ReadChoice(Choice):
    """A choice whose text is read: it becomes deltas. Subclasses have the bytes of each."""

    def __init__(self, index: int, allowance: Allowance, reading: Reading, *, is_stream: bool) -> None:
        super().__init__(index, allowance, is_stream=is_stream)
        self._reading = reading
        self._deltas: list[Delta] = []
        self._read_anew()

    def rewind(self) -> None:
        super().rewind()
        self._deltas.clear()
        self._read_anew()

    def _read_anew(self) -> None:
        self._names = Names()
        self._reader = self._reading.reader(self._names.is_sure)
        self._is_thinking = False

    def _grown(self, piece: Piece) -> bytes:
        if piece.logprobs:
            self._names.add(piece.logprobs)
        return self._taken(self._reader.push(piece.text, is_thought=piece.is_reasoning))

    def _rest(self) -> bytes:
        """Read the text that was held back, once all has come. Returns its bytes in a stream."""
        assert self.finished is not None
        reason = self.finished.reason
        return self._taken(self._reader.finish(is_cut=reason == "MAX_TOKENS", is_stopped=reason == "STOP_SEQUENCE"))

    def _taken(self, deltas: Sequence[Delta]) -> bytes:
        """Return the bytes of deltas in a stream, or keep them."""
        if self._reading.keeps_thoughts:
            deltas = [*self._as_text(deltas)]
        if not self.is_collecting:
            return b"".join([self._event(delta) for delta in deltas])
        for delta in deltas:
            self._keep(delta)
        return b""

    def _as_text(self, deltas: Sequence[Delta]) -> Iterator[Delta]:
        """Yield the deltas with reasoning as content."""
        marks = self._reading.form.reasoning or _THOUGHTS
        for delta in deltas:
            is_thought = isinstance(delta, Thought)
            if is_thought != self._is_thinking:
                yield Content(marks.begin if is_thought else marks.end)
                self._is_thinking = is_thought
            yield Content(delta.text) if isinstance(delta, Thought) else delta

    def _keep(self, delta: Delta) -> None:
        self._deltas.append(delta)

    @abstractmethod
    def _event(self, delta: Delta) -> bytes: ...


class Chunks:
    """The frames of one choice's stream, in the form of chats and completions."""

    def __init__(self, heading: Heading, choice: Choice, options: StreamOptions) -> None:
        self._choice = choice
        self._opening = _opening(heading, choice) + b'"choices":[{"index":%d,' % choice.index
        self._has_usage = bool(options.continuous_usage_stats)
        self._closing = b'}],"usage":null}\n\n' if options.include_usage else b"}]}\n\n"

    def chunk(self, text: bytes, logprobs: bytes = b"null", reason: bytes = b"null") -> bytes:
        """A chunk whose choice has its index and these members. `text`: the first of them, with its name."""
        members = b'%b,"logprobs":%b,"finish_reason":%b' % (text, logprobs, reason)
        if not self._has_usage:
            return self._opening + members + self._closing
        return self._opening + members + b'}],"usage":' + encode_json(usage_of([self._choice])) + b"}\n\n"


def _opening(heading: Heading, choice: Choice) -> bytes:
    """The first bytes of each of a stream's chunks, up to its choices."""
    head = {"id": heading.id, "object": choice.kind} | asdict(heading)
    return b"data: " + encode_json(head)[:-1] + b","


def last_chunks(heading: Heading, choices: Sequence[Choice], n: int, options: StreamOptions) -> bytes:
    """The chunks after every choice has ended: the usage if the request asked for it, and the end of the stream. `n`:
    the number of choices for each prompt."""
    if choices[0].kind is None:
        return b""
    if not options.include_usage:
        return DONE
    usage = encode_json(usage_of(choices, n))
    return _opening(heading, choices[0]) + b'"choices":[],"usage":' + usage + b"}\n\n" + DONE


def whole(heading: Heading, choices: Sequence[Choice], n: int) -> tuple[int, bytes]:
    """The status and the bytes of an answer that does not stream: the first job's failure, if one has failed. `n`: the
    number of choices for each prompt."""
    for choice in choices:
        if choice.failed is not None:
            return failure_status(choice.failed), choice.failed_body(choice.failed)
    shape, made = choices[0].shape, [choice.made() for choice in choices]
    if shape is None:
        return 200, encode_json(made[0])
    return 200, encode_json(shape(**asdict(heading), choices=made, usage=usage_of(choices, n)))


def usage_of(choices: Sequence[Choice], n: int = 1) -> Usage:
    """The usage so far of an answer whose prompts have `n` consecutive choices each."""
    firsts = choices[::n]
    n_prompt = sum(choice.n_prompt for choice in firsts)
    n_drawn = sum(choice.n_drawn for choice in choices)
    ends = [choice.finished for choice in choices if choice.finished is not None]
    n_accepted = sum(end.n_accepted for end in ends)
    return Usage(
        prompt_tokens=n_prompt,
        completion_tokens=n_drawn,
        total_tokens=n_prompt + n_drawn,
        prompt_tokens_details=PromptDetails(cached_tokens=sum(choice.n_cached for choice in firsts)),
        completion_tokens_details=CompletionDetails(
            reasoning_tokens=sum(end.n_reasoning for end in ends),
            accepted_prediction_tokens=n_accepted,
            rejected_prediction_tokens=sum(end.n_drafted for end in ends) - n_accepted,
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
