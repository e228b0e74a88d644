"""The input of `POST /v1/responses`: items become messages in OpenAI's form of chats.

Calls of tools that this worker does not know become text.
"""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Final, TypeGuard

import msgspec

from worker.apis.core.constraint_fields import MAX_DEPTH
from worker.apis.core.conversation import MAY_BE_EMPTY, Turns, entries, got, joined, unread
from worker.apis.core.payloads import MediaPlaces
from worker.apis.core.thinking import decoded_thoughts
from worker.apis.core.tools import TEXT_ARGUMENT, flattened
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


def read_input(turns: Turns, value: object) -> None:
    """Add the input's messages."""
    if isinstance(value, str):
        turns.say("user", value, "input")
        return
    found = entries(turns.problems, "input", value)
    turns.left_out += unread("input", [raw for raw in found if not _is_hosted(raw)], list[InputItem])
    for at, raw in enumerate(found):
        if turns.problems.is_full:
            return
        place = f"input[{at}]"
        if _is_hosted(raw):
            _read_hosted(raw, turns, place)
        elif (item := turns.problems.shaped(place, raw, InputItem)) is not None:
            _read_item(item, turns, place)


def tools_in(value: object) -> dict[str, object]:
    """The lists of tools that items of the input offer, by their places."""
    places = enumerate(value if isinstance(value, list) else [])
    return {f"input[{at}].tools": raw.get("tools") for at, raw in places if _is_hosted(raw) and raw["type"] in TOOLS}


def _read_item(item: InputItem, turns: Turns, place: str) -> None:
    match item.type:
        case None | "message":
            _read_message(item, turns, place)
        case "function_call":
            _read_call(item, turns.needed(place, item, "arguments"), turns, place)
        case "custom_tool_call":
            _read_call(item, {TEXT_ARGUMENT: turns.needed(place, item, "input")}, turns, place)
        case "function_call_output" | "custom_tool_call_output":
            call_id = turns.needed(place, item, "call_id")
            if item.output is None:
                turns.refuse(f"{place}.output", "required", MAY_BE_EMPTY)
            turns.result(call_id, _content(turns, f"{place}.output", item.output, is_result=True), place)
        case "reasoning":
            _read_reasoning(item, turns, place)
        case other:
            text = f"must be one of {', '.join(ITEMS)}{got(other)}; this worker keeps no items and runs no tools"
            turns.refuse(f"{place}.type", "one_of", text)


def _read_message(item: InputItem, turns: Turns, place: str) -> None:
    if item.role not in ROLES:
        turns.refuse(f"{place}.role", "role", f"must be one of {', '.join(ROLES)}")
        return
    if item.content is None:
        turns.refuse(f"{place}.content", "required", MAY_BE_EMPTY)
    text = _content(turns, f"{place}.content", item.content)
    if item.role == "assistant":
        turns.answer(text, place)
    else:
        turns.say(str(item.role), text, place)


def _read_call(item: InputItem, arguments: str | dict[str, Any], turns: Turns, place: str) -> None:
    call_id, name = turns.needed(place, item, "call_id"), turns.needed(place, item, "name")
    turns.call(call_id, flattened(item.namespace, name), arguments, place)


def _read_reasoning(item: InputItem, turns: Turns, place: str) -> None:
    text = _content(turns, f"{place}.content", item.content)
    if not text and item.encrypted_content is not None:
        text = decoded_thoughts(item.encrypted_content)
        if not text:
            turns.left_out.append("input.encrypted_content")
    if text := text or _content(turns, f"{place}.summary", item.summary):
        turns.think(text, place)


def _content(turns: Turns, place: str, content: _Content, *, is_result: bool = False) -> str:
    if not isinstance(content, list):
        return content or ""
    return joined(_text(turns, f"{place}[{at}]", part, is_result) for at, part in enumerate(content))


def _text(turns: Turns, place: str, part: InputPart, is_result: bool) -> str:  # noqa: FBT001
    if part.type in TEXT_PARTS:
        return turns.needed(place, part, "refusal" if part.type == "refusal" else "text", MAY_BE_EMPTY)
    if is_result and part.type in MEDIA_PARTS:
        return turns.leave_out("input.output", part.type)
    text = f"must be a text, the only type that this worker reads{got(part.type)}; remove the part"
    turns.refuse(f"{place}.type", "text_only", text)
    return ""


def _is_hosted(item: object) -> TypeGuard[Mapping[str, Any]]:
    """True if the value is such an item."""
    kind = item.get("type") if isinstance(item, dict) else None
    return isinstance(kind, str) and _HOSTED.fullmatch(kind) is not None


def _read_hosted(item: Mapping[str, Any], turns: Turns, place: str) -> None:
    """Add the item's call to the assistant's text, and its result as a user's text."""
    kind = str(item["type"])
    if kind in TOOLS:
        return
    read = {
        name: _texts_of(value, f"input.{kind}.{name}", turns, MAX_DEPTH)
        for name, value in item.items()
        if value and value != "completed" and name not in _IDLE and kind not in SILENT
    }
    results: dict[str, object] = {name: read.pop(name) for name in _RESULTS if name in read}
    if read:
        turns.answer(_told(kind, read), place)
    if results:
        turns.say("user", _told(f"result of {kind}" if read else kind, results), place)
    if not read and not results:
        turns.left_out.append(f"input.{kind}")


def _told(kind: str, members: Mapping[str, Any]) -> str:
    only = next(iter(members.values())) if len(members) == 1 else members
    return f"[{kind}: {only if isinstance(only, str) else encode_json(only).decode()}]"


def _texts_of(value: object, place: str, turns: Turns, n_levels: int) -> object:
    """The value with a text in the place of each picture and file, and without what is deeper than `n_levels`."""
    match value:
        case {"type": str(kind)} if kind in _MEDIA:
            return turns.leave_out(place, kind)
        case dict() | list() if not n_levels:
            turns.left_out.append(place)
            return None
        case dict():
            return {name: _texts_of(inner, place, turns, n_levels - 1) for name, inner in value.items()}
        case list():
            return [_texts_of(inner, place, turns, n_levels - 1) for inner in value]
        case _:
            return value
