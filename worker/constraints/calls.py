"""Offered tools become a grammar of calls in the model's form, compiled; or it is found which tool is to blame."""

import json
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any, Final

import llguidance

from worker.constraints.answer import Calls
from worker.constraints.constraint import Constraint, Unsupported, enforceable, json_options, matcher_of
from worker.constraints.gbnf import BadGrammar, check_lark
from worker.constraints.schema_gaps import plain
from worker.constraints.text_markers import Begin
from worker.constraints.vocabulary import Tokens
from worker.formats.grammar.tool_grammar import (
    Controls,
    Tool,
    begins_of,
    grammar_of_answer,
    grammar_of_call,
    grammar_of_head,
    has_marker,
    has_own_headers,
)
from worker.formats.grammar.tool_schema import OPTIONS, Inexpressible, Schema
from worker.formats.read.values import loaded, types_of
from worker.wire.chat_format import CallFormat
from worker.wire.jobs import TokenId
from worker.wire.prompts import OfferedTool, Tools

TEXT_ARGUMENT: Final = "input"
"""The member that has the text of a tool whose argument is one text."""
_COMBINING: Final = ("$ref", "allOf", "anyOf", "oneOf", "not", "if", "patternProperties", "additionalProperties")
_TYPES: Final = ("array", "boolean", "null", "number", "object", "string")
_NOT_IN_THIS_FORM: Final = "its schema cannot be enforced in this model's form of calls, nor can the others without it"
_PLAIN_ESCAPES: Final = 'nrbtf\\"'

LarkOf = Callable[[Seq[Tool]], str]
"""The grammar of calls of some tools. Raises: Inexpressible."""


class BadTool(ValueError):
    """One of the tools cannot be enforced, or all together. The message begins with the tool's place."""


@dataclass(frozen=True, slots=True)
class CallCompiler:
    """Compiles the calls of one model."""

    tokenizer: llguidance.LLTokenizer
    tokens: Tokens
    controls: Controls
    form: CallFormat | None
    """None if calls cannot be constrained."""

    def head(self) -> Constraint:
        """The constraint of the markers before an answer's text in a form with headers."""
        return self._constraint(grammar_of_head(self.controls))

    def whole(self, asked: Tools, schema: str | None) -> Constraint:
        """The constraint of an answer that is calls and nothing else, or an instance of the schema. Raises: BadTool,
        Unsupported.
        """
        form = self.form
        if form is None:
            raise BadTool("tools: this model's form of calls has no grammar; send tool_choice auto")
        otherwise = None if schema is None else _right_side(schema)

        def lark_of(tools: Seq[Tool]) -> str:
            return grammar_of_answer(form, tools, self.controls, is_parallel=asked.is_parallel, otherwise=otherwise)

        return self._compiled([self._tool(offered) for offered in asked.tools], lark_of)

    def in_free_answer(self, asked: Tools) -> tuple[Calls | None, tuple[int, ...]]:
        """The constraint of calls in a free answer, and the places of tools whose schemas it does not enforce, or whose
        names no call can have.

        Such a tool's arguments are any object, unless the client insists on its schema. There is no constraint if the
        form has no grammar, or cannot write any object. Raises: BadTool.
        """
        form = self.form
        if form is None:
            return None, ()

        def lark_of(tools: Seq[Tool]) -> str:
            return grammar_of_call(form, tools, self.controls, is_parallel=asked.is_parallel)

        reserved = [each for each in asked.tools if each.name in form.reserved and not each.is_strict]
        unenforced = [each.place for each in reserved]
        tools = [self._tool_or_any(each) for each in asked.tools if each not in reserved]
        if not tools:
            return None, tuple(unenforced)
        try:
            call = self._call(form, tools, lark_of)
        except BadTool:
            tools = [self._relaxed(each, lark_of) for each in tools]
            call = self._call(form, tools, lark_of)
        if call is None:
            return None, tuple(each.place for each in asked.tools)
        unenforced += [each.offered.place for each in tools if not each.is_enforced]
        is_headed = form.form == "harmony"
        return Calls(
            call,
            tuple(map(self._begin, begins_of(form, tools, self.controls))),
            is_parallel=asked.is_parallel and (not is_headed or has_own_headers(form)),
            is_anywhere=has_marker(form),
            is_headed=is_headed,
            before=self._begin(form.call_begin).encoded(self.tokens) if form.is_begun else b"",
        ), tuple(sorted(unenforced))

    def _begin(self, text: str) -> Begin:
        return Begin(tuple(self.controls.parts(text)))

    def _constraint(self, lark: str, in_words: Callable[[str], str] = str) -> Constraint:
        """Raises: Unsupported."""
        source = llguidance.LLMatcher.grammar_from_lark(lark)
        return Constraint(matcher_of(self.tokenizer, "calls", source, in_words), self.tokens)

    def _compiled(self, tools: Seq[Tool], lark_of: LarkOf) -> Constraint:
        """Compile all tools together; if that fails, find the one to blame. Raises: BadTool."""
        try:
            return self._constraint(lark_of(tools))
        except (Inexpressible, Unsupported) as error:
            for each in tools:
                self._check(each, lark_of)
            raise BadTool("tools: together they are too large or too complex; offer fewer") from error

    def _check(self, tool: Tool, lark_of: LarkOf) -> None:
        """Raises: BadTool if this tool alone cannot be compiled."""
        try:
            self._constraint(lark_of([tool]), lambda error: plain(error, tool.schema))
        except (Inexpressible, Unsupported) as error:
            raise BadTool(f"tools[{tool.offered.place}]: {error}") from error

    def _call(self, form: CallFormat, tools: Seq[Tool], lark_of: LarkOf) -> Constraint | None:
        """The constraint of one call; None if the form cannot write any object and a tool takes it. Raises: BadTool."""
        unenforced = [each.offered for each in tools if not each.is_enforced]
        if not unenforced or form.form != "gemma":
            return self._compiled(tools, lark_of)
        if not all(_may_be_any(each.offered) for each in tools):
            raise BadTool(f"tools[{unenforced[0].place}]: {_NOT_IN_THIS_FORM}")
        return None

    def _tool_or_any(self, offered: OfferedTool) -> Tool:
        """The tool with its schema, or with any object if the schema cannot be enforced. Raises: BadTool."""
        try:
            return self._tool(offered)
        except BadTool:
            if not _may_be_any(offered):
                raise
            return self._any(offered)

    def _relaxed(self, tool: Tool, lark_of: LarkOf) -> Tool:
        """The same tool, with any object if it alone cannot be compiled. Raises: BadTool."""
        if tool.is_enforced and _may_be_any(tool.offered):
            try:
                self._check(tool, lark_of)
            except BadTool:
                return self._any(tool.offered)
        return tool

    def _any(self, offered: OfferedTool) -> Tool:
        assert self.form is not None
        # In these forms each argument's name is written apart from its value.
        names_each = self.form.form == "python" or bool(self.form.parameter_begin)
        return Tool(offered, self._with_options(_any_object(offered, names_each=names_each)), is_enforced=False)

    def _tool(self, offered: OfferedTool) -> Tool:
        """Raises: BadTool."""
        try:
            if offered.grammar is not None:
                check_lark(offered.grammar)
                return Tool(offered, _of_text(None))
            if offered.is_text:
                return Tool(offered, _of_text(offered.regex))
            found = enforceable(offered.parameters)
        except (Unsupported, BadGrammar) as error:
            raise BadTool(f"tools[{offered.place}]: {error}") from error
        schema = _of_object(found.readable)
        if schema is None:
            raise BadTool(f"tools[{offered.place}]: the schema of its parameters must be that of an object")
        return Tool(offered, self._with_options(schema))

    def _with_options(self, schema: dict[str, Any]) -> Schema:
        options = json_options(schema)
        if self.form is not None and self.form.form == "python":
            # The readers of this notation know other escapes otherwise.
            options = {**options, "json_allowed_escapes": _PLAIN_ESCAPES, "json_allow_general_unicode_escapes": False}
        return {**schema, OPTIONS: options}


def controls_of(names: Mapping[TokenId, str], tokens: Tokens) -> Controls:
    """The control tokens of a vocabulary by their names, and those that end an answer."""
    return Controls({name: int(token) for token, name in names.items()}, frozenset(map(int, tokens.own_ends)))


def _may_be_any(offered: OfferedTool) -> bool:
    return not offered.is_strict and not offered.is_text


def _any_object(offered: OfferedTool, *, names_each: bool) -> dict[str, Any]:
    """The schema of any object, or of one whose members have no more than their types."""
    schema = loaded(offered.parameters) if names_each else None
    if not isinstance(schema, dict):
        return {"type": "object"}
    members = schema.get("properties") or {}
    return {
        "type": "object",
        "properties": {name: {"type": [*(sorted(types_of(each, schema)) or _TYPES)]} for name, each in members.items()},
    }


def _right_side(schema: str) -> str:
    """Raises: Unsupported."""
    found = enforceable(schema)
    return f"%json {json.dumps({**found.readable, OPTIONS: json_options(found.schema)})}"


def _of_text(regex: str | None) -> Schema:
    """The schema of an argument that is one text, which the regular expression takes if there is one."""
    text = {"type": "string"} if regex is None else {"type": "string", "pattern": f"^(?:{regex})$"}
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {TEXT_ARGUMENT: text},
        "required": [TEXT_ARGUMENT],
        "additionalProperties": False,
    }
    return {**schema, OPTIONS: json_options(schema)}


def _of_object(schema: dict[str, Any]) -> dict[str, Any] | None:
    """The schema of an object without names that are not declared; None if it is not an object's."""
    kind = schema.get("type", "object")
    if kind != "object" and not (isinstance(kind, list) and "object" in kind):
        return None
    found: dict[str, Any] = _closed({**schema, "type": "object"})
    return found


def _closed(schema: Any) -> Any:
    """The same schema for fewer instances: an object has only the names that are declared, where it says nothing else.
    Other names would be the model's invention.
    """
    if not isinstance(schema, dict):
        return schema
    made = dict(schema)
    if isinstance(properties := schema.get("properties"), dict):
        made["properties"] = {name: _closed(each) for name, each in properties.items()}
        is_plain = not any(key in schema for key in _COMBINING) and not schema.keys() & {"minProperties"}
        if is_plain and properties.keys() >= set(schema.get("required", [])):
            made["additionalProperties"] = False
    if isinstance(schema.get("items"), dict):
        made["items"] = _closed(schema["items"])
    return made
