"""The input of `POST /v1/responses`: items become messages in OpenAI's form of chats.

Owns: the kinds of items and of their parts, which of them are read, left out and named, or refused; and the text that
calls of tools become which this worker does not know. Pure.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final, TypeGuard

import msgspec

from worker.apis.core.bodies import Problems
from worker.apis.core.conversation import entries, unread
from worker.apis.core.payloads import MediaPlaces
from worker.apis.core.rules import MAX_DEPTH
from worker.apis.core.thinking import decoded_thoughts
from worker.apis.core.tools import TEXT_ARGUMENT, flattened
from worker.apis.core.turns import LEFT_OUT, Turns, got, joined
from worker.wire.encoding import doc, encode_json

ROLES = ("user", "assistant", "system", "developer")
ITEMS = (
    *("message", "function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output", "reasoning"),
)  # fmt: skip
TEXT_PARTS = ("input_text", "output_text", "text", "refusal", "reasoning_text", "summary_text")
MEDIA_PARTS = ("input_image", "input_file", "input_audio", "input_video")

TOOLS: Final = ("additional_tools", "tool_search_output")
"""The types of items that offer tools."""
SILENT: Final = (
    *("web_search_call", "tool_search_call", "image_generation_call", "compaction", "compaction_summary"),
    *("context_compaction", "compaction_trigger", "ghost_snapshot", "mcp_list_tools"),
    *("mcp_approval_request", "mcp_approval_response"),
)
"""The types of items in which the model reads nothing: only the service that wrote one can, or the answer after it has
its contents."""
_CALL: Final = r"(?!(?:function|custom_tool)_call)[a-z_]{1,40}_call(_output)?"
_HOSTED: Final = re.compile("|".join([_CALL, "program(_output)?", *TOOLS, *SILENT]))
"""All types. Source: openai-python 3.57, ResponseInputItemParam; Codex's history."""

_RESULTS: Final = ("output", "outputs", "result", "results", "error", "status")
"""The members that have the result of a call; all others have the call."""
_IDLE: Final = frozenset(
    {
        *("type", "id", "call_id", "caller", "container_id", "approval_request_id", "fingerprint", "environment"),
        *("max_output_length", "pending_safety_checks", "acknowledged_safety_checks", "encrypted_content"),
    }
)
_MEDIA: Final = ("image", "computer_screenshot", "input_image", "input_file")

_MEDIA_PLACES = (
    f"{parts}.{name}" for parts in ("content[]", "output[]", "output") for name in ("image_url", "file_data")
)
PAYLOADS = MediaPlaces(
    frozenset(f".input[].{where}" for where in (*_MEDIA_PLACES, "result")),
    frozenset({"input_image", "input_file", "computer_screenshot", "image_generation_call"}),
)


class InputPart(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a content."""

    type: Annotated[str, doc("A text. Other parts are left out of results, and refused elsewhere.", enum=[*TEXT_PARTS])]
    text: str | None = None
    refusal: str | None = None
    annotations: list[Any] | None = None
    logprobs: list[Any] | None = None


_Content = str | list[InputPart] | None


class InputItem(msgspec.Struct, frozen=True, kw_only=True):
    """One item of the conversation so far."""

    type: Annotated[str | None, doc("message if it is absent.", enum=[*ITEMS, *SILENT, *TOOLS, None])] = None
    id: str | None = None
    status: str | None = None
    role: Annotated[str | None, doc("The author of a message.", enum=[*ROLES, None])] = None
    content: _Content = None
    phase: str | None = None
    call_id: str | None = None
    name: str | None = None
    namespace: str | None = None
    arguments: Annotated[str | None, doc("A function_call's arguments as JSON text.")] = None
    input: Annotated[str | None, doc("A custom_tool_call's text.")] = None
    output: Annotated[_Content, doc("The result of a call.")] = None
    summary: list[InputPart] | None = None
    encrypted_content: Annotated[str | None, doc("As this worker has sent it; another's is ignored and named.")] = None


def read_input(problems: Problems, value: object, turns: Turns) -> list[str]:
    """Add the input's messages. Return the names of what is left out."""
    if isinstance(value, str):
        turns.say("user", value, "input")
        return []
    value = entries(problems, "input", value)
    left_out = list(unread("input", [raw for raw in value if not _is_hosted(raw)], list[InputItem]))
    for at, raw in enumerate(value):
        if problems.is_full:
            return []
        if _is_hosted(raw):
            left_out += _read_hosted(raw, turns, f"input[{at}]")
            continue
        item = problems.shaped(f"input[{at}]", raw, InputItem)
        if item is not None:
            _ItemReader(f"input[{at}]", item, turns, problems, left_out).read()
    return left_out


def tools_in(value: object) -> dict[str, object]:
    """The lists of tools that items of the input offer, by their places."""
    places = enumerate(value if isinstance(value, list) else [])
    return {f"input[{at}].tools": raw.get("tools") for at, raw in places if _is_hosted(raw) and raw["type"] in TOOLS}


class _ItemReader:
    """Reads one item."""

    def __init__(self, place: str, item: InputItem, turns: Turns, problems: Problems, left_out: list[str]) -> None:
        self._place = place
        self._item = item
        self._turns = turns
        self._problems = problems
        self._left_out = left_out

    def read(self) -> None:
        match self._item.type:
            case None | "message":
                self._message()
            case "function_call":
                self._call(self._needed("arguments"))
            case "custom_tool_call":
                self._call({TEXT_ARGUMENT: self._needed("input")})
            case "function_call_output" | "custom_tool_call_output":
                self._result()
            case "reasoning":
                self._reasoning()
            case other:
                text = f"must be one of {', '.join(ITEMS)}{got(other)}; this worker keeps no items and runs no tools"
                self._refuse("type", "one_of", text)

    def _message(self) -> None:
        role = self._item.role
        if role not in ROLES:
            self._refuse("role", "role", f"must be one of {', '.join(ROLES)}")
            return
        if self._item.content is None:
            self._refuse("content", "required", "is missing; send a text, which may be empty")
            return
        text = self._text("content", self._item.content)
        if role == "assistant":
            self._turns.answer(text, self._place)
        else:
            self._turns.say(role or "", text, self._place)

    def _call(self, arguments: str | dict[str, Any]) -> None:
        call_id, name = self._needed("call_id"), self._needed("name")
        self._turns.call(call_id, flattened(self._item.namespace, name), arguments, self._place)

    def _result(self) -> None:
        call_id = self._needed("call_id")
        if self._item.output is None:
            self._refuse("output", "required", "is missing; send a text, which may be empty")
            return
        self._turns.result(call_id, self._text("output", self._item.output, is_result=True), self._place)

    def _reasoning(self) -> None:
        item = self._item
        text = self._text("content", item.content or "")
        if not text and item.encrypted_content is not None:
            text = decoded_thoughts(item.encrypted_content)
            if not text:
                self._left_out.append("input.encrypted_content")
        if not text:
            text = self._text("summary", item.summary or "")
        if text:
            self._turns.think(text, self._place)

    def _needed(self, field: str) -> str:
        value: str | None = getattr(self._item, field)
        if value is None:
            self._refuse(field, "required", "is missing")
        return value or ""

    def _text(self, field: str, content: str | list[InputPart], *, is_result: bool = False) -> str:
        if isinstance(content, str):
            return content
        return joined(
            [text for at, part in enumerate(content) for text in self._part(f"{field}[{at}]", part, is_result)]
        )

    def _part(self, where: str, part: InputPart, is_result: bool) -> Iterator[str]:  # noqa: FBT001
        if part.type in TEXT_PARTS:
            text = part.refusal if part.type == "refusal" else part.text
            if text is None:
                field = "refusal" if part.type == "refusal" else "text"
                self._refuse(f"{where}.{field}", "required", "is missing; send a text, which may be empty")
            yield text or ""
        elif is_result and part.type in MEDIA_PARTS:
            self._left_out.append(f"input.output.{part.type}")
            yield LEFT_OUT.format(kind=part.type.removeprefix("input_"))
        else:
            text = f"must be a text, the only type that this worker reads{got(part.type)}; remove the part"
            self._refuse(f"{where}.type", "text_only", text)

    def _refuse(self, field: str, constraint: str, text: str) -> None:
        if not self._problems.is_full:
            self._problems.add(f"{self._place}.{field}", constraint, text)


# ── items of hosted services ─────────────────────────────────────────────────────────────────────


def _is_hosted(item: object) -> TypeGuard[Mapping[str, Any]]:
    """True if the value is such an item."""
    kind = item.get("type") if isinstance(item, dict) else None
    return isinstance(kind, str) and _HOSTED.fullmatch(kind) is not None


def _read_hosted(item: Mapping[str, Any], turns: Turns, place: str) -> list[str]:
    """Add the item's call to the assistant's text, and its result as a user's text. Return the names of what is left
    out; tools are not."""
    kind, left_out = str(item["type"]), list[str]()
    read = {
        name: _texts_of(value, f"input.{kind}.{name}", left_out, MAX_DEPTH)
        for name, value in item.items()
        if value and value != "completed" and name not in _IDLE and kind not in SILENT
    }
    results: dict[str, object] = {name: read.pop(name) for name in _RESULTS if name in read}
    if kind in TOOLS:
        return []
    if read:
        turns.answer(_text(kind, read), place)
    if results:
        turns.say("user", _text(f"result of {kind}" if read else kind, results), place)
    return left_out if read or results else [f"input.{kind}"]


def _text(kind: str, members: Mapping[str, Any]) -> str:
    only = next(iter(members.values())) if len(members) == 1 else members
    return f"[{kind}: {only if isinstance(only, str) else encode_json(only).decode()}]"


def _texts_of(value: object, place: str, left_out: list[str], n_levels: int) -> object:
    """The value with a text in the place of each picture and file, and without what is deeper than `n_levels`."""
    match value:
        case {"type": str(kind)} if kind in _MEDIA:
            left_out.append(f"{place}.{kind}")
            return LEFT_OUT.format(kind=kind.removeprefix("input_"))
        case dict() | list() if not n_levels:
            left_out.append(place)
            return None
        case dict():
            return {name: _texts_of(inner, place, left_out, n_levels - 1) for name, inner in value.items()}
        case list():
            return [_texts_of(inner, place, left_out, n_levels - 1) for inner in value]
        case _:
            return value
