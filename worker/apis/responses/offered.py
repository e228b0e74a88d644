"""The tools of `POST /v1/responses` and the choice among them, as the internal list.

Owns: the kinds of tools. Functions, custom tools and namespaces of both are offered; the kinds that OpenAI runs itself
are left out and named. Pure.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any

import msgspec

from worker.apis.core.bodies import Problems
from worker.apis.core.conversation import unread
from worker.apis.core.tools import (
    MAX_TOOLS,
    TEXT_ARGUMENT,
    CallChoice,
    ChosenTool,
    Offered,
    Tool,
    allowed_mode,
    check_count,
    check_tools,
    checked_use,
    flattened,
    function_tool,
    listed,
    named_tool,
    names_one,
    read_choice,
)
from worker.wire.encoding import doc


class TextFormat(msgspec.Struct, frozen=True, kw_only=True):
    """The form of a custom tool's text."""

    type: Annotated[str, doc("text: any text. grammar: a text that follows the definition.")] = "text"
    syntax: Annotated[str | None, doc("The notation of the definition: lark or regex.")] = None
    definition: str | None = None


class ResponseTool(msgspec.Struct, frozen=True, kw_only=True):
    """A tool: a function, a custom tool, or a namespace of these."""

    type: Annotated[str, doc("Other types are left out and named in x-ignored-tools.")]
    name: str | None = None
    description: str | None = None
    parameters: Annotated[dict[str, Any] | None, doc("The JSON schema of a function's arguments.")] = None
    strict: bool | None = None
    format: Annotated[TextFormat | None, doc("The form of a custom tool's text.")] = None
    tools: Annotated[list[Any] | None, doc("The tools of a namespace.")] = None


class _ChosenTool(ChosenTool, frozen=True, kw_only=True):
    type: str
    name: str | None = None
    namespace: str | None = None
    mode: str | None = None
    tools: list[Any] | None = None


def read_tools(
    problems: Problems, tools: object, choice: object, further: Mapping[str, object], *, is_parallel: bool
) -> Offered:
    """The tools. `further`: lists of tools in the input, by their places; a tool whose name is taken counts once."""
    offered = Offered()
    found = list(_tools(problems, offered, "tools", tools))
    for place, more in further.items():
        taken = {tool.name for tool in found}
        found += [tool for tool in _tools(problems, offered, place, more) if tool.name not in taken]
    check_tools(problems, found)
    chosen, only = _choice(problems, choice, found)
    is_parallel = is_parallel and not names_one(choice)
    offered.use = checked_use(problems, found, chosen, only, is_parallel=is_parallel)
    return offered


def _tools(
    problems: Problems, offered: Offered, place: str, tools: object, namespace: str | None = None
) -> Iterator[Tool]:
    """Yield the tools of a list, and those of its namespaces."""
    kinds = ("function", "custom", "namespace") if namespace is None else ("function", "custom")
    for where, tool, raw in listed(problems, place, tools, ResponseTool):
        if tool.type not in kinds:
            offered.skipped.append(str(raw.get("server_label") or tool.name or tool.type))
            continue
        if tool.name is None:
            problems.add(f"{where}.name", "required", "is missing")
            continue
        offered.unread += unread("tools", raw, ResponseTool)
        if namespace is None:
            offered.echoed.append(_echoed(tool, raw))
        if tool.type == "namespace":
            yield from _tools(problems, offered, f"{where}.tools", tool.tools, tool.name)
            continue
        read = custom_tool if tool.type == "custom" else function_tool
        found = read(problems, where, tool, namespace=namespace)
        if found is not None:
            yield found


def custom_tool(problems: Problems, place: str, spelled: ResponseTool, *, namespace: str | None) -> Tool | None:
    """A tool whose call is one text. The model gets the text's form in the description of the argument."""
    form = spelled.format or TextFormat()
    if form.type not in ("text", "grammar"):
        problems.add(f"{place}.format.type", "one_of", "must be text or grammar")
    if form.type == "grammar" and form.definition is None:
        problems.add(f"{place}.format.definition", "required", "is missing")
    if form.type == "grammar" and form.syntax not in ("lark", "regex"):
        problems.add(f"{place}.format.syntax", "one_of", "must be lark or regex")
    definition = form.definition if form.type == "grammar" else None
    about, is_regex = "The text for the tool.", form.syntax == "regex"
    if definition is not None:
        rule = "matches this regular expression" if is_regex else "follows this Lark grammar"
        about += f" It {rule}:\n{definition}"
    text = {"type": "string", "description": about}
    tool = named_tool(problems, place, spelled, namespace)
    return tool and replace(
        tool,
        schema={"type": "object", "properties": {TEXT_ARGUMENT: text}, "required": [TEXT_ARGUMENT]},
        kind="custom",
        grammar=None if is_regex else definition,
        regex=definition if is_regex else None,
    )


def _echoed(tool: ResponseTool, raw: dict[str, Any]) -> dict[str, Any]:
    """The tool with the members that the answer's type requires."""
    match tool.type:
        case "function":
            own = {"description": tool.description, "parameters": tool.parameters, "strict": bool(tool.strict)}
            return {"type": "function", "name": tool.name, **own}
        case "namespace":
            return {**raw, "description": tool.description or ""}
        case _:
            return raw


# ── the choice ───────────────────────────────────────────────────────────────────────────────────


def _choice(problems: Problems, choice: object, tools: Sequence[Tool]) -> tuple[CallChoice, frozenset[str] | None]:
    """The choice, and the model's names of the tools that it allows, if they are not all."""
    chosen = read_choice(problems, choice, _ChosenTool, ["function", "custom"])
    if isinstance(chosen, str):
        return chosen, None
    if chosen.type != "allowed_tools":
        return "required", frozenset(_names(problems, "tool_choice", [chosen], tools))
    given, place = chosen.tools or [], "tool_choice.tools"
    word = allowed_mode(problems, "tool_choice", chosen.mode or "auto", given)
    check_count(problems, place, len(given))
    read = [problems.shaped(f"{place}[{at}]", raw, _ChosenTool) for at, raw in enumerate(given[:MAX_TOOLS])]
    return word, frozenset(_names(problems, place, filter(None, read), tools))


def _names(problems: Problems, place: str, chosen: Iterable[_ChosenTool], tools: Sequence[Tool]) -> Iterator[str]:
    """Yield the model's names of the chosen tools. A name that no tool has is yielded as it is."""
    for one in chosen:
        if one.name is None:
            problems.add(f"{place}.name", "required", "is missing")
            continue
        name = flattened(one.namespace, one.name)
        known = (
            tool.name for tool in tools if tool.name == name or (one.namespace is None and tool.given_name == name)
        )
        yield next(known, name)
