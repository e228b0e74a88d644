"""The tools of `POST /v1/messages` and the choice among them, as the internal list.

Owns: which tools are offered. The tools that Anthropic runs or defines are left out and named, and so are tools whose
loading is deferred. Pure.
"""

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from worker.openai.tools import Choice, Offered, Tool, check_count, check_twins, checked_use, function_tool, listed
from worker.protocol.bodies import Problems
from worker.protocol.unread import unread
from worker.wire.encoding import doc

_CHOICES: Mapping[str, Choice] = {"auto": "auto", "any": "required", "tool": "required", "none": "none"}


class MessageTool(msgspec.Struct, frozen=True, kw_only=True):
    """A tool of the client's."""

    type: Annotated[str | None, doc("custom. Other types are left out and named in x-ignored-tools.")] = None
    name: str | None = None
    description: str | None = None
    input_schema: Annotated[dict[str, Any] | None, doc("The JSON schema of the arguments.")] = None
    strict: bool | None = None
    defer_loading: Annotated[bool | None, doc("true: the tool is left out and named in x-ignored-tools.")] = None


class ToolChoice(msgspec.Struct, frozen=True, kw_only=True):
    """The choice among the tools."""

    type: Annotated[str, doc("any: some call. tool: a call of the named tool.", enum=list(_CHOICES))]
    name: str | None = None
    disable_parallel_tool_use: Annotated[bool | None, doc("true: the answer has one call at most.")] = None


def read_tools(problems: Problems, tools: object, choice: ToolChoice | None) -> Offered:
    """The tools."""
    offered = Offered()
    found: list[Tool] = []
    for place, tool, raw in listed(problems, "tools", tools, MessageTool):
        if tool.type not in (None, "custom") or tool.defer_loading:
            offered.skipped.append(tool.name or tool.type or place)
        elif (read := function_tool(problems, place, tool, "input_schema")) is not None:
            offered.unread += unread("tools", raw, MessageTool)
            found.append(read)
    check_count(problems, "tools", len(found))
    check_twins(problems, found)
    choice = choice or ToolChoice(type="auto")
    if choice.type not in _CHOICES:
        problems.add("tool_choice.type", "one_of", f"must be one of {', '.join(_CHOICES)}")
    is_one = choice.type == "tool"
    if is_one and choice.name is None:
        problems.add("tool_choice.name", "required", "is missing")
    offered.use = checked_use(
        problems,
        found,
        _CHOICES.get(choice.type, "auto"),
        frozenset({choice.name}) if is_one and choice.name is not None else None,
        is_parallel=not choice.disable_parallel_tool_use and not is_one,
    )
    return offered
