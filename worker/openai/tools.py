"""The tools that a request offers, as one internal list for every protocol, and the calls that it allows.

Owns: the names by which the model knows the tools, the canonical form in which a template gets them, and the choice
among them. Pure.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import msgspec

from worker.protocol.bodies import FieldError
from worker.protocol.constraints import MAX_DEPTH
from worker.wire.encoding import encode_json
from worker.wire.jobs import Sampling
from worker.wire.tools import OfferedTool, Tools

MAX_TOOLS = 512
"""The most tools of one request. An agent with several MCP servers offers some 200."""

ToolKind = Literal["function", "custom"]
"""A function's arguments are a JSON object that its schema allows. A custom tool's only argument is a text."""
Choice = Literal["none", "auto", "required"]
CHOICES: tuple[Choice, ...] = get_args(Choice)

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

    def for_template(self) -> dict[str, Any]:
        """The tool in the only form that templates get, whatever protocol has brought it."""
        return {
            "type": "function",
            "function": {"name": self.name, "description": self.description, "parameters": self.schema},
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolUse:
    """The tools of one request, and what it allows to be done with them."""

    tools: tuple[Tool, ...] = ()
    choice: Choice = "auto"
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
        """The tools for the prompt; None if there are none, or if none may be called. A choice among the tools does not
        change them, so that the prompts of one conversation have the same prefix."""
        return [tool.for_template() for tool in self.tools] if self.callable else None

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


# ── reading ──────────────────────────────────────────────────────────────────────────────────────


def names_one(choice: object) -> bool:
    """True if a choice is one tool, which is called once then."""
    return isinstance(choice, dict) and choice.get("type") != "allowed_tools"


def flattened(namespace: str | None, name: str) -> str:
    """The model's name for a tool."""
    return name if namespace is None else f"{namespace}{_BETWEEN_NAMES}{name}"


def function_tool(
    place: str,
    errors: list[FieldError],
    *,
    name: str,
    description: str | None,
    schema: Mapping[str, Any] | None,
    schema_field: str,
    is_strict: bool = False,
    namespace: str | None = None,
) -> Tool:
    """The tool. `place` is its place in the request, `schema_field` the name of the schema's field in it. The errors
    gain an entry for each broken rule."""
    errors += name_errors(f"{place}.name", flattened(namespace, name))
    where = f"{place}.{schema_field}"
    found = list(_schema_errors(where, schema or {}))
    errors += found
    return Tool(
        name=flattened(namespace, name),
        given_name=name,
        namespace=namespace,
        description=description or "",
        schema={} if found else arguments_schema(schema or {}),
        is_strict=is_strict,
        place=place,
    )


def custom_tool(
    place: str,
    errors: list[FieldError],
    *,
    name: str,
    description: str | None,
    grammar: str | None = None,
    regex: str | None = None,
    namespace: str | None = None,
) -> Tool:
    """A tool whose call is one text. The model gets the text's form in the description of the argument."""
    errors += name_errors(f"{place}.name", flattened(namespace, name))
    about = "The text for the tool."
    if grammar is not None:
        about = f"The text for the tool. It follows this Lark grammar:\n{grammar}"
    elif regex is not None:
        about = f"The text for the tool. It matches this regular expression:\n{regex}"
    text = {"type": "string", "description": about}
    return Tool(
        name=flattened(namespace, name),
        given_name=name,
        namespace=namespace,
        description=description or "",
        schema={"type": "object", "properties": {TEXT_ARGUMENT: text}, "required": [TEXT_ARGUMENT]},
        kind="custom",
        place=place,
        grammar=grammar,
        regex=regex,
    )


def name_errors(place: str, name: str) -> Iterator[FieldError]:
    """The error of a name that no tool may have."""
    if not _NAME.fullmatch(name):
        yield FieldError(field=place, constraint="tool_name", message=f"{place} {_NAME_RULE}")


def count_errors(place: str, n_tools: int) -> Iterator[FieldError]:
    """The error of too many tools."""
    if n_tools > MAX_TOOLS:
        text = f"{place} must have at most {MAX_TOOLS} entries (got {n_tools})"
        yield FieldError(field=place, constraint=f"max_count({MAX_TOOLS})", message=text)


def twin_errors(places: Mapping[str, Tool]) -> Iterator[FieldError]:
    """The errors of tools that have the same name. `places` has the tools by their places in the request."""
    taken: dict[str, str] = {}
    for place, tool in places.items():
        other = taken.setdefault(tool.name, place)
        if other != place:
            text = f"{place}.name is the name of {other}, too; give each tool a name of its own"
            yield FieldError(field=f"{place}.name", constraint="unique", message=text)


def chosen_word(choice: object, errors: list[FieldError]) -> Choice | None:
    """The choice if it is a word or absent; None if it is an object, which each protocol reads itself. The errors
    gain an entry for an unknown word."""
    if choice is None:
        return "auto"
    for word in CHOICES:
        if choice == word:
            return word
    if not isinstance(choice, str):
        return None
    text = f"tool_choice must be one of {', '.join(CHOICES)}, or name a tool"
    errors.append(FieldError(field="tool_choice", constraint="one_of", message=text))
    return "auto"


def mode_of(place: str, mode: str, errors: list[FieldError]) -> Choice:
    """The choice among allowed tools. The errors gain an entry if it is none."""
    for word in CHOICES:
        if word == mode and word != "none":
            return word
    text = f"{place}.mode must be auto or required"
    errors.append(FieldError(field=f"{place}.mode", constraint="one_of", message=text))
    return "auto"


def choice_errors(place: str, use: ToolUse) -> Iterator[FieldError]:
    """The errors of a choice that the tools cannot satisfy."""
    if use.choice == "required" and not use.tools:
        yield FieldError(field=place, constraint="needs(tools)", message=f"{place} needs tools; remove it")
        return
    known = {tool.name for tool in use.tools}
    if missing := sorted((use.only or frozenset()) - known):
        text = f"{place} names {len(missing)} tools that tools does not have; choose one of those"
        if len(missing) == 1:
            text = f"{place} names a tool that tools does not have; choose one of those"
        yield FieldError(field=place, constraint="known_tool", message=text)


def constraint_errors(use: ToolUse, fields: Sampling, names: Mapping[str, str]) -> Iterator[FieldError]:
    """The error of a constraint on the whole answer of a request that offers tools. A schema is none: an answer that
    may be a call is a call or an instance of the schema. `names` has the client's names of the fields."""
    for name in ("grammar", "regex"):
        if use.callable and getattr(fields, name) is not None:
            field = names.get(name, name)
            text = f"{field} cannot go with tools; remove one of them, or send tool_choice none"
            yield FieldError(field=field, constraint="exclusive(tools)", message=text)


def without_schema(fields: Sampling, use: ToolUse) -> Sampling:
    """The fields without the schema of the text, if the answer is a call and so has no text."""
    return msgspec.structs.replace(fields, json_schema=None) if use.choice == "required" else fields


# ── schemas ──────────────────────────────────────────────────────────────────────────────────────

_FIRST = ("type", "title", "description", "enum", "const", "properties", "required", "additionalProperties", "items")
"""The keywords that come first in the canonical order; the others follow by name."""
_ORDER = {name: at for at, name in enumerate(_FIRST)}
_SCHEMA = frozenset(
    {"items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames", "unevaluatedItems"}
)
"""The keywords whose value is a schema."""
_SCHEMAS = frozenset({"anyOf", "oneOf", "allOf", "prefixItems"})
_NAMED_SCHEMAS = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})


def arguments_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The canonical schema of a call's arguments: an object, with the keywords in one order.

    Two spellings of one schema become equal: another order of keywords, `type` and `properties` left out, keywords
    without a value. The properties keep their order, because the model writes its arguments in it.
    """
    return canonical({"type": "object", "properties": {}, **{k: v for k, v in schema.items() if v is not None}})


def canonical(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema with its keywords in one order, and those of the schemas in it. Values that are data stay as they
    are."""
    names = sorted(schema, key=lambda name: (_ORDER.get(name, len(_FIRST)), name))
    return {name: _canonical_value(name, schema[name]) for name in names}


def _canonical_inside(value: Any) -> Any:
    return canonical(value) if isinstance(value, dict) else value


def _canonical_value(name: str, value: Any) -> Any:
    if name in _NAMED_SCHEMAS and isinstance(value, dict):
        return {key: _canonical_inside(inner) for key, inner in value.items()}
    if name in _SCHEMAS and isinstance(value, list):
        return [_canonical_inside(inner) for inner in value]
    return _canonical_inside(value) if name in _SCHEMA else value


def _schema_errors(place: str, schema: Mapping[str, Any]) -> Iterator[FieldError]:
    if _depth(schema) > MAX_DEPTH:
        text = f"{place} must be nested at most {MAX_DEPTH} deep"
        yield FieldError(field=place, constraint=f"max_depth({MAX_DEPTH})", message=text)
        return
    if schema.get("type") not in (None, "object"):
        text = f"{place}.type must be object, because a call's arguments are one"
        yield FieldError(field=f"{place}.type", constraint="object_only", message=text)
    if not isinstance(schema.get("properties"), dict | None):
        text = f"{place}.properties must be an object"
        yield FieldError(field=f"{place}.properties", constraint="type", message=text)


def _depth(value: object) -> int:
    """The number of levels of a value, or more than MAX_DEPTH; an encoder of JSON recurses once for each level."""
    level: list[object] = [value]
    depth = 0
    while level and depth <= MAX_DEPTH:
        inside = (one.values() if isinstance(one, dict) else one if isinstance(one, list) else () for one in level)
        level = [inner for some in inside for inner in some if isinstance(inner, dict | list)]
        depth += 1
    return depth
