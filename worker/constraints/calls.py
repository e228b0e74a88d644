"""Offered tools become a grammar of calls in the model's form, compiled.

Owns the way from a job's tools to what is compiled, and which tool is to blame if that fails. Intake thread.
"""

import json
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any, Final

import llguidance

from worker.chat.tool_grammar import (
    Markers,
    Tool,
    begins_of,
    grammar_of_answer,
    grammar_of_call,
    grammar_of_head,
    has_marker,
    has_own_headers,
)
from worker.chat.tool_schema import OPTIONS, Inexpressible
from worker.chat.values import loaded, types_of
from worker.constraints.answer import Calls
from worker.constraints.constraint import Constraint, Unsupported, calls_matcher, enforceable, json_options
from worker.constraints.gbnf import BadGrammar, check_lark
from worker.constraints.schema_gaps import plain
from worker.constraints.spoken import Begin
from worker.constraints.vocabulary import Tokens
from worker.engine.channels import Marks, Turn
from worker.wire.chat_format import CallFormat
from worker.wire.tools import OfferedTool, Tools

TEXT_ARGUMENT: Final = "input"
"""The member that has the text of a tool whose argument is one text."""
_COMBINING: Final = ("$ref", "allOf", "anyOf", "oneOf", "not", "if", "patternProperties", "additionalProperties")
_TYPES: Final = ("array", "boolean", "null", "number", "object", "string")
_NOT_IN_THIS_FORM: Final = "its schema cannot be enforced in this model's form of calls, nor can the others without it"
_PLAIN_ESCAPES: Final = 'nrbtf\\"'


class BadTool(ValueError):
    """One of the tools cannot be enforced, or all together. The message begins with the tool's place."""


@dataclass(frozen=True, slots=True)
class CallCompiler:
    """Compiles the calls of one model."""

    tokenizer: llguidance.LLTokenizer
    tokens: Tokens
    marks: Marks
    form: CallFormat | None
    """None if calls cannot be constrained."""

    def head(self) -> Constraint | None:
        """The constraint of the markers before an answer's text in a form with headers; None in others."""
        if Turn.BODY not in self.marks.turns.values():
            return None
        return self._constraint(calls_matcher(self.tokenizer, grammar_of_head(self._markers), str))

    def whole(self, asked: Tools, schema: str | None) -> Constraint:
        """The constraint of an answer that is calls and nothing else, or an instance of the schema. Raises: BadTool,
        Unsupported.
        """
        form = self.form
        if form is None:
            raise BadTool("tools: this model's form of calls has no grammar; send tool_choice auto")
        otherwise = None if schema is None else _right_side(schema)
        return self._compiled(
            [self._offer(offered) for offered in asked.tools],
            lambda tools: grammar_of_answer(
                form, tools, self._markers, is_parallel=asked.is_parallel, otherwise=otherwise
            ),
        )

    def sleeping(self, asked: Tools) -> tuple[Calls | None, tuple[int, ...]]:
        """The constraint of calls in a free answer, and the places of tools whose schemas it does not enforce, or whose
        names no call can have.

        Such a tool's arguments are any object, unless the client insists on its schema. There is no constraint if the
        form has no grammar, or cannot write any object. Raises: BadTool.
        """
        form = self.form
        if form is None:
            return None, ()

        def lark_of(tools: Seq[Tool]) -> str:
            return grammar_of_call(form, tools, self._markers, is_parallel=asked.is_parallel)

        reserved = [each for each in asked.tools if each.name in form.reserved and not each.is_strict]
        not_called = tuple(each.place for each in reserved)
        offers = [self._offer(each, may_be_loose=True) for each in asked.tools if each not in reserved]
        if not offers:
            return None, not_called
        try:
            call = self._call(form, offers, lark_of)
        except BadTool:
            offers = [self._loosened(each, lark_of) for each in offers]
            call = self._call(form, offers, lark_of)
        if call is None:
            return None, tuple(each.place for each in asked.tools)
        loose = tuple(sorted([*not_called, *(each.offered.place for each in offers if each.is_loose)]))
        begins = begins_of(form, [each.tool for each in offers], self._markers)
        is_headed = form.form == "harmony"
        return Calls(
            call,
            tuple(map(self._begin, begins)),
            is_parallel=asked.is_parallel and (not is_headed or has_own_headers(form)),
            is_anywhere=has_marker(form),
            is_headed=is_headed,
            before=self._begin(form.call_begin).encoded(self.tokens) if form.is_begun else b"",
        ), loose

    def _begin(self, text: str) -> Begin:
        return Begin(tuple(self._markers.parts(text)))

    # ── compiling ────────────────────────────────────────────────────────────────────────────────

    @property
    def _markers(self) -> Markers:
        return markers_of(self.marks, self.tokens)

    def _constraint(self, matcher: llguidance.LLMatcher) -> Constraint:
        return Constraint(matcher, self.tokens)

    def _compiled(self, offers: Seq["_Offer"], lark_of: Callable[[Seq[Tool]], str]) -> Constraint:
        """Compile all tools together; if that fails, find the one to blame. Raises: BadTool."""
        try:
            lark = lark_of([each.tool for each in offers])
            return self._constraint(calls_matcher(self.tokenizer, lark, str))
        except (Inexpressible, Unsupported) as error:
            for each in offers:
                self._check(each, lark_of)
            raise BadTool("tools: together they are too large or too complex; offer fewer") from error

    def _check(self, offer: "_Offer", lark_of: Callable[[Seq[Tool]], str]) -> None:
        """Raises: BadTool if this tool alone cannot be compiled."""
        try:
            matcher = calls_matcher(
                self.tokenizer, lark_of([offer.tool]), lambda error: plain(error, offer.tool.schema)
            )
        except (Inexpressible, Unsupported) as error:
            raise BadTool(f"tools[{offer.offered.place}]: {error}") from error
        del matcher

    def _call(self, form: CallFormat, offers: Seq["_Offer"], lark_of: Callable[[Seq[Tool]], str]) -> Constraint | None:
        """The constraint of one call; None if the form cannot write any object and a tool takes it. Raises: BadTool."""
        loose = [each.offered for each in offers if each.is_loose]
        if not loose or form.form != "gemma":
            return self._compiled(offers, lark_of)
        if not all(_may_be_loose(each.offered) for each in offers):
            raise BadTool(f"tools[{loose[0].place}]: {_NOT_IN_THIS_FORM}")
        return None

    def _offer(self, offered: OfferedTool, *, may_be_loose: bool = False) -> "_Offer":
        """The tool with its schema, or with any object if the schema cannot be enforced. Raises: BadTool."""
        try:
            return _Offer(offered, self._tool(offered))
        except BadTool:
            if not may_be_loose or not _may_be_loose(offered):
                raise
            return self._loose(offered)

    def _loosened(self, offer: "_Offer", lark_of: Callable[[Seq[Tool]], str]) -> "_Offer":
        """The same tool, with any object if it alone cannot be compiled. Raises: BadTool."""
        if offer.is_loose or not _may_be_loose(offer.offered):
            return offer
        try:
            self._check(offer, lark_of)
        except BadTool:
            return self._loose(offer.offered)
        return offer

    def _loose(self, offered: OfferedTool) -> "_Offer":
        assert self.form is not None
        # In these forms each argument's name is written apart from its value.
        names_each = self.form.form == "python" or bool(self.form.parameter_begin)
        return _Offer(offered, self._with_options(offered, _any_object(offered, names_each=names_each)), is_loose=True)

    def _tool(self, offered: OfferedTool) -> Tool:
        """Raises: BadTool."""
        try:
            if offered.grammar is not None:
                check_lark(offered.grammar)
                return Tool(offered.name, _of_text({}), text=offered.grammar)
            if offered.is_text:
                return Tool(
                    offered.name, _of_text({} if offered.regex is None else {"pattern": f"^(?:{offered.regex})$"})
                )
            found = enforceable(offered.parameters)
        except (Unsupported, BadGrammar) as error:
            raise BadTool(f"tools[{offered.place}]: {error}") from error
        schema = _of_object(found.readable)
        if schema is None:
            raise BadTool(f"tools[{offered.place}]: the schema of its parameters must be that of an object")
        return self._with_options(offered, schema)

    def _with_options(self, offered: OfferedTool, schema: dict[str, Any]) -> Tool:
        options = json_options(schema)
        if self.form is not None and self.form.form == "python":
            # The readers of this notation know other escapes otherwise.
            options = {**options, "json_allowed_escapes": _PLAIN_ESCAPES, "json_allow_general_unicode_escapes": False}
        return Tool(offered.name, {**schema, OPTIONS: options})


def markers_of(marks: Marks, tokens: Tokens) -> Markers:
    """The markers of a vocabulary that are control tokens."""
    controls = {name: int(token) for token, name in marks.names.items()}
    return Markers(controls, frozenset(map(int, tokens.own_ends)))


@dataclass(frozen=True, slots=True)
class _Offer:
    """An offered tool, and what its calls are held to."""

    offered: OfferedTool
    tool: Tool
    is_loose: bool = False
    """True if its arguments may be any object."""


def _may_be_loose(offered: OfferedTool) -> bool:
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


def _of_text(more: dict[str, Any]) -> dict[str, Any]:
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {TEXT_ARGUMENT: {"type": "string", **more}},
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
