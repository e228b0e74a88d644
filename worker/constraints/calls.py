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
    HARMONY_THOUGHTS,
    OPTIONS,
    Inexpressible,
    Markers,
    Tool,
    begins_of,
    grammar_of_answer,
    grammar_of_call,
    grammar_of_marker,
    has_marker,
)
from worker.constraints.answer import Begin, Calls
from worker.constraints.constraint import Constraint, Unsupported, calls_matcher, enforceable, json_options
from worker.constraints.gbnf import BadGrammar, check_lark
from worker.constraints.schema_gaps import plain
from worker.constraints.vocabulary import Tokens
from worker.engine.channels import Marks, Turn
from worker.wire.chat_format import CallFormat
from worker.wire.jobs import OfferedTool, Tools

TEXT_ARGUMENT: Final = "input"
"""The member that has the text of a tool whose argument is one text."""
_COMBINING: Final = ("$ref", "allOf", "anyOf", "oneOf", "not", "if", "patternProperties", "additionalProperties")
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
        lark = grammar_of_marker(HARMONY_THOUGHTS, "<|channel|>final<|message|>", self._markers)
        return self._constraint(calls_matcher(self.tokenizer, lark, str))

    def whole(self, asked: Tools, schema: str | None) -> Constraint:
        """The constraint of an answer that is calls and nothing else, or an instance of the schema. Raises: BadTool,
        Unsupported.
        """
        form = self.form
        if form is None:
            raise BadTool("tools: this model's form of calls has no grammar; send tool_choice auto")
        otherwise = None if schema is None else _right_side(schema)
        return self._compiled(
            asked,
            lambda tools: grammar_of_answer(
                form, tools, self._markers, is_parallel=asked.is_parallel, otherwise=otherwise
            ),
        )

    def sleeping(self, asked: Tools) -> Calls | None:
        """The constraint of calls in a free answer; None if the form has no grammar. Raises: BadTool."""
        form = self.form
        if form is None:
            return None
        call = self._compiled(
            asked, lambda tools: grammar_of_call(form, tools, self._markers, is_parallel=asked.is_parallel)
        )
        begins = begins_of(form, [tool for _, tool in self._tools(asked)], self._markers)
        is_headed = form.form == "harmony"
        return Calls(
            call,
            tuple(Begin(tuple(self._markers.parts(begin))) for begin in begins),
            is_parallel=asked.is_parallel and not is_headed,
            is_anywhere=has_marker(form),
            is_headed=is_headed,
        )

    # ── compiling ────────────────────────────────────────────────────────────────────────────────

    @property
    def _markers(self) -> Markers:
        controls = {name: int(token) for token, name in self.marks.names.items()}
        return Markers(controls, frozenset(map(int, self.tokens.own_ends)))

    def _constraint(self, matcher: llguidance.LLMatcher) -> Constraint:
        return Constraint(matcher, self.tokens, None)

    def _compiled(self, asked: Tools, lark_of: Callable[[Seq[Tool]], str]) -> Constraint:
        """Compile all tools together; if that fails, find the one to blame. Raises: BadTool."""
        tools = self._tools(asked)
        try:
            lark = lark_of([tool for _, tool in tools])
            return self._constraint(calls_matcher(self.tokenizer, lark, str))
        except (Inexpressible, Unsupported) as error:
            for offered, tool in tools:
                self._check(offered, tool, lark_of)
            raise BadTool("tools: together they are too large or too complex; offer fewer") from error

    def _check(self, offered: OfferedTool, tool: Tool, lark_of: Callable[[Seq[Tool]], str]) -> None:
        """Raises: BadTool if this tool alone cannot be compiled."""
        try:
            matcher = calls_matcher(self.tokenizer, lark_of([tool]), lambda error: plain(error, tool.schema))
        except (Inexpressible, Unsupported) as error:
            raise BadTool(f"tools[{offered.place}]: {error}") from error
        del matcher

    def _tools(self, asked: Tools) -> list[tuple[OfferedTool, Tool]]:
        """Raises: BadTool."""
        return [(offered, self._tool(offered)) for offered in asked.tools]

    def _tool(self, offered: OfferedTool) -> Tool:
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
        options = json_options(schema)
        if self.form is not None and self.form.form == "python":
            # The readers of this notation know other escapes otherwise.
            options = {**options, "json_allowed_escapes": _PLAIN_ESCAPES, "json_allow_general_unicode_escapes": False}
        return Tool(offered.name, {**schema, OPTIONS: options})


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
