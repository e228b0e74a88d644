"""The tools of `POST /v1/responses` and the choice among them, as the internal list.

Owns: the kinds of tools. Functions, custom tools and namespaces of both are offered; the kinds that OpenAI runs itself
are left out and named. Pure.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any

import msgspec

from worker.apis.core.bodies import Problems
from worker.apis.core.conversation import unread
from worker.apis.core.tools import (
    MAX_TOOLS,
    CallChoice,
    Offered,
    Tool,
    check_count,
    check_twins,
    checked_use,
    chosen_word,
    custom_tool,
    flattened,
    function_tool,
    listed,
    mode_of,
    names_one,
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


class ChosenTool(msgspec.Struct, frozen=True, kw_only=True):
    """A choice of one tool, or of several."""

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
    reader = _ToolReader(problems, offered)
    found = list(reader.all_in("tools", tools))
    for place, more in further.items():
        taken = {tool.name for tool in found}
        found += [tool for tool in reader.all_in(place, more) if tool.name not in taken]
    check_count(problems, "tools", len(found))
    check_twins(problems, found)
    chosen, only = _choice(problems, choice, found)
    is_parallel = is_parallel and not names_one(choice)
    offered.use = checked_use(problems, found, chosen, only, is_parallel=is_parallel)
    return offered


class _ToolReader:
    """Reads the tools of one request, those of namespaces too."""

    def __init__(self, problems: Problems, offered: Offered) -> None:
        self._problems = problems
        self._offered = offered
        self._namespace: str | None = None

    def all_in(self, place: str, tools: object) -> Iterator[Tool]:
        """Yield the tools."""
        for where, tool, raw in listed(self._problems, place, tools, ResponseTool):
            yield from self._one(where, tool, raw)

    def _one(self, place: str, tool: ResponseTool, raw: dict[str, Any]) -> Iterator[Tool]:
        is_inside = self._namespace is not None
        if tool.type not in ("function", "custom", "namespace") or (is_inside and tool.type == "namespace"):
            self._offered.skipped.append(str(raw.get("server_label") or tool.name or tool.type))
            return
        if tool.name is None:
            self._problems.add(f"{place}.name", "required", "is missing")
            return
        self._offered.unread += unread("tools", raw, ResponseTool)
        if not is_inside:
            self._offered.echoed.append(_echoed(tool, raw))
        if tool.type == "namespace":
            self._namespace = tool.name
            yield from self.all_in(f"{place}.tools", tool.tools)
            self._namespace = None
            return
        if tool.type == "function":
            found = function_tool(self._problems, place, tool, namespace=self._namespace)
        else:
            found = self._custom(self._problems, place, tool)
        if found is not None:
            yield found

    def _custom(self, problems: Problems, place: str, tool: ResponseTool) -> Tool | None:
        form = tool.format or TextFormat()
        texts = dict[str, str | None]()
        if form.type not in ("text", "grammar"):
            problems.add(f"{place}.format.type", "one_of", "must be text or grammar")
        if form.type == "grammar":
            if form.definition is None:
                problems.add(f"{place}.format.definition", "required", "is missing")
            if form.syntax not in ("lark", "regex"):
                problems.add(f"{place}.format.syntax", "one_of", "must be lark or regex")
            texts = {"regex" if form.syntax == "regex" else "grammar": form.definition}
        return custom_tool(problems, place, tool, **texts, namespace=self._namespace)


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
    word = chosen_word(problems, choice)
    if word is not None:
        return word, None
    chosen = problems.shaped("tool_choice", choice, ChosenTool)
    if chosen is None:
        return "auto", None
    if chosen.type == "allowed_tools":
        return _allowed(problems, chosen, tools)
    if chosen.type in ("function", "custom"):
        return "required", frozenset(_names(problems, "tool_choice", [chosen], tools))
    text = "must be function, custom or allowed_tools; this worker has no tools of its own"
    problems.add("tool_choice.type", "one_of", text)
    return "auto", None


def _allowed(problems: Problems, chosen: ChosenTool, tools: Sequence[Tool]) -> tuple[CallChoice, frozenset[str] | None]:
    mode = mode_of(problems, "tool_choice", chosen.mode or "auto")
    given = chosen.tools or []
    if not given:
        problems.add("tool_choice.tools", "non_empty", "must not be empty")
    check_count(problems, "tool_choice.tools", len(given))
    read = [problems.shaped(f"tool_choice.tools[{at}]", raw, ChosenTool) for at, raw in enumerate(given[:MAX_TOOLS])]
    return mode, frozenset(_names(problems, "tool_choice.tools", filter(None, read), tools))


def _names(problems: Problems, place: str, chosen: Iterable[ChosenTool], tools: Sequence[Tool]) -> Iterator[str]:
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
