"""The tools that a request offers, as one list for every protocol, and the calls that it allows."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol, TypeVar, get_args

import msgspec

from worker.apis.core.bodies import Problems
from worker.apis.core.conversation import check_depth
from worker.wire.encoding import encode_json
from worker.wire.jobs import SamplingParams
from worker.wire.prompts import OfferedTool, Tools

MAX_TOOLS = 512
"""The most tools of one request. An agent with several MCP servers offers some 200."""

ToolKind = Literal["function", "custom"]
"""A function's arguments are a JSON object that its schema allows. A custom tool's only argument is a text."""
CallChoice = Literal["none", "auto", "required"]
CHOICES: tuple[CallChoice, ...] = get_args(CallChoice)

TEXT_ARGUMENT = "input"
"""The argument of a custom tool, which the model calls like a function with this one argument."""

_NAME = re.compile(r"[A-Za-z0-9_.:/-]{1,128}")
"""Names go into prompts and are read out of answers between markers, so no character may belong to one."""
_BETWEEN_NAMES = "__"
"""The text between a namespace and a name in the model's name for a tool."""
_NAME_RULE = "must be 1 to 128 ASCII letters, digits or characters of _.:/-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """One tool that the model may call."""

    name: str
    """The model's name for it."""
    given_name: str
    """The client's name for it, without its namespace."""
    namespace: str | None = None
    description: str = ""
    schema: Mapping[str, Any]
    """The schema of its arguments, in canonical order."""
    kind: ToolKind = "function"
    is_strict: bool = False
    """True if the client asks for arguments that satisfy the whole schema."""
    place: str = "tools"
    """Its place in the request."""
    grammar: str | None = None
    """The grammar of a custom tool's text in Lark, or None."""
    regex: str | None = None
    """The regular expression of a custom tool's text, or None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolUse:
    """The tools of one request, and what it allows to be done with them."""

    tools: tuple[Tool, ...] = ()
    choice: CallChoice = "auto"
    """required: the answer is a call."""
    only: frozenset[str] | None = None
    """The model's names of the tools that may be called, if they are not all."""
    is_parallel: bool = True
    """True if one answer may have several calls."""

    @property
    def callable(self) -> tuple[Tool, ...]:
        """The tools that the answer may call."""
        return tuple(filter(self._may_call, self.tools))

    def _may_call(self, tool: Tool) -> bool:
        return self.choice != "none" and (self.only is None or tool.name in self.only)

    def for_template(self) -> list[dict[str, Any]] | None:
        """The tools in the only form that templates get, whatever protocol has brought them; None if none may be
        called. A choice among the tools does not change them, so that the prompts of one conversation have the same
        prefix."""
        functions = (
            {"name": tool.name, "description": tool.description, "parameters": tool.schema} for tool in self.tools
        )
        return [{"type": "function", "function": function} for function in functions] if self.callable else None

    def schemas(self) -> dict[str, object]:
        """The schemas of the tools that the answer may call, by the model's names."""
        return {tool.name: tool.schema for tool in self.callable}

    def for_engine(self) -> Tools | None:
        """The calls that the answer may have; None if it may have none. The places are those in `tools`."""
        offered = tuple(
            OfferedTool(
                name=tool.name,
                place=at,
                parameters=encode_json(tool.schema).decode(),
                is_text=tool.kind == "custom",
                grammar=tool.grammar,
                regex=tool.regex,
                is_strict=tool.is_strict,
            )
            for at, tool in enumerate(self.tools)
            if self._may_call(tool)
        )
        if not offered:
            return None
        return Tools(tools=offered, is_required=self.choice == "required", is_parallel=self.is_parallel)

    def named(self, name: str) -> Tool | None:
        """The tool of this name of the model's."""
        return next((tool for tool in self.tools if tool.name == name), None)


NO_TOOLS = ToolUse(choice="none")


@dataclass(slots=True)
class Offered:
    """The tools of a request, as its protocol's reader finds them."""

    use: ToolUse = NO_TOOLS
    skipped: list[str] = field(default_factory=list)
    """The names of tools that the worker does not have."""
    unread: list[str] = field(default_factory=list)
    """The places of members without effect."""
    echoed: list[dict[str, Any]] = field(default_factory=list)
    """The tools for the answer's own `tools`, with all the members that its type requires."""


class Spelled(Protocol):
    """A tool as a client sends it. The name of the schema's field differs between protocols."""

    @property
    def name(self) -> str | None: ...
    @property
    def description(self) -> str | None: ...
    @property
    def strict(self) -> bool | None: ...


Shape = TypeVar("Shape", bound=msgspec.Struct)


def listed(
    problems: Problems, place: str, tools: object, shape: type[Shape]
) -> Iterator[tuple[str, Shape, dict[str, Any]]]:
    """Yield the tools of a list with their places, in their shape and as they were sent."""
    if tools is not None and not isinstance(tools, list):
        problems.add(place, "type", "Expected `array`", subject=f"{place}:")
    for at, raw in enumerate(tools if isinstance(tools, list) else ()):
        if problems.is_full:
            return
        tool = problems.shaped(f"{place}[{at}]", raw, shape)
        if tool is not None:
            yield f"{place}[{at}]", tool, raw


class ChosenTool(msgspec.Struct, frozen=True, kw_only=True):
    """A choice of one tool, or of several, as an object. Protocols have further fields."""

    type: str = "function"


Chosen = TypeVar("Chosen", bound=ChosenTool)


def names_one(choice: object) -> bool:
    """True if a choice is one tool, which is called once then."""
    return isinstance(choice, dict) and choice.get("type") != "allowed_tools"


def flattened(namespace: str | None, name: str) -> str:
    """The model's name for a tool."""
    return name if namespace is None else f"{namespace}{_BETWEEN_NAMES}{name}"


def function_tool(
    problems: Problems, place: str, spelled: Spelled, schema_field: str = "parameters", *, namespace: str | None = None
) -> Tool | None:
    """The tool; None if it has no name. `place` is its place in the request."""
    tool = named_tool(problems, place, spelled, namespace)
    schema: Mapping[str, Any] = getattr(spelled, schema_field) or {}
    if tool is None or not _check_schema(problems, f"{place}.{schema_field}", schema):
        return tool
    return replace(tool, schema=arguments_schema(schema), is_strict=bool(spelled.strict))


def named_tool(problems: Problems, place: str, spelled: Spelled, namespace: str | None) -> Tool | None:
    """The tool without its schema; None if it has no name."""
    if spelled.name is None:
        problems.add(f"{place}.name", "required", "is missing")
        return None
    name = flattened(namespace, spelled.name)
    if not _NAME.fullmatch(name):
        problems.add(f"{place}.name", "tool_name", _NAME_RULE)
    return Tool(
        name=name,
        given_name=spelled.name,
        namespace=namespace,
        description=spelled.description or "",
        schema={},
        place=place,
    )


def check_count(problems: Problems, place: str, n_tools: int) -> None:
    if n_tools > MAX_TOOLS:
        text = f"must have at most {MAX_TOOLS} entries (got {n_tools})"
        problems.add(place, f"max_count({MAX_TOOLS})", text)


def check_tools(problems: Problems, tools: Sequence[Tool]) -> None:
    """There may be MAX_TOOLS tools, each with a name of its own."""
    check_count(problems, "tools", len(tools))
    own, taken = Problems(), dict[str, str]()
    for tool in tools:
        other = taken.setdefault(tool.name, tool.place)
        if other != tool.place:
            text = f"is the name of {other}, too; give each tool a name of its own"
            own.add(f"{tool.place}.name", "unique", text)
    problems.take(own)


def read_choice(problems: Problems, choice: object, shape: type[Chosen], kinds: Sequence[str]) -> Chosen | CallChoice:
    """The choice as a word, or else an object of a type in `kinds` or `allowed_tools`."""
    if choice is None:
        return "auto"
    for word in CHOICES:
        if choice == word:
            return word
    if isinstance(choice, str):
        problems.add("tool_choice", "one_of", f"must be one of {', '.join(CHOICES)}, or name a tool")
        return "auto"
    chosen = problems.shaped("tool_choice", choice, shape)
    if chosen is not None and chosen.type not in (*kinds, "allowed_tools"):
        text = f"must be {', '.join(kinds)} or allowed_tools; this worker has no tools of its own"
        problems.add("tool_choice.type", "one_of", text)
        return "auto"
    return chosen or "auto"


def allowed_mode(problems: Problems, place: str, mode: str, tools: Sequence[object]) -> CallChoice:
    """The choice among allowed tools, of which there must be some."""
    word: CallChoice = "required" if mode == "required" else "auto"
    if mode != word:
        problems.add(f"{place}.mode", "one_of", "must be auto or required")
    if not tools:
        problems.add(f"{place}.tools", "non_empty", "must not be empty")
    return word


def checked_use(
    problems: Problems, tools: Iterable[Tool], choice: CallChoice, only: frozenset[str] | None, *, is_parallel: bool
) -> ToolUse:
    """The tools and the choice among them, which they must be able to satisfy."""
    use = ToolUse(tools=tuple(tools), choice=choice, only=only, is_parallel=is_parallel)
    missing = (use.only or frozenset()) - {tool.name for tool in use.tools}
    if use.choice == "required" and not use.tools:
        problems.add("tool_choice", "needs(tools)", "needs tools; remove it")
    elif missing:
        named = "a tool" if len(missing) == 1 else f"{len(missing)} tools"
        problems.add("tool_choice", "known_tool", f"names {named} that tools does not have; choose one of those")
    return use


def check_constraint(use: ToolUse, fields: SamplingParams, names: Mapping[str, str]) -> None:
    """A request that offers tools has no constraint on the whole answer. A schema is none: an answer that may be a call
    is a call or an instance of the schema. `names` has the client's names of the fields. Raises: FieldsRefused."""
    problems = Problems()
    for name in ("grammar", "regex"):
        if use.callable and getattr(fields, name) is not None:
            text = "cannot go with tools; remove one of them, or send tool_choice none"
            problems.add(names.get(name, name), "exclusive(tools)", text)
    problems.check()


_FIRST = ("type", "title", "description", "enum", "const", "properties", "required", "additionalProperties", "items")
"""The keywords that come first in the canonical order; the others follow by name."""
_ORDER = {name: at for at, name in enumerate(_FIRST)}
_SCHEMA = frozenset(
    {"items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames", "unevaluatedItems"}
)
"""The keywords whose value is a schema."""
_SCHEMAS = frozenset({"anyOf", "oneOf", "allOf", "prefixItems"})
_NAMED_SCHEMAS = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})


def arguments_schema(schema: Mapping[str, Any]) -> Any:
    """The canonical schema of a call's arguments: an object, with the keywords in one order.

    Two spellings of one schema become equal: another order of keywords, `type` and `properties` left out, keywords
    without a value. The properties keep their order, because the model writes its arguments in it.
    """
    return canonical({"type": "object", "properties": {}, **{k: v for k, v in schema.items() if v is not None}})


def canonical(schema: Any) -> Any:
    """The schema with its keywords in one order, and those of the schemas in it. Values that are data stay as they
    are."""
    if not isinstance(schema, dict):
        return schema
    names = sorted(schema, key=lambda name: (_ORDER.get(name, len(_FIRST)), name))
    return {name: _canonical_value(name, schema[name]) for name in names}


def _canonical_value(name: str, value: Any) -> Any:
    if name in _NAMED_SCHEMAS and isinstance(value, dict):
        return {key: canonical(inner) for key, inner in value.items()}
    if name in _SCHEMAS and isinstance(value, list):
        return list(map(canonical, value))
    return canonical(value) if name in _SCHEMA else value


def _check_schema(problems: Problems, place: str, schema: Mapping[str, Any]) -> bool:
    n_before = len(problems.found)
    if check_depth(problems, place, schema):
        return False
    if schema.get("type") not in (None, "object"):
        problems.add(f"{place}.type", "object_only", "must be object, because a call's arguments are one")
    if not isinstance(schema.get("properties"), dict | None):
        problems.add(f"{place}.properties", "type", "must be an object")
    return len(problems.found) == n_before
