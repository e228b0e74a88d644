"""The constraints of one model's jobs: what a job asks for becomes a constraint, or a refusal.

Offered tools become a grammar of calls in the model's form, compiled; or it is found which tool is to blame.
"""

import json
from collections.abc import Callable
from collections.abc import Sequence as Seq
from functools import partial
from typing import Any, Final, TypeVar

import llguidance

from worker.constraints.answer import AnswerConstraint, Calls
from worker.constraints.constraint import (
    UNTRIED_BYTES,
    Field,
    Matcher,
    Unsupported,
    compiled,
    enforceable,
    json_options,
    matcher_of,
)
from worker.constraints.gbnf import BadGrammar, check_lark
from worker.constraints.schema_gaps import plain
from worker.constraints.text_markers import TextMarker, TextReasoning
from worker.constraints.vocabulary import Tokens, Vocabulary
from worker.engine.channels import NO_CONTROL_TOKENS, ControlTokens, Transition
from worker.formats.grammar.tool_grammar import (
    Controls,
    EnforcedTool,
    begins_of,
    grammar_of_answer,
    grammar_of_call,
    grammar_of_head,
    has_marker,
    has_own_headers,
)
from worker.formats.grammar.tool_schema import OPTIONS, Inexpressible, Schema
from worker.formats.read.values import loaded, types_of
from worker.wire.chat_format import HERMES, CallFormat, ChatFormat
from worker.wire.jobs import Submit
from worker.wire.messages import Violation
from worker.wire.prompts import OfferedTool, Tools

TEXT_ARGUMENT: Final = "input"
"""The member that has the text of a tool whose argument is one text."""
_COMBINING: Final = ("$ref", "allOf", "anyOf", "oneOf", "not", "if", "patternProperties", "additionalProperties")
_TYPES: Final = ("array", "boolean", "null", "number", "object", "string")
_NOT_IN_THIS_FORM: Final = "its schema cannot be enforced in this model's form of calls, nor can the others without it"
_PLAIN_ESCAPES: Final = 'nrbtf\\"'

_T = TypeVar("_T")
LarkOf = Callable[[Seq[EnforcedTool]], str]
"""The grammar of calls of some tools. Raises: Inexpressible."""


class BadTool(ValueError):
    """One of the tools cannot be enforced, or all together. The message begins with the tool's place."""


class Constraints:
    """The constraints of one model, for `LoadedModel.constrain`."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        *,
        give_back: Callable[[], None],
        marks: ControlTokens = NO_CONTROL_TOKENS,
        form: ChatFormat = HERMES,
    ) -> None:
        """This takes some tenths of a second, because the library reads the whole vocabulary. `give_back` returns freed
        memory to the system; it is called after a long constraint was compiled. `form` is the form of calls.
        """
        self._tokens = Tokens(vocabulary)
        self._give_back = give_back
        self._marks = marks
        self._tokenizer = llguidance.LLTokenizer(
            llguidance.TokenizerWrapper(self._tokens), n_vocab=len(self._tokens.tokens), eos_token=self._tokens.ends
        )
        names = {name: int(token) for token, name in marks.names.items()}
        self._controls = Controls(names, frozenset(map(int, self._tokens.own_ends)))
        self._form = form.calls
        """None if calls cannot be constrained."""
        self._text_markers: TextReasoning | None = None
        """The markers of the reasoning if they are text."""
        if marks.text_markers is not None:
            begin, end = self._marker(marks.text_markers[0]), self._marker(marks.text_markers[1].rstrip())
            is_ended_by_call = form.reasoning is not None and form.reasoning.is_ended_by_call
            self._text_markers = TextReasoning(begin, end, is_ended_by_call=is_ended_by_call)

    def _marker(self, text: str) -> TextMarker:
        return TextMarker(tuple(self._controls.parts(text)), self._tokens)

    def constrain(self, submit: Submit) -> AnswerConstraint | Violation | None:
        """The job's constraint, which is the caller's to close, or what is wrong with the one it asks for."""
        if submit.tools is not None:
            return self._of_calls(submit, submit.tools)
        asked: dict[Field, str | None] = {
            "grammar": submit.sampling.grammar,
            "json_schema": submit.sampling.json_schema,
            "regex": submit.sampling.regex,
        }
        is_split = submit.marks == "split"
        for field, text in asked.items():
            if text is not None:
                found = self._of_text(field, text)
                if isinstance(found, Violation):
                    return found
                if not is_split:
                    return AnswerConstraint(self._tokens, NO_CONTROL_TOKENS, whole=[found])
                has_heads = Transition.BODY in self._marks.turns.values()
                return self._answer(
                    submit, whole=[self._constraint(grammar_of_head(self._controls)), found] if has_heads else [found]
                )
        can_close = self._marks.closers or self._marks.text_markers
        return self._answer(submit) if submit.reasoning_budget is not None and is_split and can_close else None

    def _of_text(self, field: Field, text: str) -> Matcher | Violation:
        tokens = self._tokens
        try:
            return Matcher(compiled(self._tokenizer, field, text, tokens.token_of), tokens)
        except Unsupported as error:
            return Violation(field, "supported", f"{field}: {error}")
        finally:
            if len(text) > UNTRIED_BYTES:
                self._give_back()

    def _of_calls(self, submit: Submit, tools: Tools) -> AnswerConstraint | Violation | None:
        try:
            if tools.is_required or submit.sampling.json_schema is not None:
                schema = None if tools.is_required else submit.sampling.json_schema
                return self._answer(submit, whole=[self._whole(tools, schema)])
            calls, unenforced_tools = self._in_free_answer(tools)
        except BadTool as error:
            return Violation("tools", "supported", str(error))
        except Unsupported as error:
            return Violation("json_schema", "supported", f"json_schema: {error}")
        finally:
            if sum(len(tool.parameters) for tool in tools.tools) > UNTRIED_BYTES:
                self._give_back()
        if calls is None and not unenforced_tools and submit.reasoning_budget is None:
            return None
        return self._answer(submit, calls=calls, unenforced_tools=unenforced_tools)

    def _answer(
        self,
        submit: Submit,
        *,
        whole: Seq[Matcher] = (),
        calls: Calls | None = None,
        unenforced_tools: tuple[int, ...] = (),
    ) -> AnswerConstraint:
        """The reasoning of a divided answer is free."""
        return AnswerConstraint(
            self._tokens,
            self._marks,
            whole=whole,
            calls=calls,
            unenforced_tools=unenforced_tools,
            text_markers=self._text_markers,
            budget=submit.reasoning_budget if submit.marks == "split" else None,
        )

    def _whole(self, asked: Tools, schema: str | None) -> Matcher:
        """The constraint of an answer that is calls and nothing else, or an instance of the schema. Raises: BadTool,
        Unsupported.
        """
        form = self._form
        if form is None:
            raise BadTool("tools: this model's form of calls has no grammar; send tool_choice auto")
        otherwise = None if schema is None else _right_side(schema)
        return self._compiled(
            [self._tool(offered) for offered in asked.tools],
            lambda tools: grammar_of_answer(
                form, tools, self._controls, is_parallel=asked.is_parallel, otherwise=otherwise
            ),
        )

    def _in_free_answer(self, asked: Tools) -> tuple[Calls | None, tuple[int, ...]]:
        """The constraint of calls in a free answer, and the places of tools whose schemas it does not enforce, or whose
        names no call can have.

        Such a tool's arguments are any object, unless the client insists on its schema. There is no constraint if the
        form has no grammar, or cannot write any object. Raises: BadTool.
        """
        form = self._form
        if form is None:
            return None, ()

        def lark_of(tools: Seq[EnforcedTool]) -> str:
            return grammar_of_call(form, tools, self._controls, is_parallel=asked.is_parallel)

        reserved = [each for each in asked.tools if each.name in form.reserved and not each.is_strict]
        unenforced = [each.place for each in reserved]
        tools = [self._or_any(each, self._tool, each) for each in asked.tools if each not in reserved]
        if not tools:
            return None, tuple(unenforced)
        try:
            call = self._call(form, tools, lark_of)
        except BadTool:
            tools = [self._or_any(each.offered, partial(self._checked, lark_of), each) for each in tools]
            call = self._call(form, tools, lark_of)
        if call is None:
            return None, tuple(each.place for each in asked.tools)
        unenforced += [each.offered.place for each in tools if not each.is_enforced]
        is_headed = form.form == "harmony"
        return Calls(
            call,
            tuple(map(self._marker, begins_of(form, tools, self._controls))),
            is_parallel=asked.is_parallel and (not is_headed or has_own_headers(form)),
            is_anywhere=has_marker(form),
            is_headed=is_headed,
            before=self._marker(form.call_begin).data if form.is_begun else b"",
        ), tuple(sorted(unenforced))

    def _constraint(self, lark: str, in_words: Callable[[str], str] = str) -> Matcher:
        """Raises: Unsupported."""
        source = llguidance.LLMatcher.grammar_from_lark(lark)
        return Matcher(matcher_of(self._tokenizer, "calls", source, in_words), self._tokens)

    def _compiled(self, tools: Seq[EnforcedTool], lark_of: LarkOf) -> Matcher:
        """Compile all tools together; if that fails, find the one to blame. Raises: BadTool."""
        try:
            return self._constraint(lark_of(tools))
        except (Inexpressible, Unsupported) as error:
            for each in tools:
                self._checked(lark_of, each)
            raise BadTool("tools: together they are too large or too complex; offer fewer") from error

    def _checked(self, lark_of: LarkOf, tool: EnforcedTool) -> EnforcedTool:
        """The tool, if it alone can be compiled. Raises: BadTool."""
        try:
            self._constraint(lark_of([tool]), lambda error: plain(error, tool.schema))
        except (Inexpressible, Unsupported) as error:
            raise BadTool(f"tools[{tool.offered.place}]: {error}") from error
        return tool

    def _call(self, form: CallFormat, tools: Seq[EnforcedTool], lark_of: LarkOf) -> Matcher | None:
        """The constraint of one call; None if the form cannot write any object and a tool takes it. Raises: BadTool."""
        unenforced = [each.offered for each in tools if not each.is_enforced]
        if not unenforced or form.form != "gemma":
            return self._compiled(tools, lark_of)
        if not all(_may_be_any(each.offered) for each in tools):
            raise BadTool(f"tools[{unenforced[0].place}]: {_NOT_IN_THIS_FORM}")
        return None

    def _or_any(self, offered: OfferedTool, made: Callable[[_T], EnforcedTool], source: _T) -> EnforcedTool:
        """The tool that is made of a source, or with any object if its schema cannot be enforced. Raises: BadTool."""
        try:
            return made(source)
        except BadTool:
            if not _may_be_any(offered):
                raise
        assert self._form is not None
        # In these forms each argument's name is written apart from its value.
        names_each = self._form.form == "python" or bool(self._form.parameter_begin)
        return EnforcedTool(offered, self._with_options(_any_object(offered, names_each=names_each)), is_enforced=False)

    def _tool(self, offered: OfferedTool) -> EnforcedTool:
        """Raises: BadTool."""
        try:
            if offered.grammar is not None:
                check_lark(offered.grammar)
                return EnforcedTool(offered, _of_text(None))
            if offered.is_text:
                return EnforcedTool(offered, _of_text(offered.regex))
            found = enforceable(offered.parameters)
        except (Unsupported, BadGrammar) as error:
            raise BadTool(f"tools[{offered.place}]: {error}") from error
        schema = _of_object(found.readable)
        if schema is None:
            raise BadTool(f"tools[{offered.place}]: the schema of its parameters must be that of an object")
        return EnforcedTool(offered, self._with_options(schema))

    def _with_options(self, schema: dict[str, Any]) -> Schema:
        options = json_options(schema)
        if self._form is not None and self._form.form == "python":
            # The readers of this notation know other escapes otherwise.
            options = {**options, "json_allowed_escapes": _PLAIN_ESCAPES, "json_allow_general_unicode_escapes": False}
        return {**schema, OPTIONS: options}


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
