"""An answer of `POST /v1/responses` as it grows: deltas become items, and each change is an event.

response.created  response.in_progress                                         any time: response.in_progress
└ for each item:  output_item.added  [content_part.added]  deltas  … done  [content_part.done]  output_item.done
response.completed | response.incomplete | response.failed
"""

import json
import re
import secrets
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import msgspec
from msgspec import UNSET

from worker.apis.core.events import ErrorEvent, StreamCode
from worker.apis.core.parts import Event, Opening, Part, PartsChoice
from worker.apis.core.reading import Reading
from worker.apis.core.thinking import encoded_thoughts
from worker.apis.core.tools import TEXT_ARGUMENT, ToolUse
from worker.apis.responses.resource import (
    CustomToolCall,
    ErrorCode,
    FunctionCall,
    Incomplete,
    InputTokensDetails,
    Item,
    OutputMessage,
    OutputText,
    OutputTokensDetails,
    ReasoningItem,
    ReasoningText,
    ResponseFailure,
    ResponseResource,
    ResponseUsage,
    SummaryText,
)
from worker.formats.read.parse import CallBegun, Content, Thought

_CODES: dict[StreamCode, ErrorCode] = {"INVALID_REQUEST": "invalid_prompt"}
"""The codes of failures; all others are server_error."""


# ── items ────────────────────────────────────────────────────────────────────────────────────────


class _Form(NamedTuple):
    """The names in the events of a kind of item, some of which have one part around their text."""

    id_prefix: str
    text: str
    """The events of the text have names that begin with this."""
    member: str
    """The last of these has the whole text in this member."""
    part: str = ""
    """The events of the part have names that begin with this; empty if there is no part."""
    place: str = ""
    """The member that all events of the part and its text have."""
    new_part: Callable[..., Any] = str


_MESSAGE = _Form("msg", "output_text", "text", "content_part", "content_index", OutputText)
_REASONING = _Form("rs", "reasoning_text", "text", "content_part", "content_index", ReasoningText)
_SUMMARY = _Form("rs", "reasoning_summary_text", "text", "reasoning_summary_part", "summary_index", SummaryText)
_CALL = _Form("fc", "function_call_arguments", "arguments")
_CUSTOM_CALL = _Form("ctc", "custom_tool_call_input", "input")


class ItemPart(Part):
    def __init__(
        self, index: int, opening: Opening, use: ToolUse, *, in_summary: bool = False, is_encoded: bool = False
    ) -> None:
        """`in_summary`: reasoning stands in the place of its summary. `is_encoded`: it is sent in encrypted_content,
        too."""
        super().__init__(index, opening)
        self._in_summary = in_summary
        self._is_encoded = is_encoded
        self._tool = use.named(opening.name) if isinstance(opening, CallBegun) else None
        self._argument = TextArgument() if self._tool is not None and self._tool.kind == "custom" else None
        match opening:
            case Content():
                self._form = _MESSAGE
            case Thought():
                self._form = _SUMMARY if in_summary else _REASONING
            case CallBegun():
                self._form = _CALL if self._argument is None else _CUSTOM_CALL
        self.id = f"{self._form.id_prefix}_{secrets.token_hex(16)}"
        self._at = {"item_id": self.id, "output_index": index} | ({self._form.place: 0} if self._form.part else {})
        self._further = {"logprobs": ()} if self._form is _MESSAGE else {}

    def begun(self) -> Iterator[Event]:
        yield "response.output_item.added", {"output_index": self.index, "item": self.item()}
        if self._form.part:
            yield f"response.{self._form.part}.added", {**self._at, "part": self._form.new_part(text="")}

    def grown(self, text: str) -> Iterator[Event]:
        yield from super().grown(text if self._argument is None else self._argument.push(text))

    def ended(self) -> Iterator[Event]:
        if self._argument is not None:
            yield from super().grown(self._argument.finish())
        form, text = self._form, self.text
        yield f"response.{form.text}.done", {**self._at, form.member: text, **self._further}
        if form.part:
            yield f"response.{form.part}.done", {**self._at, "part": form.new_part(text=text)}
        yield "response.output_item.done", {"output_index": self.index, "item": self.item()}

    def item(self) -> Item:
        if isinstance(self.opening, CallBegun):
            return self._call(self.opening)
        is_new = self.status == "in_progress"
        parts = () if is_new else (self._form.new_part(text=self.text),)
        match self.opening:
            case Content():
                return OutputMessage(id=self.id, status=self.status, content=parts)
            case Thought():
                return ReasoningItem(
                    id=self.id,
                    status=self.status,
                    summary=parts if self._in_summary else (),
                    content=UNSET if self._in_summary or is_new else parts,
                    encrypted_content=encoded_thoughts(self.text) if self._is_encoded and not is_new else UNSET,
                )

    def _call(self, call: CallBegun) -> FunctionCall | CustomToolCall:
        tool = self._tool
        name = call.name if tool is None else tool.given_name
        namespace = UNSET if tool is None or tool.namespace is None else tool.namespace
        if self._argument is not None:
            return CustomToolCall(id=self.id, call_id=call.id, name=name, input=self.text, namespace=namespace)
        return FunctionCall(
            id=self.id, call_id=call.id, name=name, arguments=self.text, status=self.status, namespace=namespace
        )

    def _delta(self, text: str) -> Iterator[Event]:
        yield f"response.{self._form.text}.delta", {**self._at, "delta": text, **self._further}


class ResponseAnswer(PartsChoice[ItemPart]):
    filler = Content("")

    def __init__(
        self, resource: ResponseResource, reading: Reading, *, in_summary: bool, is_encoded: bool, is_stream: bool
    ) -> None:
        """`in_summary` and `is_encoded`: see ItemPart."""
        new = partial(ItemPart, use=reading.use, in_summary=in_summary, is_encoded=is_encoded)
        super().__init__(reading, new, is_stream=is_stream)
        self._resource = resource
        self._n_events = 0

    def sign_of_life(self) -> bytes:
        """The answer as it is now. Codex gives up after 300 s without an event; it does not count comments."""
        return self._first() + self._sent([("response.in_progress", {"response": self._resource})])

    def made(self) -> ResponseResource:
        output = tuple(part.item() for part in self.parts)
        whole = msgspec.structs.replace(self._resource, output=output, usage=self._usage)
        if self.failed is not None:
            code = _CODES.get(self.failed.code, "server_error")
            error = ResponseFailure(code=code, message=self.failed.message)
            return msgspec.structs.replace(whole, status="failed", error=error)
        if self.finish_reason == "length":
            return msgspec.structs.replace(whole, status="incomplete", incomplete_details=Incomplete())
        return msgspec.structs.replace(whole, status="completed", completed_at=int(time.time()))

    @property
    def _usage(self) -> ResponseUsage | None:
        if self.finished is None:
            return None
        return ResponseUsage(
            input_tokens=self.n_prompt,
            input_tokens_details=InputTokensDetails(cached_tokens=self.n_cached),
            output_tokens=self.n_drawn,
            output_tokens_details=OutputTokensDetails(reasoning_tokens=self.finished.n_reasoning),
            total_tokens=self.n_prompt + self.n_drawn,
        )

    def _begun(self) -> bytes:
        return self.sign_of_life()

    def _last(self) -> Iterator[Event]:
        whole = self.made()
        yield f"response.{whole.status}", {"response": whole}

    def _failed(self, event: ErrorEvent) -> bytes:  # noqa: ARG002 - made() has it
        if self._open is not None:
            self._open.status = "incomplete"
        return self._first() + self._sent([("response.failed", {"response": self.made()})])

    def _first(self) -> bytes:
        """The first event, if it was not sent yet."""
        return self._sent([("response.created", {"response": self._resource})]) if not self._n_events else b""

    def _bytes(self, kind: str, members: dict[str, Any]) -> bytes:
        self._n_events += 1
        return super()._bytes(kind, {"sequence_number": self._n_events - 1, **members})


# ── the text of a custom tool ────────────────────────────────────────────────────────────────────

_OPENING = re.compile(rf'\s*\{{\s*"{TEXT_ARGUMENT}"\s*:\s*"')
_UNITS = re.compile(r'(?:[^"\\]|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})*')
"""The characters of a JSON string that are complete."""
_HALF_PAIR = re.compile(r"(?<!\\)(?:\\\\)*(\\u[dD][89abAB][0-9a-fA-F]{2})\Z")
"""A high surrogate at the end, whose other half may follow."""
_MAX_OPENING_CHARS = 256
"""A text whose first so many characters are no opening is read only when it is complete."""


class TextArgument:
    """Reads the one text argument of a custom tool out of the JSON of its arguments, as the JSON comes."""

    def __init__(self) -> None:
        self._rest = ""
        """The JSON that is not decoded yet."""
        self._is_open = False

    def push(self, part: str) -> str:
        """The characters of the argument that the part completes."""
        self._rest += part
        if not self._is_open:
            found = _OPENING.match(self._rest[:_MAX_OPENING_CHARS])
            if found is None:
                return ""
            self._is_open, self._rest = True, self._rest[found.end() :]
        units = _UNITS.match(self._rest)
        assert units is not None  # it matches nothing, too
        end = units.end()
        half = _HALF_PAIR.search(self._rest, 0, end)
        if half is not None and not self._rest.startswith('"', end):
            end -= len(half[1])
        text = _decoded(self._rest[:end])
        self._rest = self._rest[end:]
        return text

    def finish(self) -> str:
        """The characters that are left at the end. Arguments of another form are a text as they are."""
        if self._is_open:
            return ""
        try:
            value = msgspec.json.decode(self._rest)
        except (msgspec.DecodeError, RecursionError):
            return self._rest
        text = value.get(TEXT_ARGUMENT) if isinstance(value, dict) else None
        return text if isinstance(text, str) else self._rest


def _decoded(units: str) -> str:
    """The text of complete characters of a JSON string; half a surrogate pair becomes U+FFFD."""
    text: str = json.loads(f'"{units}"', strict=False)
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
