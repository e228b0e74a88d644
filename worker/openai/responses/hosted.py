"""Items that hosted services leave in a conversation, and calls of tools that this worker does not know.

Owns: which members of such an item the model reads, and the text that they become. Pure.
"""

import re
from collections.abc import Mapping
from typing import Any, Final, TypeGuard

from worker.openai.turns import LEFT_OUT, Turns
from worker.protocol.constraints import MAX_DEPTH
from worker.wire.encoding import encode_json

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


def is_hosted(item: object) -> TypeGuard[Mapping[str, Any]]:
    """True if the value is such an item."""
    kind = item.get("type") if isinstance(item, dict) else None
    return isinstance(kind, str) and _HOSTED.fullmatch(kind) is not None


def read_hosted(item: Mapping[str, Any], turns: Turns, place: str) -> list[str]:
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
