"""An answer of `POST /v1/responses` as it grows: deltas become items, and each change is an event.

Owns: the events, their order, their numbers, and the item that is open. Pure except for the ids that it draws and the
time of the answer's end. `token` is called for every token.

    response.created  response.in_progress                                         any time: response.in_progress
    └ for each item:  output_item.added  [content_part.added]  deltas  … done  [content_part.done]  output_item.done
    response.completed | response.incomplete | response.failed
"""

import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import UNSET

from worker.chat.parse import Arguments, CallBegun, Content, Delta, Thought
from worker.openai.answers import JSON_TYPE, usage_of
from worker.openai.errors import failure_detail
from worker.openai.event_choice import EventChoice
from worker.openai.reading import Reading
from worker.openai.responses.resource import (
    CustomToolCall,
    ErrorCode,
    FunctionCall,
    Incomplete,
    Item,
    ItemStatus,
    OutputMessage,
    OutputText,
    ReasoningItem,
    ReasoningText,
    ResponseFailure,
    ResponseResource,
    SummaryText,
    usage_in_names,
)
from worker.openai.text_argument import TextArgument
from worker.openai.thinking import encoded_thoughts
from worker.openai.tools import Tool
from worker.protocol.events import SSE_TYPE, ErrorEvent, StreamCode
from worker.wire.encoding import encode_json
from worker.wire.jobs import Logprob

Event = tuple[str, dict[str, Any]]
"""The type and the members of an event, without its number."""

_CODES: dict[StreamCode, ErrorCode] = {"INVALID_REQUEST": "invalid_prompt"}
"""The codes of failures; all others are server_error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """The form in which a request wants the reasoning."""

    in_summary: bool = False
    """True if the reasoning stands in the place of its summary."""
    is_encoded: bool = False
    """True if the reasoning is sent in encrypted_content, too."""


# ── items ────────────────────────────────────────────────────────────────────────────────────────


class _Growing:
    """An item that is open. Subclasses have its events."""

    def __init__(self, index: int, prefix: str) -> None:
        self.index = index
        self.id = f"{prefix}_{secrets.token_hex(16)}"
        self.texts: list[str] = []

    @property
    def text(self) -> str:
        return "".join(self.texts)

    def begun(self) -> Iterator[Event]:
        yield "response.output_item.added", {"output_index": self.index, "item": self.item("in_progress")}

    def grown(self, text: str) -> Iterator[Event]:
        if text:
            self.texts.append(text)
            yield self._delta(text)

    def ended(self, status: ItemStatus) -> Iterator[Event]:
        yield from self._done()
        yield "response.output_item.done", {"output_index": self.index, "item": self.item(status)}

    def item(self, status: ItemStatus) -> Item:
        raise NotImplementedError

    def _delta(self, text: str) -> Event:
        raise NotImplementedError

    def _done(self) -> Iterator[Event]:
        raise NotImplementedError

    def _at(self, **members: Any) -> dict[str, Any]:
        """The members of an event about this item."""
        return {"item_id": self.id, "output_index": self.index, **members}


class _Message(_Growing):
    def __init__(self, index: int) -> None:
        super().__init__(index, "msg")
        self._has_part = False

    def begun(self) -> Iterator[Event]:
        yield from super().begun()
        self._has_part = True
        yield "response.content_part.added", self._at(content_index=0, part=OutputText(text=""))

    def item(self, status: ItemStatus) -> OutputMessage:
        content = (OutputText(text=self.text),) if self._has_part else ()
        return OutputMessage(id=self.id, status=status, content=content)

    def _delta(self, text: str) -> Event:
        return "response.output_text.delta", self._at(content_index=0, delta=text, logprobs=())

    def _done(self) -> Iterator[Event]:
        yield "response.output_text.done", self._at(content_index=0, text=self.text, logprobs=())
        yield "response.content_part.done", self._at(content_index=0, part=OutputText(text=self.text))


class _Reasoning(_Growing):
    def __init__(self, index: int, shown: Shown) -> None:
        super().__init__(index, "rs")
        self._shown = shown
        self._has_part = False

    def begun(self) -> Iterator[Event]:
        yield from super().begun()
        self._has_part = True
        if self._shown.in_summary:
            yield "response.reasoning_summary_part.added", self._at(summary_index=0, part=SummaryText(text=""))
        else:
            yield "response.content_part.added", self._at(content_index=0, part=ReasoningText(text=""))

    def item(self, status: ItemStatus) -> ReasoningItem:
        is_summary, text = self._shown.in_summary, self.text
        is_encoded = self._shown.is_encoded and status != "in_progress"
        return ReasoningItem(
            id=self.id,
            status=status,
            summary=(SummaryText(text=text),) if is_summary and self._has_part else (),
            content=(ReasoningText(text=text),) if not is_summary and self._has_part else UNSET,
            encrypted_content=encoded_thoughts(text) if is_encoded else UNSET,
        )

    def _delta(self, text: str) -> Event:
        if self._shown.in_summary:
            return "response.reasoning_summary_text.delta", self._at(summary_index=0, delta=text)
        return "response.reasoning_text.delta", self._at(content_index=0, delta=text)

    def _done(self) -> Iterator[Event]:
        text = self.text
        if self._shown.in_summary:
            yield "response.reasoning_summary_text.done", self._at(summary_index=0, text=text)
            yield "response.reasoning_summary_part.done", self._at(summary_index=0, part=SummaryText(text=text))
        else:
            yield "response.reasoning_text.done", self._at(content_index=0, text=text)
            yield "response.content_part.done", self._at(content_index=0, part=ReasoningText(text=text))


class _FunctionCall(_Growing):
    def __init__(self, index: int, call: CallBegun, tool: Tool | None) -> None:
        super().__init__(index, "fc")
        self._call = call
        self._name = call.name if tool is None else tool.given_name
        self._namespace = UNSET if tool is None or tool.namespace is None else tool.namespace

    def item(self, status: ItemStatus) -> FunctionCall:
        return FunctionCall(
            id=self.id,
            call_id=self._call.id,
            name=self._name,
            arguments=self.text,
            status=status,
            namespace=self._namespace,
        )

    def _delta(self, text: str) -> Event:
        return "response.function_call_arguments.delta", self._at(delta=text)

    def _done(self) -> Iterator[Event]:
        yield "response.function_call_arguments.done", self._at(arguments=self.text)


class _CustomCall(_Growing):
    def __init__(self, index: int, call: CallBegun, tool: Tool) -> None:
        super().__init__(index, "ctc")
        self._call = call
        self._tool = tool
        self._argument = TextArgument()

    def item(self, status: ItemStatus) -> CustomToolCall:  # noqa: ARG002 - these items have no status
        return CustomToolCall(
            id=self.id,
            call_id=self._call.id,
            name=self._tool.given_name,
            input=self.text,
            namespace=UNSET if self._tool.namespace is None else self._tool.namespace,
        )

    def grown(self, text: str) -> Iterator[Event]:
        yield from super().grown(self._argument.push(text))

    def ended(self, status: ItemStatus) -> Iterator[Event]:
        yield from super().grown(self._argument.finish())
        yield from super().ended(status)

    def _delta(self, text: str) -> Event:
        return "response.custom_tool_call_input.delta", self._at(delta=text)

    def _done(self) -> Iterator[Event]:
        yield "response.custom_tool_call_input.done", self._at(input=self.text)


class Output:
    """The items of an answer, one after the other; at most one is open."""

    def __init__(self, reading: Reading, shown: Shown) -> None:
        self._use = reading.use
        self._shown = shown
        self._items: list[Item] = []
        self._open: _Growing | None = None
        self._blank = ""
        """The white space at the beginning of a message that has no other text yet."""

    def add(self, delta: Delta) -> Iterator[Event]:
        """Add a delta; yield its events."""
        match delta:
            case Thought(text):
                yield from self._text(text, _Reasoning, lambda: _Reasoning(self._n_items, self._shown))
            case Content(text):
                text = self._blank + text
                if not isinstance(self._open, _Message) and not text.strip():
                    self._blank = text
                    return
                yield from self._text(text, _Message, lambda: _Message(self._n_items))
            case CallBegun():
                yield from self._close("completed")
                yield from self._begin(self._call(delta))
            case Arguments(_, text):
                assert self._open is not None  # the call has begun
                yield from self._open.grown(text)

    def end(self, status: ItemStatus, *, drops_open: bool = False) -> Iterator[Event]:
        """Close the last item, or drop it; yield its events. An answer without any item has a message without text."""
        self._open = None if drops_open else self._open
        if not self._items and self._open is None:
            yield from self._begin(_Message(0))
        yield from self._close(status)

    def items(self) -> tuple[Item, ...]:
        """The items so far. One that is open is incomplete."""
        last = [] if self._open is None else [self._open.item("incomplete")]
        return (*self._items, *last)

    @property
    def _n_items(self) -> int:
        return len(self._items) + (self._open is not None)

    def _text(self, text: str, kind: type[_Growing], new: Callable[[], _Growing]) -> Iterator[Event]:
        if not isinstance(self._open, kind):
            yield from self._close("completed")
            yield from self._begin(new())
        self._blank = ""
        assert self._open is not None
        yield from self._open.grown(text)

    def _call(self, call: CallBegun) -> _Growing:
        tool = self._use.named(call.name)
        if tool is not None and tool.kind == "custom":
            return _CustomCall(self._n_items, call, tool)
        return _FunctionCall(self._n_items, call, tool)

    def _begin(self, item: _Growing) -> Iterator[Event]:
        self._open = item
        yield from item.begun()

    def _close(self, status: ItemStatus) -> Iterator[Event]:
        self._blank = ""
        if self._open is not None:
            yield from self._open.ended(status)
            self._items.append(self._open.item(status))
            self._open = None


# ── answers ──────────────────────────────────────────────────────────────────────────────────────


class ResponseChoice(EventChoice):
    """The one answer of a request. Subclasses decide whether its events leave or are held."""

    def __init__(self, resource: ResponseResource, reading: Reading, shown: Shown) -> None:
        super().__init__(reading)
        self._resource = resource
        self._reading = reading
        self._shown = shown
        self._output = Output(reading, shown)

    def rewind(self) -> None:
        super().rewind()
        self._output = Output(self._reading, self._shown)

    def made(self) -> ResponseResource:
        """The resource as it is now."""
        usage = None
        if self.finish_reason is not None:
            usage = usage_in_names(usage_of([self]))
        whole = msgspec.structs.replace(self._resource, output=self._output.items(), usage=usage)
        if self.failed is not None:
            error = ResponseFailure(
                code=_CODES.get(self.failed.code, "server_error"), message=failure_detail(self.failed).message
            )
            return msgspec.structs.replace(whole, status="failed", error=error)
        if self.finish_reason is None:
            return whole
        if self.finish_reason == "length":
            return msgspec.structs.replace(whole, status="incomplete", incomplete_details=Incomplete())
        return msgspec.structs.replace(whole, status="completed", completed_at=int(time.time()))

    def _ended(self, logprobs: Sequence[Logprob]) -> bytes:  # noqa: ARG002 - no request has them here
        last = self._grown(self._answer.finish(self.ended_by))
        is_torn = self._answer.is_unfinished
        status: ItemStatus = "incomplete" if is_torn or self.finish_reason == "length" else "completed"
        events = [*self._output.end(status, drops_open=is_torn and self.is_collecting)]
        whole = self.made()
        return last + self._sent([*events, (f"response.{whole.status}", {"response": whole})])

    def _grown(self, deltas: Sequence[Delta]) -> bytes:
        return self._sent([event for delta in deltas for event in self._output.add(delta)])

    def _sent(self, events: Sequence[Event]) -> bytes:  # noqa: ARG002 - StreamedResponse sends them
        return b""


class CollectedResponse(ResponseChoice):
    """An answer that is sent when it is complete."""

    media_type = JSON_TYPE


class StreamedResponse(ResponseChoice):
    """An answer whose events are sent as they come."""

    media_type = SSE_TYPE
    is_collecting = False

    def __init__(self, resource: ResponseResource, reading: Reading, shown: Shown) -> None:
        super().__init__(resource, reading, shown)
        self._n_events = 0

    def sign_of_life(self) -> bytes:
        """The answer as it is now. Codex gives up after 300 s without an event; it does not count comments."""
        return self._opening() + self._sent([("response.in_progress", {"response": self._resource})])

    def error(self, event: ErrorEvent) -> bytes:
        super().error(event)
        return self._opening() + self._sent([("response.failed", {"response": self.made()})])

    def _begun(self) -> bytes:
        return self.sign_of_life()

    def _opening(self) -> bytes:
        """The first event, if it was not sent yet."""
        return self._sent([("response.created", {"response": self._resource})]) if not self._n_events else b""

    def _sent(self, events: Sequence[Event]) -> bytes:
        return b"".join(map(self._bytes, events))

    def _bytes(self, event: Event) -> bytes:
        kind, members = event
        data = {"type": kind, "sequence_number": self._n_events, **members}
        self._n_events += 1
        return b"event: %b\ndata: %b\n\n" % (kind.encode(), encode_json(data))
