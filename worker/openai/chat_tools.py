"""The tools of `POST /v1/chat/completions` and the choice among them, as the internal list.

Owns: the kinds of tools. Functions are offered; other kinds are left out and named. Pure.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Annotated, Any

import msgspec

from worker.openai.fields import read_field
from worker.openai.tools import (
    NO_TOOLS,
    Choice,
    Tool,
    ToolUse,
    choice_errors,
    chosen_word,
    count_errors,
    function_tool,
    mode_of,
    names_one,
    twin_errors,
)
from worker.protocol.bodies import MAX_ERRORS, FieldError
from worker.wire.encoding import doc


class FunctionDefinition(msgspec.Struct, frozen=True, kw_only=True):
    """A function that the model may call."""

    name: Annotated[str, doc("1 to 128 ASCII letters, digits or characters of _.:/-")]
    description: Annotated[str | None, doc("The model reads it.")] = None
    parameters: Annotated[dict[str, Any] | None, doc("The JSON schema of the arguments, an object's.")] = None
    strict: Annotated[bool | None, doc("Calls follow the schema in any case.")] = None


class ChatTool(msgspec.Struct, frozen=True, kw_only=True):
    """A tool."""

    type: Annotated[str, doc("Other types than function are left out and named in x-ignored-tools.")] = "function"
    function: FunctionDefinition | None = None


class _Named(msgspec.Struct, frozen=True, kw_only=True):
    name: str


class _ChosenTool(msgspec.Struct, frozen=True, kw_only=True):
    type: str = "function"
    function: _Named | None = None
    allowed_tools: dict[str, Any] | None = None


class _AllowedTools(msgspec.Struct, frozen=True, kw_only=True):
    mode: str = "auto"
    tools: list[_ChosenTool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Offered:
    """The tools of a request."""

    use: ToolUse = NO_TOOLS
    skipped: tuple[str, ...] = ()
    """The names of tools that the worker does not have."""


def read_tools(
    tools: Sequence[ChatTool], raw: object, choice: object, *, is_parallel: bool, errors: list[FieldError]
) -> Offered:
    """The tools. `raw` are the same as the client sent them. The errors gain an entry for each broken rule."""
    errors += count_errors("tools", len(tools))
    places: dict[str, Tool] = {}
    skipped: list[str] = []
    for at, tool in enumerate(tools):
        if len(errors) >= MAX_ERRORS:
            return Offered()
        if tool.type != "function":
            skipped.append(_name_of(raw[at] if isinstance(raw, list) else None, tool.type))
        elif tool.function is None:
            place = f"tools[{at}].function"
            errors.append(FieldError(field=place, constraint="required", message=f"{place} is missing"))
        else:
            places[f"tools[{at}].function"] = _tool(f"tools[{at}].function", tool.function, errors)
    errors += islice(twin_errors(places), MAX_ERRORS)
    word, only = _choice(choice, errors)
    is_parallel = is_parallel and not names_one(choice)
    use = ToolUse(tools=tuple(places.values()), choice=word, only=only, is_parallel=is_parallel)
    errors += choice_errors("tool_choice", use)
    return Offered(use=use, skipped=tuple(skipped))


def _tool(place: str, function: FunctionDefinition, errors: list[FieldError]) -> Tool:
    return function_tool(
        place,
        errors,
        name=function.name,
        description=function.description,
        schema=function.parameters,
        schema_field="parameters",
        is_strict=bool(function.strict),
    )


def _name_of(raw: object, kind: str) -> str:
    """The name of a tool of another kind, as far as it has one."""
    if isinstance(raw, dict):
        inner = raw.get(kind)
        for members in (raw, inner):
            if isinstance(members, dict) and isinstance(members.get("name"), str):
                return str(members["name"])
    return kind


# ── the choice ───────────────────────────────────────────────────────────────────────────────────


def _choice(choice: object, errors: list[FieldError]) -> tuple[Choice, frozenset[str] | None]:
    """The choice, and the names of the tools that it allows, if they are not all."""
    word = chosen_word(choice, errors)
    if word is not None:
        return word, None
    values: dict[str, Any] = {}
    read_field("tool_choice", choice, _ChosenTool, values, errors)
    for chosen in values.values():
        if chosen.type == "function":
            return "required", frozenset(_names("tool_choice", [chosen], errors))
        if chosen.type == "allowed_tools":
            return _allowed(chosen, errors)
        text = "tool_choice.type must be function or allowed_tools; this worker has no tools of its own"
        errors.append(FieldError(field="tool_choice.type", constraint="one_of", message=text))
    return "auto", None


def _allowed(chosen: _ChosenTool, errors: list[FieldError]) -> tuple[Choice, frozenset[str] | None]:
    place = "tool_choice.allowed_tools"
    values: dict[str, Any] = {}
    read_field(place, chosen.allowed_tools, _AllowedTools, values, errors)
    for allowed in values.values():
        word = mode_of(place, allowed.mode, errors)
        if not allowed.tools:
            text = f"{place}.tools must not be empty"
            errors.append(FieldError(field=f"{place}.tools", constraint="non_empty", message=text))
        return word, frozenset(_names(f"{place}.tools", allowed.tools, errors))
    return "auto", None


def _names(place: str, chosen: Sequence[_ChosenTool], errors: list[FieldError]) -> list[str]:
    """The names of chosen functions."""
    names = [one.function.name for one in chosen if one.function is not None]
    if len(names) < len(chosen):
        text = f"{place}.function is missing"
        errors.append(FieldError(field=f"{place}.function", constraint="required", message=text))
    return names
