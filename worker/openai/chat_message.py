"""The answers of `POST /v1/chat/completions`: a job's events become a message, or the chunks of one.

Owns: the shapes of answers. Pure except for the ids of calls. `token` is called for every token.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import msgspec

from worker.chat.parse import Arguments, CallBegun, Content, Delta, Message, Thought, message_of
from worker.openai.answers import (
    Allowance,
    Choice,
    Heading,
    StreamedChoice,
    Usage,
    array,
    finite,
    json_array,
)
from worker.openai.fields import StreamOptions
from worker.openai.listed import ListedTokens
from worker.openai.reading import ReadAnswer, Reading
from worker.wire.encoding import Count, doc, encode_json
from worker.wire.jobs import Logprob, StopReason

OBJECT = "chat.completion"
CHUNK_OBJECT = "chat.completion.chunk"

MessageReason = Literal["stop", "length", "tool_calls"]
REASONING_FIELDS = ("reasoning_content", "reasoning")
"""The names of the reasoning that clients know, DeepSeek's and OpenRouter's."""

# ── shapes ───────────────────────────────────────────────────────────────────────────────────────


class TokenLogprob(msgspec.Struct, frozen=True, kw_only=True):
    """A token, and the natural logarithm of its probability under the softmax of the raw logits."""

    token: Annotated[str, doc("Text of the token; U+FFFD stands for bytes that are not a whole character.")]
    logprob: float
    bytes: tuple[int, ...]


class DrawnLogprob(TokenLogprob, frozen=True, kw_only=True):
    """A token of the answer."""

    top_logprobs: tuple[TokenLogprob, ...]


class ChatLogprobs(msgspec.Struct, frozen=True, kw_only=True):
    """The log-probabilities of the tokens whose text is content. End tokens, calls, markers and the text that a stop
    hides are left out."""

    content: Annotated[msgspec.Raw, json_array({"type": "object"})]
    refusal: None = None


class MessageFunction(msgspec.Struct, frozen=True, kw_only=True):
    """A function and its arguments."""

    name: str
    arguments: Annotated[str, doc("JSON text. It is incomplete if the answer was cut off in it.")]


class MessageCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call of an offered tool."""

    id: str
    type: Literal["function"] = "function"
    function: MessageFunction


class ChatMessage(msgspec.Struct, frozen=True, kw_only=True):
    """The assistant's message."""

    role: Literal["assistant"] = "assistant"
    content: Annotated[str | None, doc("null if there are only calls.")]
    reasoning_content: Annotated[
        str | msgspec.UnsetType, doc("The model's reasoning, if markers separate it from the answer.")
    ] = msgspec.UNSET
    reasoning: Annotated[
        str | msgspec.UnsetType, doc("The same. --reasoning-field chooses one of the two, or both.")
    ] = msgspec.UNSET
    tool_calls: Annotated[list[MessageCall] | msgspec.UnsetType, doc("The calls, if there are any.")] = msgspec.UNSET
    refusal: None = None


class ChatChoice(msgspec.Struct, frozen=True, kw_only=True):
    """One of n answers."""

    index: Count
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: MessageReason


class ChatCompletion(msgspec.Struct, frozen=True, kw_only=True):
    """The answer that does not stream."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: Annotated[Count, doc("Unix time in seconds.")]
    model: str
    system_fingerprint: str
    choices: list[ChatChoice]
    usage: Usage


# ── reading ──────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageTerms:
    """The wishes of a request that its messages follow."""

    reading: Reading
    wants_logprobs: bool = False
    reasoning_fields: tuple[str, ...] = ("reasoning_content",)


class _ReadMessage:
    """Reads one answer as deltas, each with the tokens that are listed with it."""

    def __init__(self, terms: MessageTerms) -> None:
        self._terms = terms
        self.answer = ReadAnswer(terms.reading)
        self._tokens = ListedTokens()

    def rewind(self) -> None:
        self.answer.rewind()
        self._tokens = ListedTokens()

    def push(
        self, text: str, logprobs: Sequence[Logprob], *, is_reasoning: bool
    ) -> Iterator[tuple[Delta, list[Logprob]]]:
        """Yield the deltas that the text completes."""
        if not is_reasoning:
            self._add(logprobs)
        yield from self._listed(self.answer.push(text, logprobs, is_reasoning=is_reasoning))

    def finish(self, logprobs: Sequence[Logprob], reason: StopReason) -> Iterator[tuple[Delta, list[Logprob]]]:
        """Yield the deltas of the text that was held back."""
        self._add(logprobs)
        yield from self._listed(self.answer.finish(reason))

    def _add(self, logprobs: Sequence[Logprob]) -> None:
        if self._terms.wants_logprobs:
            self._tokens.add(logprobs)

    def rest(self, *, is_cut: bool) -> list[Logprob]:
        """The tokens that are listed behind the last delta."""
        return self._tokens.finish(is_cut_off=is_cut)

    def _listed(self, deltas: Sequence[Delta]) -> Iterator[tuple[Delta, list[Logprob]]]:
        for delta in deltas:
            yield delta, self._shown_by(delta)

    def _shown_by(self, delta: Delta) -> list[Logprob]:
        match delta:
            case Content(text):
                return self._tokens.show(text)
            case CallBegun():
                return self._tokens.skip(delta.name)
            case Arguments(_, text):
                return self._tokens.skip(text)
            case Thought():
                return []


def _reason(choice: Choice, read: _ReadMessage) -> MessageReason:
    assert choice.finish_reason is not None
    return "tool_calls" if read.answer.is_called and choice.finish_reason == "stop" else choice.finish_reason


# ── answers ──────────────────────────────────────────────────────────────────────────────────────


class CollectedMessage(Choice):
    """A message that is sent when it is complete."""

    def __init__(self, index: int, allowance: Allowance, terms: MessageTerms) -> None:
        super().__init__(index, allowance)
        self._terms = terms
        self._read = _ReadMessage(terms)
        self._deltas: list[Delta] = []
        self._logprobs: list[bytes] = []

    def token(
        self,
        text: str,
        index: int,  # noqa: ARG002
        logprobs: Sequence[Logprob] = (),
        n_sampled: int = 0,  # noqa: ARG002
        *,
        is_reasoning: bool = False,
    ) -> bytes:
        self._hold(len(text))
        for delta, shown in self._read.push(text, logprobs, is_reasoning=is_reasoning):
            self._take(delta, shown)
        return b""

    def rewind(self) -> None:
        super().rewind()
        self._read.rewind()
        self._deltas.clear()
        self._logprobs.clear()

    def made(self) -> ChatChoice:
        return ChatChoice(
            index=self.index,
            message=_whole(
                message_of(self._deltas, is_unfinished=self._read.answer.is_unfinished), self._terms.reasoning_fields
            ),
            logprobs=ChatLogprobs(content=array(self._logprobs)) if self._terms.wants_logprobs else None,
            finish_reason=_reason(self, self._read),
        )

    def _ended(self, logprobs: Sequence[Logprob]) -> bytes:
        is_cut = self.finish_reason == "length"
        for delta, shown in self._read.finish(logprobs, self.ended_by):
            self._take(delta, shown)
        self._list(self._read.rest(is_cut=is_cut))
        return b""

    def _take(self, delta: Delta, shown: Sequence[Logprob]) -> None:
        self._deltas.append(delta)
        self._list(shown)

    def _list(self, shown: Sequence[Logprob]) -> None:
        for item in _encoded(shown):
            self._logprobs.append(item)
            self._hold(len(item))


def _whole(message: Message, reasoning_fields: Sequence[str]) -> ChatMessage:
    calls = [
        MessageCall(id=call.id, function=MessageFunction(name=call.name, arguments=call.arguments))
        for call in message.calls
    ]
    thoughts = message.reasoning or msgspec.UNSET
    return ChatMessage(
        content=None if calls and not message.content else message.content,
        reasoning_content=thoughts if "reasoning_content" in reasoning_fields else msgspec.UNSET,
        reasoning=thoughts if "reasoning" in reasoning_fields else msgspec.UNSET,
        tool_calls=calls or msgspec.UNSET,
    )


class StreamedMessage(StreamedChoice):
    """A message that is sent as it is generated: the role, the text and the calls, the reason why it ended."""

    kind = CHUNK_OBJECT

    def __init__(
        self, index: int, allowance: Allowance, heading: Heading, options: StreamOptions, terms: MessageTerms
    ) -> None:
        super().__init__(index, allowance, heading, options)
        self._terms = terms
        self._read = _ReadMessage(terms)

    def token(
        self,
        text: str,
        index: int,  # noqa: ARG002
        logprobs: Sequence[Logprob] = (),
        n_sampled: int = 0,
        *,
        is_reasoning: bool = False,
    ) -> bytes:
        found = self._read.push(text, logprobs, is_reasoning=is_reasoning)
        return b"".join(self._grown(delta, shown, n_sampled) for delta, shown in found)

    def rewind(self) -> None:
        super().rewind()
        self._read.rewind()

    def _begun(self) -> bytes:
        members = b'"delta":{"role":"assistant","content":"","refusal":null},"logprobs":null,"finish_reason":null'
        return self._chunk(members, 0)

    def _ended(self, logprobs: Sequence[Logprob]) -> bytes:
        is_cut = self.finish_reason == "length"
        found = self._read.finish(logprobs, self.ended_by)
        last = b"".join(self._grown(delta, shown, self.n_drawn) for delta, shown in found)
        shown = self._read.rest(is_cut=is_cut)
        rest = self._entries(shown) if shown and self._terms.wants_logprobs else b"null"
        reason = encode_json(_reason(self, self._read))
        return last + self._chunk(b'"delta":{},"logprobs":%b,"finish_reason":%b' % (rest, reason), self.n_drawn)

    def _grown(self, delta: Delta, shown: Sequence[Logprob], n_drawn: int) -> bytes:
        is_listed = self._terms.wants_logprobs and (bool(shown) or isinstance(delta, Content))
        entries = self._entries(shown) if is_listed else b"null"
        members = b'"delta":%b,"logprobs":%b,"finish_reason":null' % (self._delta(delta), entries)
        return self._chunk(members, n_drawn)

    def _entries(self, logprobs: Sequence[Logprob]) -> bytes:
        return encode_json(ChatLogprobs(content=array(_encoded(logprobs))))

    def _delta(self, delta: Delta) -> bytes:
        """The members of a chunk's delta. A call's id, type and name come once, then parts of its arguments."""
        match delta:
            case Content(text):
                return b'{"content":%b}' % encode_json(text)
            case Thought(text):
                return encode_json(dict.fromkeys(self._terms.reasoning_fields, text))
            case CallBegun(index, call_id, name):
                head = b'{"index":%d,"id":%b,"type":"function"' % (index, encode_json(call_id))
                return b'{"tool_calls":[%b,"function":{"name":%b,"arguments":""}}]}' % (head, encode_json(name))
            case Arguments(index, text):
                return b'{"tool_calls":[{"index":%d,"function":{"arguments":%b}}]}' % (index, encode_json(text))


def _encoded(logprobs: Sequence[Logprob]) -> list[bytes]:
    return [encode_json(_drawn(entry)) for entry in logprobs]


def _drawn(entry: Logprob) -> DrawnLogprob:
    top = tuple(
        TokenLogprob(token=other.text, logprob=finite(other.logprob), bytes=tuple(other.piece)) for other in entry.top
    )
    token = entry.token
    return DrawnLogprob(token=token.text, logprob=finite(token.logprob), bytes=tuple(token.piece), top_logprobs=top)
