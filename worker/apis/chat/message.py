"""The answers of `POST /v1/chat/completions`: a job's events become a message, or the chunks of one."""

import codecs
from collections import deque
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec.structs import replace

from worker.apis.core.answers import (
    Allowance,
    Chunks,
    Heading,
    ReadChoice,
    StreamOptions,
    Usage,
    array,
    finite,
    json_array,
)
from worker.apis.core.events import Piece
from worker.apis.core.reading import Reading
from worker.formats.read.parse import Arguments, CallBegun, Content, Delta, Message, Thought, message_of
from worker.wire.encoding import Count, doc, encode_json
from worker.wire.jobs import Logprob, TopToken

MessageReason = Literal["stop", "length", "tool_calls"]
REASONING_FIELDS = ("reasoning_content", "reasoning")
"""The names of the reasoning that clients know, DeepSeek's and OpenRouter's."""


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


class ChatAnswer(ReadChoice):
    """A message. A stream of it is the role, the text and the calls, and the reason why it ended."""

    kind = "chat.completion.chunk"
    shape = ChatCompletion

    def __init__(
        self,
        index: int,
        allowance: Allowance,
        heading: Heading,
        options: StreamOptions | None,
        reading: Reading,
        *,
        wants_logprobs: bool = False,
        reasoning_fields: Sequence[str] = REASONING_FIELDS[:1],
    ) -> None:
        """`options`: None if the message is sent whole."""
        super().__init__(index, allowance, reading, is_stream=options is not None)
        self._chunks = Chunks(heading, self, options or StreamOptions())
        self._wants_logprobs = wants_logprobs
        self._reasoning_fields = reasoning_fields
        self._tokens = ListedTokens()
        self._logprobs: list[bytes] = []
        """The listed tokens of a whole answer."""

    def rewind(self) -> None:
        super().rewind()
        self._tokens = ListedTokens()
        self._logprobs.clear()

    def made(self) -> ChatChoice:
        message = message_of(self._deltas, is_unfinished=self._reader.is_unfinished)
        return ChatChoice(
            index=self.index,
            message=message_shown(message, self._reasoning_fields),
            logprobs=ChatLogprobs(content=array(self._logprobs)) if self._wants_logprobs else None,
            finish_reason=self._reason,
        )

    @property
    def _reason(self) -> MessageReason:
        assert self.finish_reason is not None
        return "tool_calls" if self._reader.is_called and self.finish_reason == "stop" else self.finish_reason

    def _begun(self) -> bytes:
        return self._chunks.chunk(b'"delta":{"role":"assistant","content":"","refusal":null}')

    def _grown(self, piece: Piece) -> bytes:
        if self._wants_logprobs and not piece.is_reasoning:
            self._tokens.add(piece.logprobs)
        return super()._grown(piece)

    def _ended(self, logprobs: Sequence[Logprob]) -> bytes:
        if self._wants_logprobs:
            self._tokens.add(logprobs)
        last = self._rest()
        rest = self._tokens.finish(is_cut_off=self.finish_reason == "length")
        if self.is_collecting:
            self._list(rest)
            return b""
        entries = _listed(rest) if rest else b"null"
        return last + self._chunks.chunk(b'"delta":{}', entries, encode_json(self._reason))

    def _event(self, delta: Delta) -> bytes:
        shown = self._shown_by(delta)
        is_listed = shown or (self._wants_logprobs and isinstance(delta, Content))
        return self._chunks.chunk(
            b'"delta":' + delta_json(delta, self._reasoning_fields), _listed(shown) if is_listed else b"null"
        )

    def _keep(self, delta: Delta) -> None:
        super()._keep(delta)
        self._list(self._shown_by(delta))

    def _list(self, shown: Sequence[Logprob]) -> None:
        items = _encoded(shown)
        self._logprobs += items
        self._hold(sum(map(len, items)))

    def _shown_by(self, delta: Delta) -> list[Logprob]:
        return self._tokens.shown_by(delta) if self._wants_logprobs else []


def delta_json(delta: Delta, reasoning_fields: Sequence[str]) -> bytes:
    """The members of a chunk's delta. A call's id, type and name come once, then parts of its arguments."""
    match delta:
        case Content(text):
            return b'{"content":%b}' % encode_json(text)
        case Thought(text):
            return encode_json(dict.fromkeys(reasoning_fields, text))
        case CallBegun(index, call_id, name):
            head = b'{"index":%d,"id":%b,"type":"function"' % (index, encode_json(call_id))
            return b'{"tool_calls":[%b,"function":{"name":%b,"arguments":""}}]}' % (head, encode_json(name))
        case Arguments(index, text):
            return b'{"tool_calls":[{"index":%d,"function":{"arguments":%b}}]}' % (index, encode_json(text))


def message_shown(message: Message, reasoning_fields: Sequence[str]) -> ChatMessage:
    """The message as clients know it."""
    calls = [
        MessageCall(id=call.id, function=MessageFunction(name=call.name, arguments=call.arguments))
        for call in message.calls
    ]
    thoughts: dict[str, Any] = dict.fromkeys(reasoning_fields, message.reasoning or msgspec.UNSET)
    content = None if calls and not message.content else message.content
    return ChatMessage(content=content, tool_calls=calls or msgspec.UNSET, **thoughts)


def _listed(logprobs: Sequence[Logprob]) -> bytes:
    return encode_json(ChatLogprobs(content=array(_encoded(logprobs))))


def _encoded(logprobs: Sequence[Logprob]) -> list[bytes]:
    return [
        encode_json(DrawnLogprob(**_members(entry.token), top_logprobs=tuple(map(_ranked, entry.top))))
        for entry in logprobs
    ]


def _ranked(token: TopToken) -> TokenLogprob:
    return TokenLogprob(**_members(token))


def _members(token: TopToken) -> dict[str, Any]:
    return {"token": token.text, "logprob": finite(token.logprob), "bytes": tuple(token.piece)}


# ── the tokens that are listed ───────────────────────────────────────────────────────────────────

_SURROGATE_HALF_FROM, _SURROGATE_HALF_BELOW = b"\xed\xa0", b"\xee"
"""CPython's incremental decoder waits for a third byte after ED A0..BF, although no code point begins with these bytes
(RFC 3629)."""


class ListedTokens:
    """The tokens of one message. Law: the bytes of all returned tokens are the bytes of the shown text. If the answer
    was cut off, the first bytes of a character may follow.

    Content is shown and a call is skipped, each in the order of the answer. Text between them (markers, and white space
    before a call) is skipped, too. Text that no token has, such as an unknown tool's call in JSON, lists nothing.

    [ shown or skipped )[ text that is not read yet, or incomplete )
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._n_begun = 0
        """The number of bytes of the character that is not complete."""
        self._waiting: deque[Logprob] = deque()
        """The tokens whose text is not read to its end."""
        self._text = ""
        """The characters that are not read yet."""
        self._widths: list[int] = []
        """Their numbers of bytes."""
        self._flags = bytearray()
        """1 for each shown byte and 0 for each skipped one, from the first waiting token on."""
        self._is_after_call = False

    def add(self, drawn: Sequence[Logprob]) -> None:
        """Add sampled tokens. Tokens without a text are never listed."""
        for entry in drawn:
            if entry.token.text:
                self._waiting.append(entry)
                for value in entry.token.piece:
                    self._decode(value)

    def shown_by(self, delta: Delta) -> list[Logprob]:
        """Read the text of a delta. Returns the tokens whose text is now read to its end and was shown, at least in its
        beginning: only content is shown."""
        if isinstance(delta, Thought):
            return []
        text, is_shown = delta.name if isinstance(delta, CallBegun) else delta.text, isinstance(delta, Content)
        # The end of a call is not known here, and its text may have the same characters.
        at = self._text.rfind(text) if is_shown and self._is_after_call else self._text.find(text)
        self._is_after_call = not is_shown
        return [] if at < 0 else self._pass(at, is_shown=False) + self._pass(len(text), is_shown=is_shown)

    def finish(self, *, is_cut_off: bool) -> list[Logprob]:
        """The last tokens. If only the beginning of a token is shown, the returned token is cut to it. Hidden tokens
        are listed only if the answer was cut off in the middle of a character.
        """
        rest = [*self._waiting]
        self._waiting.clear()
        if is_cut_off and not self._text:
            return rest
        return [_part(entry, self._flags) for entry in rest[:1] if any(self._flags)]

    def _pass(self, n_chars: int, *, is_shown: bool) -> list[Logprob]:
        """Read characters. Returns the tokens whose text is now read to its end, without what was skipped."""
        self._text = self._text[n_chars:]
        self._flags += bytes([is_shown]) * sum(self._widths[:n_chars])
        del self._widths[:n_chars]
        found = []
        while self._waiting and (n_bytes := len(self._waiting[0].token.piece)) <= len(self._flags):
            entry, flags = self._waiting.popleft(), self._flags[:n_bytes]
            del self._flags[:n_bytes]
            if any(flags):
                found.append(entry if all(flags) else _part(entry, flags))
        return found

    def _decode(self, value: int) -> None:
        """Add the characters that the next byte completes."""
        text = self._decoder.decode(bytes([value]))
        pending, _ = self._decoder.getstate()
        if _SURROGATE_HALF_FROM <= pending < _SURROGATE_HALF_BELOW:
            text, pending = text + self._decoder.decode(b"", final=True), b""
        n_bytes = self._n_begun + 1 - len(pending)
        if text:
            # If several characters end here, only the first may have several bytes: it began earlier and is invalid.
            self._widths += [n_bytes - len(text) + 1, *[1] * (len(text) - 1)]
        self._n_begun = len(pending)
        self._text += text


def _part(entry: Logprob, flags: bytearray) -> Logprob:
    """The token's entry, cut to the bytes that are shown."""
    piece = bytes(byte for byte, is_shown in zip(entry.token.piece, flags, strict=False) if is_shown)
    text = piece.decode(errors="replace")
    raw = None if text.encode() == piece else piece
    return replace(entry, token=replace(entry.token, text=text, raw=raw))
