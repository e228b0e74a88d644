"""The tools of `POST /v1/messages` and the choice among them, as the internal list.

Owns: which tools are offered. The tools that Anthropic runs or defines are left out and named, and so are tools whose
loading is deferred. Pure.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Annotated, Any

import msgspec

from worker.openai.fields import read_field
from worker.openai.tools import Choice, Tool, ToolUse, choice_errors, count_errors, function_tool, twin_errors
from worker.protocol.bodies import MAX_ERRORS, FieldError
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


@dataclass(frozen=True, slots=True)
class Offered:
    """The tools of a request."""

    use: ToolUse
    skipped: tuple[str, ...]
    """The names of tools that the worker does not have."""
    unread: tuple[str, ...]
    """The places of members without effect."""


def read_tools(tools: object, choice: ToolChoice | None, errors: list[FieldError]) -> Offered:
    """The tools. The errors gain an entry for each broken rule."""
    places: dict[str, Tool] = {}
    skipped: list[str] = []
    members: list[str] = []
    if tools is not None and not isinstance(tools, list):
        errors.append(FieldError(field="tools", constraint="type", message="tools: Expected `array`"))
    for at, raw in enumerate(tools if isinstance(tools, list) else ()):
        if len(errors) >= MAX_ERRORS:
            break
        values: dict[str, Any] = {}
        read_field(f"tools[{at}]", raw, MessageTool, values, errors)
        for place, tool in values.items():
            if tool.type not in (None, "custom") or tool.defer_loading:
                skipped.append(tool.name or tool.type or place)
            elif (read := _tool(place, tool, errors)) is not None:
                members += unread("tools", raw, MessageTool)
                places[place] = read
    errors += count_errors("tools", len(places))
    errors += islice(twin_errors(places), MAX_ERRORS)
    use = _use(tuple(places.values()), choice or ToolChoice(type="auto"), errors)
    return Offered(use, tuple(skipped), tuple(members))


def _tool(place: str, tool: MessageTool, errors: list[FieldError]) -> Tool | None:
    if tool.name is None:
        where = f"{place}.name"
        errors.append(FieldError(field=where, constraint="required", message=f"{where} is missing"))
        return None
    return function_tool(
        place,
        errors,
        name=tool.name,
        description=tool.description,
        schema=tool.input_schema,
        schema_field="input_schema",
        is_strict=bool(tool.strict),
    )


def _use(tools: tuple[Tool, ...], choice: ToolChoice, errors: list[FieldError]) -> ToolUse:
    if choice.type not in _CHOICES:
        text = f"tool_choice.type must be one of {', '.join(_CHOICES)}"
        errors.append(FieldError(field="tool_choice.type", constraint="one_of", message=text))
    only = None
    if choice.type == "tool":
        if choice.name is None:
            text = "tool_choice.name is missing"
            errors.append(FieldError(field="tool_choice.name", constraint="required", message=text))
        else:
            only = frozenset({choice.name})
    use = ToolUse(
        tools=tools,
        choice=_CHOICES.get(choice.type, "auto"),
        only=only,
        is_parallel=not choice.disable_parallel_tool_use and choice.type != "tool",
    )
    errors += choice_errors("tool_choice", use)
    return use
