"""The answers of `POST /v1/chat/completions`: a job's events become a message, or the chunks of one.

Owns: the shapes of answers. Pure except for the ids of calls. `token` is called for every token.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import msgspec

from worker.apis.chat.listed import ListedTokens
from worker.apis.core.answers import Allowance, Chunks, Heading, ReadChoice, Usage, array, finite, json_array
from worker.apis.core.events import Piece
from worker.apis.core.fields import StreamOptions
from worker.apis.core.reading import Reading
from worker.formats.read.parse import Arguments, CallBegun, Content, Delta, Message, Thought, message_of
from worker.wire.encoding import Count, doc, encode_json
from worker.wire.jobs import Logprob

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


# ── answers ──────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageTerms:
    """The wishes of a request that its messages follow."""

    reading: Reading
    wants_logprobs: bool = False
    reasoning_fields: tuple[str, ...] = ("reasoning_content",)


class ChatAnswer(ReadChoice):
    """A message. A stream of it is the role, the text and the calls, and the reason why it ended."""

    kind = "chat.completion.chunk"
    shape = ChatCompletion

    def __init__(
        self, index: int, allowance: Allowance, heading: Heading, options: StreamOptions | None, terms: MessageTerms
    ) -> None:
        """`options`: None if the message is sent whole."""
        super().__init__(index, allowance, terms.reading, is_stream=options is not None)
        self._chunks = Chunks(heading, self, options or StreamOptions())
        self._terms = terms
        self._tokens = ListedTokens()
        self._logprobs: list[bytes] = []
        """The listed tokens of a whole answer."""

    def rewind(self) -> None:
        super().rewind()
        self._tokens = ListedTokens()
        self._logprobs.clear()

    def made(self) -> ChatChoice:
        message = message_of(self._deltas, is_unfinished=self._answer.is_unfinished)
        return ChatChoice(
            index=self.index,
            message=_whole(message, self._terms.reasoning_fields),
            logprobs=ChatLogprobs(content=array(self._logprobs)) if self._terms.wants_logprobs else None,
            finish_reason=self._reason,
        )

    @property
    def _reason(self) -> MessageReason:
        assert self.finish_reason is not None
        return "tool_calls" if self._answer.is_called and self.finish_reason == "stop" else self.finish_reason

    def _begun(self) -> bytes:
        return self._chunks.chunk(b'"delta":{"role":"assistant","content":"","refusal":null}')

    def _grown(self, piece: Piece) -> bytes:
        if self._terms.wants_logprobs and not piece.is_reasoning:
            self._tokens.add(piece.logprobs)
        return super()._grown(piece)

    def _ended(self, logprobs: Sequence[Logprob]) -> bytes:
        assert self.finished is not None
        if self._terms.wants_logprobs:
            self._tokens.add(logprobs)
        last = self._taken(self._answer.finish(self.finished.reason))
        rest = self._tokens.finish(is_cut_off=self.finish_reason == "length")
        if self.is_collecting:
            self._list(rest)
            return b""
        entries = _listed(rest) if rest else b"null"
        return last + self._chunks.chunk(b'"delta":{}', entries, encode_json(self._reason))

    def _event(self, delta: Delta) -> bytes:
        shown = self._shown_by(delta)
        is_listed = shown or (self._terms.wants_logprobs and isinstance(delta, Content))
        return self._chunks.chunk(b'"delta":' + self._delta(delta), _listed(shown) if is_listed else b"null")

    def _keep(self, delta: Delta) -> None:
        super()._keep(delta)
        self._list(self._shown_by(delta))

    def _list(self, shown: Sequence[Logprob]) -> None:
        items = _encoded(shown)
        self._logprobs += items
        self._hold(sum(map(len, items)))

    def _shown_by(self, delta: Delta) -> list[Logprob]:
        """The tokens that are listed with a delta."""
        if not self._terms.wants_logprobs:
            return []
        match delta:
            case Content(text):
                return self._tokens.show(text)
            case CallBegun(_, _, text) | Arguments(_, text):
                return self._tokens.skip(text)
            case Thought():
                return []

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


def _listed(logprobs: Sequence[Logprob]) -> bytes:
    return encode_json(ChatLogprobs(content=array(_encoded(logprobs))))


def _encoded(logprobs: Sequence[Logprob]) -> list[bytes]:
    return [encode_json(_drawn(entry)) for entry in logprobs]


def _drawn(entry: Logprob) -> DrawnLogprob:
    top = tuple(
        TokenLogprob(token=other.text, logprob=finite(other.logprob), bytes=tuple(other.piece)) for other in entry.top
    )
    token = entry.token
    return DrawnLogprob(token=token.text, logprob=finite(token.logprob), bytes=tuple(token.piece), top_logprobs=top)
