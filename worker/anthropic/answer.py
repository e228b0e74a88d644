"""An answer of `POST /v1/messages` as it grows: deltas become blocks, and each change is an event.

Owns: the message and its blocks, the events and their order, the reasons why an answer ends. Pure. `token` is called
for every token.

    message_start                                                                        any time: ping
    └ for each block:  content_block_start  content_block_delta …  content_block_stop
    message_delta  message_stop                                                          or else: error
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any, Literal

import msgspec

from worker.anthropic.blocks import SIGNATURE
from worker.anthropic.errors import error_body, failure_detail
from worker.chat.parse import Arguments, CallBegun, Content, Delta, Thought
from worker.openai.answers import JSON_TYPE, Heading
from worker.openai.event_choice import EventChoice
from worker.openai.reading import Reading
from worker.openai.thinking import encoded_thoughts
from worker.protocol.events import SSE_TYPE, EndEvent, ErrorEvent
from worker.wire.encoding import Count, doc, encode_json
from worker.wire.jobs import Finished, Logprob

StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]
PING = b'event: ping\ndata: {"type":"ping"}\n\n'
UNREADABLE = "INVALID_JSON"
"""The member of a call's input that has arguments which are no object, for example because the answer was cut in them.
The name is the one that Anthropic proposes."""

Event = dict[str, Any]


class TextBlock(msgspec.Struct, frozen=True, kw_only=True, tag="text", tag_field="type"):
    """Text of the answer."""

    text: str


class ThinkingBlock(msgspec.Struct, frozen=True, kw_only=True, tag="thinking", tag_field="type"):
    """The model's reasoning."""

    thinking: str
    signature: Annotated[str, doc("Send it back with the block.")]


class ToolUseBlock(msgspec.Struct, frozen=True, kw_only=True, tag="tool_use", tag_field="type"):
    """A call of a tool."""

    id: str
    name: str
    input: dict[str, Any]


AnswerBlock = TextBlock | ThinkingBlock | ToolUseBlock


class ThinkingCount(msgspec.Struct, frozen=True, kw_only=True):
    thinking_tokens: Count


class MessageUsage(msgspec.Struct, frozen=True, kw_only=True):
    """The cost of the answer in tokens. The three counts of input tokens together are the prompt."""

    input_tokens: Annotated[Count, doc("Tokens of the prompt that were not cached.")]
    cache_creation_input_tokens: Count = 0
    cache_read_input_tokens: Annotated[Count, doc("Tokens of the prompt whose KV cells were cached.")]
    output_tokens: Count
    output_tokens_details: ThinkingCount


class AnswerMessage(msgspec.Struct, frozen=True, kw_only=True):
    """The answer."""

    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    model: str
    content: tuple[AnswerBlock, ...] = ()
    stop_reason: StopReason | None = None
    stop_sequence: str | None = None
    usage: MessageUsage


class TokenCount(msgspec.Struct, frozen=True, kw_only=True):
    """The length of the prompt that a request becomes."""

    input_tokens: Count


# ── blocks ───────────────────────────────────────────────────────────────────────────────────────


class _Growing:
    """A block that is open. Subclasses have its events."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    @property
    def text(self) -> str:
        return "".join(self.texts)

    def grown(self, text: str) -> Iterator[Event]:
        """Yield the deltas of more text."""
        self.texts.append(text)
        if text:
            yield self.delta(text)

    def ended(self) -> Iterator[Event]:
        """Yield the deltas at the block's end."""
        yield from ()

    def empty(self) -> AnswerBlock:
        raise NotImplementedError

    def whole(self) -> AnswerBlock:
        raise NotImplementedError

    def delta(self, text: str) -> Event:
        raise NotImplementedError


class _Text(_Growing):
    def empty(self) -> AnswerBlock:
        return TextBlock(text="")

    def whole(self) -> AnswerBlock:
        return TextBlock(text=self.text)

    def delta(self, text: str) -> Event:
        return {"type": "text_delta", "text": text}


class _Thinking(_Growing):
    def __init__(self, *, is_shown: bool) -> None:
        super().__init__()
        self._is_shown = is_shown

    def grown(self, text: str) -> Iterator[Event]:
        if self._is_shown:
            yield from super().grown(text)
        else:
            self.texts.append(text)

    def ended(self) -> Iterator[Event]:
        yield {"type": "signature_delta", "signature": self._signature}

    def empty(self) -> AnswerBlock:
        return ThinkingBlock(thinking="", signature="")

    def whole(self) -> AnswerBlock:
        return ThinkingBlock(thinking=self.text if self._is_shown else "", signature=self._signature)

    def delta(self, text: str) -> Event:
        return {"type": "thinking_delta", "thinking": text}

    @property
    def _signature(self) -> str:
        return SIGNATURE if self._is_shown else encoded_thoughts(self.text)


class _ToolUse(_Growing):
    def __init__(self, call: CallBegun) -> None:
        super().__init__()
        self._call = call

    def empty(self) -> AnswerBlock:
        return ToolUseBlock(id=self._call.id, name=self._call.name, input={})

    def whole(self) -> AnswerBlock:
        return ToolUseBlock(id=self._call.id, name=self._call.name, input=_object(self.text))

    def delta(self, text: str) -> Event:
        return {"type": "input_json_delta", "partial_json": text}


def _object(arguments: str) -> dict[str, Any]:
    """The object whose JSON this is, or one that has the text."""
    try:
        value = msgspec.json.decode(arguments or "{}")
    except (msgspec.DecodeError, RecursionError):
        return {UNREADABLE: arguments}
    return value if isinstance(value, dict) else {UNREADABLE: arguments}


class Blocks:
    """The blocks of an answer, one after the other; at most one is open."""

    def __init__(self, *, shows_thinking: bool) -> None:
        self._shows_thinking = shows_thinking
        self._blocks: list[AnswerBlock] = []
        self._open: _Growing | None = None
        self._blank = ""
        """The white space at the beginning of a text that has nothing else yet. Anthropic's clients send blocks back,
        and no block may be blank."""

    def add(self, delta: Delta) -> Iterator[Event]:
        """Add a delta; yield its events."""
        match delta:
            case Thought(text):
                yield from self._text(text, _Thinking, lambda: _Thinking(is_shown=self._shows_thinking))
            case Content(text):
                text = self._blank + text
                if not isinstance(self._open, _Text) and not text.strip():
                    self._blank = text
                    return
                yield from self._text(text, _Text, _Text)
            case CallBegun():
                yield from self.end()
                yield from self._begin(_ToolUse(delta))
            case Arguments(_, text):
                yield from self._grown(text)

    def end(self, *, drops_open: bool = False) -> Iterator[Event]:
        """Close the open block, or drop it; yield its events."""
        self._blank = ""
        self._open = None if drops_open else self._open
        if self._open is None:
            return
        index = len(self._blocks)
        for delta in self._open.ended():
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
        self._blocks.append(self._open.whole())
        self._open = None

    def whole(self) -> tuple[AnswerBlock, ...]:
        """The blocks that are closed."""
        return tuple(self._blocks)

    def _text(self, text: str, kind: type[_Growing], new: Callable[[], _Growing]) -> Iterator[Event]:
        if not isinstance(self._open, kind):
            yield from self.end()
            yield from self._begin(new())
        self._blank = ""
        yield from self._grown(text)

    def _begin(self, block: _Growing) -> Iterator[Event]:
        self._open = block
        yield {"type": "content_block_start", "index": len(self._blocks), "content_block": block.empty()}

    def _grown(self, text: str) -> Iterator[Event]:
        assert self._open is not None  # text comes for an open block only
        index = len(self._blocks)
        for delta in self._open.grown(text):
            yield {"type": "content_block_delta", "index": index, "delta": delta}


# ── answers ──────────────────────────────────────────────────────────────────────────────────────


class MessageChoice(EventChoice):
    """The one answer of a request. Subclasses decide whether its events leave or are held."""

    def __init__(self, heading: Heading, reading: Reading, *, shows_thinking: bool) -> None:
        super().__init__(reading)
        self._heading = heading
        self._shows_thinking = shows_thinking
        self._blocks = Blocks(shows_thinking=shows_thinking)
        self._stop: str | None = None

    def end(self, event: EndEvent, finished: Finished, logprobs: Sequence[Logprob] = ()) -> bytes:
        self._stop = finished.stop
        return super().end(event, finished, logprobs)

    def rewind(self) -> None:
        super().rewind()
        self._blocks = Blocks(shows_thinking=self._shows_thinking)

    def made(self) -> AnswerMessage:
        """The message as it is now, with the blocks that are closed."""
        return AnswerMessage(
            id=self._heading.id,
            model=self._heading.model,
            content=self._blocks.whole(),
            stop_reason=self._stop_reason,
            stop_sequence=self._stop,
            usage=self._usage,
        )

    @property
    def _stop_reason(self) -> StopReason | None:
        if self.finish_reason is None:
            return None
        if self.finish_reason == "length":
            return "max_tokens"
        if self._stop is not None:
            return "stop_sequence"
        return "tool_use" if self._answer.is_called else "end_turn"

    @property
    def _usage(self) -> MessageUsage:
        return MessageUsage(
            input_tokens=self.n_prompt - self.n_cached,
            cache_read_input_tokens=self.n_cached,
            output_tokens=self.n_drawn,
            output_tokens_details=ThinkingCount(thinking_tokens=self.n_reasoning),
        )

    def _ended(self, logprobs: Sequence[Logprob]) -> bytes:  # noqa: ARG002 - no request has them here
        last = self._grown(self._answer.finish(self.ended_by))
        events = [*self._blocks.end(drops_open=self.is_collecting and self._answer.is_unfinished)]
        delta = {"stop_reason": self._stop_reason, "stop_sequence": self._stop}
        events += [{"type": "message_delta", "delta": delta, "usage": self._usage}, {"type": "message_stop"}]
        return last + self._sent(events)

    def _grown(self, deltas: Sequence[Delta]) -> bytes:
        return self._sent([event for delta in deltas for event in self._blocks.add(delta)])

    def _sent(self, events: Sequence[Event]) -> bytes:  # noqa: ARG002 - StreamedMessage sends them
        return b""


class CollectedMessage(MessageChoice):
    """A message that is sent when it is complete."""

    media_type = JSON_TYPE


class StreamedMessage(MessageChoice):
    """A message whose events are sent as they come."""

    media_type = SSE_TYPE
    is_collecting = False

    def sign_of_life(self) -> bytes:
        return PING

    def error(self, event: ErrorEvent) -> bytes:
        super().error(event)
        return b"event: error\ndata: " + error_body(failure_detail(event)) + b"\n\n"

    def _begun(self) -> bytes:
        return self._sent([{"type": "message_start", "message": self.made()}])

    def _sent(self, events: Sequence[Event]) -> bytes:
        return b"".join(b"event: %b\ndata: %b\n\n" % (event["type"].encode(), encode_json(event)) for event in events)
