"""The tools of `POST /v1/chat/completions` and the choice among them, as the internal list.

Owns: the kinds of tools. Functions are offered; other kinds are left out and named. Pure.
"""

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec

from worker.openai.tools import (
    Choice,
    Offered,
    Tool,
    check_count,
    check_twins,
    checked_use,
    chosen_word,
    function_tool,
    mode_of,
    names_one,
)
from worker.protocol.bodies import Problems
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


def read_tools(
    problems: Problems, tools: Sequence[ChatTool], raw: object, choice: object, *, is_parallel: bool
) -> Offered:
    """The tools. `raw` are the same as the client sent them."""
    check_count(problems, "tools", len(tools))
    found: list[Tool] = []
    offered = Offered()
    for at, tool in enumerate(tools):
        if problems.is_full:
            return Offered()
        place = f"tools[{at}].function"
        if tool.type != "function":
            offered.skipped.append(_name_of(raw[at] if isinstance(raw, list) else None, tool.type))
        elif tool.function is None:
            problems.add(place, "required", "is missing")
        elif (read := function_tool(problems, place, tool.function)) is not None:
            found.append(read)
    check_twins(problems, found)
    word, only = _choice(problems, choice)
    is_parallel = is_parallel and not names_one(choice)
    offered.use = checked_use(problems, found, word, only, is_parallel=is_parallel)
    return offered


def _name_of(raw: object, kind: str) -> str:
    """The name of a tool of another kind, as far as it has one."""
    if isinstance(raw, dict):
        inner = raw.get(kind)
        for members in (raw, inner):
            if isinstance(members, dict) and isinstance(members.get("name"), str):
                return str(members["name"])
    return kind


# ── the choice ───────────────────────────────────────────────────────────────────────────────────


def _choice(problems: Problems, choice: object) -> tuple[Choice, frozenset[str] | None]:
    """The choice, and the names of the tools that it allows, if they are not all."""
    word = chosen_word(problems, choice)
    if word is not None:
        return word, None
    chosen = problems.shaped("tool_choice", choice, _ChosenTool)
    if chosen is None:
        return "auto", None
    if chosen.type == "function":
        return "required", _names(problems, "tool_choice", [chosen])
    place = "tool_choice.allowed_tools"
    if chosen.type != "allowed_tools":
        text = "must be function or allowed_tools; this worker has no tools of its own"
        problems.add("tool_choice.type", "one_of", text)
        return "auto", None
    allowed = problems.shaped(place, chosen.allowed_tools, _AllowedTools)
    if allowed is None:
        return "auto", None
    word = mode_of(problems, place, allowed.mode)
    if not allowed.tools:
        problems.add(f"{place}.tools", "non_empty", "must not be empty")
    return word, _names(problems, f"{place}.tools", allowed.tools)


def _names(problems: Problems, place: str, chosen: Sequence[_ChosenTool]) -> frozenset[str]:
    """The names of chosen functions."""
    names = [one.function.name for one in chosen if one.function is not None]
    if len(names) < len(chosen):
        problems.add(f"{place}.function", "required", "is missing")
    return frozenset(names)
