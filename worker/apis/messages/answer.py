"""An answer of `POST /v1/messages` as it grows: deltas become blocks, and each change is an event.

message_start                                                                        any time: ping
└ for each block:  content_block_start  content_block_delta …  content_block_stop
message_delta  message_stop                                                          or else: error
"""

from collections.abc import Iterator
from functools import partial
from typing import Annotated, Any, Literal

import msgspec

from worker.apis.core.answers import Heading
from worker.apis.core.events import ErrorEvent
from worker.apis.core.parts import Event, Opening, Part, PartsChoice
from worker.apis.core.reading import Reading
from worker.apis.core.thinking import SIGNATURE, encoded_thoughts
from worker.apis.messages.errors import failure_body
from worker.formats.read.parse import CallBegun, Content, Thought
from worker.wire.encoding import Count, doc

StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]
PING = b'event: ping\ndata: {"type":"ping"}\n\n'
UNREADABLE = "INVALID_JSON"
"""The member of a call's input that has arguments which are no object, for example because the answer was cut in them.
The name is the one that Anthropic proposes."""


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

_DELTAS = {
    Content: ("text_delta", "text"),
    Thought: ("thinking_delta", "thinking"),
    CallBegun: ("input_json_delta", "partial_json"),
}
"""The type of a block's deltas, and the member that has their text."""


class Block(Part):
    def __init__(self, index: int, opening: Opening, *, shows_thinking: bool) -> None:
        super().__init__(index, opening)
        self._is_shown = shows_thinking or not isinstance(opening, Thought)
        self._kind, self._member = _DELTAS[type(opening)]

    def begun(self) -> Iterator[Event]:
        yield "content_block_start", {"index": self.index, "content_block": self.block()}

    def ended(self) -> Iterator[Event]:
        if isinstance(self.opening, Thought):
            yield self._event({"type": "signature_delta", "signature": self._signature})
        yield "content_block_stop", {"index": self.index}

    def block(self) -> AnswerBlock:
        """The block as it is now; it has a signature once it has ended."""
        match self.opening:
            case CallBegun(_, call_id, name):
                return ToolUseBlock(id=call_id, name=name, input=_object(self.text))
            case Content():
                return TextBlock(text=self.text)
            case Thought():
                signature = "" if self.status == "in_progress" else self._signature
                return ThinkingBlock(thinking=self.text if self._is_shown else "", signature=signature)

    def _delta(self, text: str) -> Iterator[Event]:
        if self._is_shown:
            yield self._event({"type": self._kind, self._member: text})

    def _event(self, delta: dict[str, Any]) -> Event:
        return "content_block_delta", {"index": self.index, "delta": delta}

    @property
    def _signature(self) -> str:
        return SIGNATURE if self._is_shown else encoded_thoughts(self.text)


def _object(arguments: str) -> dict[str, Any]:
    """The object whose JSON this is, or one that has the text."""
    try:
        value = msgspec.json.decode(arguments or "{}")
    except (msgspec.DecodeError, RecursionError):
        return {UNREADABLE: arguments}
    return value if isinstance(value, dict) else {UNREADABLE: arguments}


class MessageAnswer(PartsChoice[Block]):
    def __init__(self, heading: Heading, reading: Reading, *, shows_thinking: bool, is_stream: bool) -> None:
        super().__init__(reading, partial(Block, shows_thinking=shows_thinking), is_stream=is_stream)
        self._heading = heading

    def sign_of_life(self) -> bytes:
        return PING

    def made(self) -> AnswerMessage:
        stop_reason, stop_sequence = self._stop
        return AnswerMessage(
            id=self._heading.id,
            model=self._heading.model,
            content=tuple(part.block() for part in self.parts),
            stop_reason=stop_reason,
            stop_sequence=stop_sequence,
            usage=self._usage,
        )

    @property
    def _stop(self) -> tuple[StopReason | None, str | None]:
        """The reason of the end, and the stop sequence that matched."""
        if self.finished is None:
            return None, None
        if self.finish_reason == "length":
            return "max_tokens", self.finished.stop
        if self.finished.stop is not None:
            return "stop_sequence", self.finished.stop
        return "tool_use" if self._reader.is_called else "end_turn", None

    @property
    def _usage(self) -> MessageUsage:
        return MessageUsage(
            input_tokens=self.n_prompt - self.n_cached,
            cache_read_input_tokens=self.n_cached,
            output_tokens=self.n_drawn,
            output_tokens_details=ThinkingCount(
                thinking_tokens=0 if self.finished is None else self.finished.n_reasoning
            ),
        )

    def _begun(self) -> bytes:
        return self._bytes("message_start", {"message": self.made()})

    def _last(self) -> Iterator[Event]:
        stop_reason, stop_sequence = self._stop
        delta = {"stop_reason": stop_reason, "stop_sequence": stop_sequence}
        yield "message_delta", {"delta": delta, "usage": self._usage}
        yield "message_stop", {}

    def failed_body(self, event: ErrorEvent) -> bytes:
        return failure_body(event)

    def _failed(self, event: ErrorEvent) -> bytes:
        return b"event: error\n" + super()._failed(event)
