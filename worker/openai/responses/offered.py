"""The tools of `POST /v1/responses` and the choice among them, as the internal list.

Owns: the kinds of tools. Functions, custom tools and namespaces of both are offered; the kinds that OpenAI runs itself
are left out and named. Pure.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Annotated, Any

import msgspec

from worker.openai.fields import read_field
from worker.openai.tools import (
    MAX_TOOLS,
    NO_TOOLS,
    Choice,
    Tool,
    ToolUse,
    choice_errors,
    chosen_word,
    count_errors,
    custom_tool,
    flattened,
    function_tool,
    mode_of,
    names_one,
    twin_errors,
)
from worker.protocol.bodies import MAX_ERRORS, FieldError
from worker.protocol.unread import unread
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


@dataclass(slots=True)
class Offered:
    """The tools of a request."""

    use: ToolUse = NO_TOOLS
    echoed: list[dict[str, Any]] = field(default_factory=list)
    """The tools for the answer's own `tools`, with all the members that its type requires."""
    skipped: list[str] = field(default_factory=list)
    """The names of tools that the worker does not have."""
    unread: list[str] = field(default_factory=list)
    """The places of members without effect."""


def read_tools(
    tools: object, choice: object, further: Mapping[str, object], *, is_parallel: bool, errors: list[FieldError]
) -> Offered:
    """The tools. `further`: lists of tools in the input, by their places; a tool whose name is taken counts once. The
    errors gain an entry for each broken rule."""
    offered = Offered()
    reader = _Reader(offered, errors)
    places = dict(reader.all_in("tools", tools))
    for place, more in further.items():
        taken = {tool.name for tool in places.values()}
        places |= {where: tool for where, tool in reader.all_in(place, more) if tool.name not in taken}
    errors += count_errors("tools", len(places))
    errors += islice(twin_errors(places), MAX_ERRORS)
    known = tuple(places.values())
    chosen, only = _choice(choice, known, errors)
    is_parallel = is_parallel and not names_one(choice)
    offered.use = ToolUse(tools=known, choice=chosen, only=only, is_parallel=is_parallel)
    errors += choice_errors("tool_choice", offered.use)
    return offered


class _Reader:
    """Reads the tools of one request, those of namespaces too."""

    def __init__(self, offered: Offered, errors: list[FieldError]) -> None:
        self._offered = offered
        self._errors = errors
        self._namespace: str | None = None

    def all_in(self, place: str, tools: object) -> Iterator[tuple[str, Tool]]:
        """Yield the tools with their places."""
        if tools is None:
            return
        if not isinstance(tools, list):
            self._refuse(place, "type", f"{place}: Expected `array`")
            return
        for at, raw in enumerate(tools):
            if len(self._errors) >= MAX_ERRORS:
                return
            values: dict[str, Any] = {}
            read_field(f"{place}[{at}]", raw, ResponseTool, values, self._errors)
            for where, tool in values.items():
                yield from self._one(where, tool, raw)

    def _one(self, place: str, tool: ResponseTool, raw: dict[str, Any]) -> Iterator[tuple[str, Tool]]:
        is_inside = self._namespace is not None
        if tool.type not in ("function", "custom", "namespace") or (is_inside and tool.type == "namespace"):
            self._offered.skipped.append(str(raw.get("server_label") or tool.name or tool.type))
            return
        if tool.name is None:
            self._refuse(f"{place}.name", "required", f"{place}.name is missing")
            return
        self._offered.unread += unread("tools", raw, ResponseTool)
        if not is_inside:
            self._offered.echoed.append(_echoed(tool, raw))
        match tool.type:
            case "namespace":
                self._namespace = tool.name
                yield from self.all_in(f"{place}.tools", tool.tools)
                self._namespace = None
            case "function":
                yield place, self._function(place, tool, tool.name)
            case _:
                yield place, self._custom(place, tool, tool.name)

    def _function(self, place: str, tool: ResponseTool, name: str) -> Tool:
        return function_tool(
            place,
            self._errors,
            name=name,
            description=tool.description,
            schema=tool.parameters,
            schema_field="parameters",
            is_strict=bool(tool.strict),
            namespace=self._namespace,
        )

    def _custom(self, place: str, tool: ResponseTool, name: str) -> Tool:
        form = tool.format or TextFormat()
        grammar = regex = None
        if form.type not in ("text", "grammar"):
            self._refuse(f"{place}.format.type", "one_of", f"{place}.format.type must be text or grammar")
        if form.type == "grammar":
            if form.definition is None:
                self._refuse(f"{place}.format.definition", "required", f"{place}.format.definition is missing")
            if form.syntax not in ("lark", "regex"):
                self._refuse(f"{place}.format.syntax", "one_of", f"{place}.format.syntax must be lark or regex")
            grammar = form.definition if form.syntax == "lark" else None
            regex = form.definition if form.syntax == "regex" else None
        return custom_tool(
            place,
            self._errors,
            name=name,
            description=tool.description,
            grammar=grammar,
            regex=regex,
            namespace=self._namespace,
        )

    def _refuse(self, field: str, constraint: str, text: str) -> None:
        self._errors.append(FieldError(field=field, constraint=constraint, message=text))


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


def _choice(choice: object, tools: tuple[Tool, ...], errors: list[FieldError]) -> tuple[Choice, frozenset[str] | None]:
    """The choice, and the model's names of the tools that it allows, if they are not all."""
    word = chosen_word(choice, errors)
    if word is not None:
        return word, None
    values: dict[str, Any] = {}
    read_field("tool_choice", choice, ChosenTool, values, errors)
    for chosen in values.values():
        if chosen.type == "allowed_tools":
            return _allowed(chosen, tools, errors)
        if chosen.type in ("function", "custom"):
            return "required", frozenset(_names("tool_choice", [chosen], tools, errors))
        text = "tool_choice.type must be function, custom or allowed_tools; this worker has no tools of its own"
        errors.append(FieldError(field="tool_choice.type", constraint="one_of", message=text))
    return "auto", None


def _allowed(
    chosen: ChosenTool, tools: tuple[Tool, ...], errors: list[FieldError]
) -> tuple[Choice, frozenset[str] | None]:
    mode = mode_of("tool_choice", chosen.mode or "auto", errors)
    given = chosen.tools or []
    if not given:
        text = "tool_choice.tools must not be empty"
        errors.append(FieldError(field="tool_choice.tools", constraint="non_empty", message=text))
    errors += count_errors("tool_choice.tools", len(given))
    read: dict[str, Any] = {}
    for at, raw in enumerate(given[:MAX_TOOLS]):
        read_field(f"tool_choice.tools[{at}]", raw, ChosenTool, read, errors)
    return mode, frozenset(_names("tool_choice.tools", read.values(), tools, errors))


def _names(
    place: str, chosen: Iterable[ChosenTool], tools: tuple[Tool, ...], errors: list[FieldError]
) -> Iterator[str]:
    """Yield the model's names of the chosen tools. A name that no tool has is yielded as it is."""
    for one in chosen:
        if one.name is None:
            where = f"{place}.name"
            errors.append(FieldError(field=where, constraint="required", message=f"{where} is missing"))
            continue
        name = flattened(one.namespace, one.name)
        known = (
            tool.name for tool in tools if tool.name == name or (one.namespace is None and tool.given_name == name)
        )
        yield next(known, name)
