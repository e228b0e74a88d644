"""A grammar of calls: all that a reader of the model's form reads as calls of the offered tools, and nothing else.

A form (wire/chat_format.py), tools and their schemas become a grammar in llguidance's dialect of Lark. Schemas come
here checked: this knows neither that library's limits nor what it leaves unenforced.
"""

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Final, assert_never

from worker.formats.grammar.text_grammar import UnreadableGrammar, coded, rules_of
from worker.formats.grammar.tool_schema import (
    ANY_TEXT,
    NOT_IN_THIS_FORM,
    Inexpressible,
    Schema,
    Text,
    alone,
    branches_of,
    is_plain_list,
    members_of,
    texts_of,
)
from worker.formats.read.values import resolved, types_of
from worker.wire.chat_format import GEMMA_QUOTE, CallFormat
from worker.wire.prompts import OfferedTool

HEAD: Final = "%llguidance {}\n"
_ID: Final = "/[a-zA-Z0-9]{9}/"
"""Mistral's ids have nine letters and digits; no other form asks for less."""
_NUMBER: Final = "/[0-9]{1,3}/"
_HARMONY_THOUGHT: Final = "<|channel|>analysis<|message|>"
_MUSE_THOUGHT: Final = " to=self<|message|>"
_MUSE_BETWEEN: Final = "<|eom|><|start|>assistant"
_NOTHING: Final = '""'
_NOT_IN_THIS_FORM: Final = f"its arguments {NOT_IN_THIS_FORM}"
_TOO_LARGE: Final = "its schema is too large to be enforced in this model's form of calls"
_RESERVED: Final = "a tool cannot have this name in this model's form of calls"
_LOOKS_LIKE_A_MARKER: Final = re.compile(r"[<\[|\]>]")
"""A line without any of these may begin any text."""
_MAX_DEPTH: Final = 16
_ELEMENT: Final = re.compile(r"[^\s<>/](?:[^<>\n]*[^\s<>])?")
"""The names that an element can have."""
_MAX_CHARS: Final = 4_000_000
"""The most characters of a grammar. The request's body is smaller, but each part of a schema may have all of its root's
definitions."""


class Controls:
    """The control tokens of a vocabulary, as far as they stand in markers; all other text is spelled."""

    def __init__(self, tokens: Mapping[str, int], ends: Collection[int]) -> None:
        """`tokens`: by their names. `ends`: those that end an answer. A call that such a token closes is the last."""
        self.tokens = tokens
        self._ends = ends
        longest_first = sorted(filter(None, tokens), key=len, reverse=True)
        self._any = re.compile(f"({'|'.join(map(re.escape, longest_first)) or '(?!)'})")
        self.thoughts = f"{_HARMONY_THOUGHT if '<|channel|>' in tokens else _MUSE_THOUGHT}<|start|>assistant"
        """The markers of a message of reasoning, without its text and the marker behind it, and of the next one's role.
        There may be several such messages."""
        self.final = "<|channel|>final<|message|>" if "<|channel|>" in tokens else " to=user<|message|>"
        """The markers before the text of a message that is the answer."""

    def parts(self, text: str) -> Iterator[str | int]:
        """Yield the texts and the control tokens of a marker, in order."""
        return (self.tokens.get(part, part) for part in self._any.split(text) if part)

    def before_end(self, text: str) -> tuple[str, bool]:
        """Return the marker up to its first token that ends an answer, and whether there is one."""
        kept = ""
        for part in self._any.split(text):
            if self.tokens.get(part) in self._ends:
                return kept, True
            kept += part
        return text, False

    def first_part(self, marker: str) -> str:
        """Return the marker up to the end of its first control token or line."""
        if found := self._any.match(marker):
            return found[0]
        first = self._any.split(marker)[0]
        line = first.partition("\n")[0]
        return line if _LOOKS_LIKE_A_MARKER.search(line) else first


@dataclass(frozen=True, slots=True)
class EnforcedTool:
    """An offered tool, and the schema of its arguments that its calls are held to."""

    offered: OfferedTool
    schema: Schema
    is_enforced: bool = True
    """False if its arguments may be any object, because its own schema cannot be enforced."""

    @property
    def name(self) -> str:
        return self.offered.name


def grammar_of_answer(
    form: CallFormat, tools: Seq[EnforcedTool], controls: Controls, *, is_parallel: bool, otherwise: str | None = None
) -> str:
    """The grammar of an answer that is calls and nothing else, or what `otherwise` says, which is the right side of a
    rule. Reasoning is not part of it. Raises: Inexpressible.
    """
    writer = _GrammarWriter(form, controls)
    answer = writer.calls(tools, is_parallel=is_parallel)
    has_heads = form.form == "harmony" and "<|message|>" in controls.tokens
    if otherwise is not None:
        answer = f"{answer} | {_joined(writer.marker(controls.final) if has_heads else '', otherwise)}"
    return writer.grammar(_joined(writer.often(controls.thoughts), f"({answer})") if has_heads else answer)


def grammar_of_call(form: CallFormat, tools: Seq[EnforcedTool], controls: Controls, *, is_parallel: bool) -> str:
    """The grammar of one call from one of its `begins_of` on, or of all calls in their section. Raises:
    Inexpressible."""
    writer = _GrammarWriter(form, controls)
    return writer.grammar(writer.begun_calls(tools, is_parallel=is_parallel))


def grammar_of_head(controls: Controls) -> str:
    """The grammar of the markers before an answer's text, in a form with headers."""
    writer = _GrammarWriter(CallFormat(form="harmony"), controls)
    return writer.grammar(_joined(writer.often(controls.thoughts), writer.marker(controls.final)))


def begins_of(form: CallFormat, tools: Seq[EnforcedTool], controls: Controls) -> tuple[str, ...]:
    """The texts with which a call begins, each as short as a call differs from other text.

    If calls have no marker, they begin with the name of an offered tool in its place.
    """
    if form.form == "harmony":
        if has_own_headers(form):
            return tuple(_recipient(form, tool.name) for tool in tools)
        return tuple(header + _recipient(form, "") for header in _HARMONY_HEADERS)
    if form.is_begun:
        return tuple(f"{form.call_begin}{tool.name}{form.name_end}" for tool in tools)
    wholes = [form.section_begin, form.call_begin, *_shortened(form)]
    begins = [controls.first_part(whole.strip()) for whole in wholes if whole.strip()]
    return tuple(dict.fromkeys(begins)) or tuple(begin for tool in tools for begin in _bare_begins(form, tool.name))


def has_marker(form: CallFormat) -> bool:
    """True if a call begins with a marker, so that it may begin anywhere."""
    return form.form == "harmony" or bool((form.section_begin or form.call_begin).strip())


def has_own_headers(form: CallFormat) -> bool:
    """True if a message's header has the name alone, and its body is a call between markers (Muse)."""
    return form.form == "harmony" and bool(form.parameter_begin)


_MAX_THOUGHTS: Final = 3
_HARMONY_HEADERS: Final = ("<|channel|>commentary", "<|channel|>analysis", "<|start|>assistant", "")


def _recipient(form: CallFormat, name: str) -> str:
    prefix = "" if has_own_headers(form) else form.name_prefix or "functions."
    return f" to={prefix}{name}"


def _shortened(form: CallFormat) -> list[str]:
    return [form.call_begin.removeprefix(each).lstrip() for each in form.skippable if form.call_begin.startswith(each)]


def _bare_begins(form: CallFormat, name: str) -> Iterator[str]:
    if form.form == "object":
        key, value = (form.name_key, name) if form.name_key else (name, None)
        for space in (" ", ""):
            yield f"{{{literal(key)}:{space}{'' if value is None else literal(value)}"
    else:
        yield f"{form.name_prefix}{name}{form.name_end.strip()}"


def _part(part: str | int) -> str:
    return f"<[{part}]>" if isinstance(part, int) else literal(part)


def literal(text: str) -> str:
    """A text as Lark writes it."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


class _GrammarWriter:
    """Writes the rules of one grammar."""

    def __init__(self, form: CallFormat, controls: Controls) -> None:
        self._form = form
        self._controls = controls
        self._rules: dict[str, str] = {}
        self._n_chars = 0
        self._is_begun = False
        """True if the model has begun the call in a way of its own."""

    def grammar(self, start: str) -> str:
        return HEAD + "".join(f"{name}: {right}\n" for name, right in {"start": start, **self._rules}.items())

    def rule(self, name: str, right: str) -> str:
        """Define a rule with a name of its own. Raises: Inexpressible if there are too many."""
        self._n_chars += len(right)
        if self._n_chars > _MAX_CHARS:
            raise Inexpressible(_TOO_LARGE)
        name = f"{name}_{len(self._rules)}"
        self._rules[name] = right
        return name

    def marker(self, text: str) -> str:
        """A marker as Lark writes it; nothing if it is empty."""
        return " ".join(map(_part, self._controls.parts(text)))

    def often(self, text: str) -> str:
        """A marker that may be missing, or be repeated a few times."""
        return f"({self.marker(text)}){{0,{_MAX_THOUGHTS}}}"

    def calls(self, tools: Seq[EnforcedTool], *, is_parallel: bool) -> str:
        """All calls of an answer, in their section."""
        form = self._form
        call_end, is_last = self._controls.before_end(form.call_end)
        section_end, _ = self._controls.before_end(form.section_end)
        between, is_split = self._controls.before_end(form.between)
        one = self._one(tools, form.call_begin, call_end)
        first = self._one(tools, "", call_end) if form.is_begun and not self._is_begun else one
        if form.form == "harmony":
            again = f"({_joined(self.marker(_MUSE_BETWEEN), one)})*" if has_own_headers(form) and is_parallel else ""
            return _joined(one, again)
        if is_parallel and not is_last and not is_split:
            first = _joined(first, f"({_joined(self.marker(between), one)})*")
        return _joined(self.marker(form.section_begin.lstrip()), first, "" if is_last else self.marker(section_end))

    def begun_calls(self, tools: Seq[EnforcedTool], *, is_parallel: bool) -> str:
        """One call in each of the ways in which it may begin, or all calls in their section."""
        self._is_begun = True
        form = self._form
        call_end, _ = self._controls.before_end(form.call_end)
        ways = [self._one(tools, begin.lstrip(), call_end) for begin in (form.call_begin, *_shortened(form))]
        if form.section_begin and form.form != "harmony":
            ways.append(self.calls(tools, is_parallel=is_parallel))
        return f"({' | '.join(ways)})"

    def _one(self, tools: Seq[EnforcedTool], begin: str, call_end: str) -> str:
        bodies = [self.rule("tool", self._body(tool)) for tool in tools]
        if self._form.form == "harmony":
            # The header has the name, and the token behind the call ends the answer.
            begin = call_end = ""
        return self.rule("call", _joined(self.marker(begin), f"({' | '.join(bodies)})", self.marker(call_end)))

    def _body(self, tool: EnforcedTool) -> str:
        if tool.name in self._form.reserved:
            raise Inexpressible(_RESERVED)
        match self._form.form:
            case "object":
                return self._object(tool)
            case "named" | "tagged" | "nested":
                return _joined(self._name(tool), self._arguments(tool))
            case "harmony":
                return self._message(tool) if has_own_headers(self._form) else self._harmony(tool)
            case "python":
                return self._arguments(tool)
            case "gemma":
                return _joined(self.marker(tool.name), self._arguments(tool))
            case _:
                assert_never(self._form.form)

    def _arguments(self, tool: EnforcedTool) -> str:
        form = self._form
        if tool.offered.grammar is not None:
            return self._only_text(tool, tool.offered.grammar)
        if form.form == "python":
            return self._python(tool)
        if form.form == "gemma":
            return self._gemma_object(tool.schema, tool.schema, 0)
        if form.parameter_begin:
            return self._parameters(tool)
        return self.rule("arguments", f"%json {json.dumps(tool.schema)}")

    def _only_text(self, tool: EnforcedTool, text: str) -> str:
        (name,) = tool.schema["properties"]
        form, quote, in_json = self._form, self.marker(GEMMA_QUOTE), False
        if form.form == "python":
            begin, end, in_json = literal(f'{tool.name}({name}="'), literal('")'), True
        elif form.form == "gemma":
            begin, end = _joined(literal(f"{{{name}:"), quote), _joined(quote, literal("}"))
        elif form.parameter_begin:
            begin, end = _joined(self._argument(name), self._mark("string")), self.marker(self._argument_end(name))
        else:
            begin, end, in_json = literal(f'{{"{name}": "'), literal('"}'), True
        try:
            start, rules = rules_of(text, f"t{len(self._rules)}", in_json=in_json)
        except UnreadableGrammar as error:
            raise Inexpressible(str(error)) from error
        self._rules |= rules
        return _joined(begin, start, end)

    def _object(self, tool: EnforcedTool) -> str:
        form, arguments = self._form, self._arguments(tool)
        name = json.dumps(tool.name, ensure_ascii=False)
        if not form.name_key:
            return _joined(self._json_text(f"{{{name}: "), arguments, literal("}"))
        named = f'"{form.name_key}": {name}, "{form.arguments_key}": '
        if not form.id_key:
            return _joined(self._json_text("{" + named), arguments, literal("}"))
        if form.id_key == "id":
            return _joined(literal("{" + named), arguments, literal(', "id": "'), _ID, literal('"}'))
        return _joined(literal(f'{{"{form.id_key}": "'), _NUMBER, literal(f'", {named}'), arguments, literal("}"))

    def _json_text(self, text: str) -> str:
        """JSON before the arguments. Without a marker the model has begun it, with spaces or without."""
        if has_marker(self._form):
            return literal(text)
        return _joined(*(literal(part) if part != " " else '" "?' for part in re.split("(?<=[:,])( )", text) if part))

    def _name(self, tool: EnforcedTool) -> str:
        form = self._form
        return _joined(
            *((_ID, self.marker(form.id_end)) if form.id_end else ()),
            self.marker(form.name_prefix + tool.name),
            *((self.marker(form.index_begin), _NUMBER) if form.index_begin else ()),
            *((self.marker(form.id_begin), _ID) if form.id_begin else ()),
            self.marker(form.name_end),
        )

    def _harmony(self, tool: EnforcedTool) -> str:
        """A message to a tool, whose recipient stands in the header, or in the role before it."""
        recipient = literal(_recipient(self._form, tool.name))
        channel, role = self.marker("<|channel|>"), self.marker("<|start|>assistant")
        kind = self.marker("<|constrain|>") if "<|constrain|>" in self._controls.tokens else ""
        after = _joined('" "', kind, '"json"', self.marker("<|message|>"), self._arguments(tool))
        if not self._is_begun:
            return _joined(channel, literal("commentary"), recipient, after)
        in_header = _joined(channel, '("commentary" | "analysis")', recipient)
        in_role = _joined(f"({role})?", recipient, channel, literal("commentary"))
        return _joined(f"({in_header} | {in_role})", after)

    def _message(self, tool: EnforcedTool) -> str:
        """A message to a tool in Muse's form: its body has the name again."""
        form = self._form
        header = _joined(literal(_recipient(form, tool.name)), self.marker("<|message|>"))
        begin, end = form.section_begin + form.call_begin, form.call_end + form.section_end
        return _joined(header, self.marker(begin + tool.name + form.name_end), self._arguments(tool), self.marker(end))

    def _python(self, tool: EnforcedTool) -> str:
        """A call with keyword arguments, whose values are JSON: readers of Python know its words."""
        arguments = self._members(tool.schema, "=", ", ", lambda part: self._json(part, tool.schema))
        return _joined(literal(f"{tool.name}("), arguments, literal(")"))

    def _gemma_object(self, schema: Schema, root: Schema, depth: int) -> str:
        members = self._members(schema, ":", ",", lambda part: self._gemma_value(part, root, depth + 1))
        return _joined(literal("{"), members, literal("}"))

    def _members(self, schema: Schema, sign: str, separator: str, value: Callable[[object], str]) -> str:
        """The members of an object in their order, with a separator between them."""
        members, required = members_of(schema)
        first = behind = ""
        for item, is_needed in [
            (_joined(literal(f"{name}{sign}"), value(part)), name in required) for name, part in members.items()
        ][::-1]:
            rule = self.rule("item", item)
            alone, begun = _joined(rule, behind), _joined(literal(separator), rule, behind)
            first = alone if is_needed else self.rule("list", f"{alone} | {first or _NOTHING}")
            behind = begun if is_needed else self.rule("list", f"{begun} | {behind or _NOTHING}")
        return first

    def _gemma_value(self, schema: object, root: Schema, depth: int) -> str:
        """The notation has no way to write what a schema does not say."""
        schema = resolved(schema, root)
        if not isinstance(schema, dict) or depth > _MAX_DEPTH:
            raise Inexpressible(_NOT_IN_THIS_FORM)
        if (texts := texts_of(schema, root)) is not None:
            ends = [self._text(text, GEMMA_QUOTE) for text in texts]
            return _joined(self.marker(GEMMA_QUOTE), _one_of(ends))
        if choices := branches_of(schema):
            return f"({' | '.join(self._gemma_value(each, root, depth + 1) for each in choices)})"
        kinds = types_of(schema, root)
        match [*kinds]:
            case ["object"]:
                return self._gemma_object(schema, root, depth)
            case ["array"] if is_plain_list(schema):
                item = self.rule("item", self._gemma_value(schema.get("items"), root, depth + 1))
                return _joined(literal("["), _repeated(item, schema), literal("]"))
            case [_, *_] if not kinds & {"object", "array", "string"}:
                return self._json(schema, root)
        raise Inexpressible(_NOT_IN_THIS_FORM)

    def _parameters(self, tool: EnforcedTool) -> str:
        properties, required = members_of(tool.schema)
        if self._form.form == "nested" and not all(map(_ELEMENT.fullmatch, properties)):
            raise Inexpressible(_NOT_IN_THIS_FORM)
        rules = [
            (self.rule("parameter", self._parameter(name, schema, tool.schema)), name in required)
            for name, schema in properties.items()
        ]
        return _joined(*(rule if is_needed else f"{rule}?" for rule, is_needed in rules))

    def _parameter(self, name: str, schema: object, root: Schema) -> str:
        end, values = self._argument_end(name), list[str]()
        for kind, part in self._kinds(schema, root):
            mark, texts = self._mark(kind), texts_of(part, root)
            if texts is None:
                values.append(_joined(mark, self._json(part, root), self.marker(end)))
            else:
                values += [_joined(mark, self._text(text, end)) for text in texts]
        return _joined(self._argument(name), _one_of(values))

    def _argument(self, name: str) -> str:
        """The marker before an argument's value. In quotes, the name is an attribute."""
        begin = self._form.parameter_begin
        name = name.replace("&", "&amp;").replace('"', "&quot;") if begin.endswith('"') else name
        return self.marker(begin + name + self._form.parameter_name_end)

    def _argument_end(self, name: str) -> str:
        form = self._form
        return form.parameter_end + (name + form.parameter_name_end if form.form == "nested" else "")

    def _json(self, schema: object, root: Schema) -> str:
        return self.rule("value", f"%json {json.dumps(alone(schema, root))}")

    def _kinds(self, schema: object, root: Schema) -> Iterator[tuple[str, object]]:
        """Yield the parts of a schema that have different marks, each with its type."""
        types = types_of(schema, root)
        if self._form.values == "schema" or len(types) == 1 or types == {"integer", "number"}:
            yield next((kind for kind in types if kind != "integer"), "number"), schema
            return
        found = resolved(schema, root)
        if isinstance(found, dict) and (parts := branches_of(found)):
            for part in parts:
                yield from self._kinds(part, root)
        elif isinstance(found, dict) and "type" in found:
            for kind in sorted(types):
                yield "number" if kind == "integer" else kind, {**found, "type": kind}
        else:
            raise Inexpressible(_NOT_IN_THIS_FORM)

    def _mark(self, kind: str) -> str:
        """The attribute that says whether a value is text."""
        if self._form.values == "schema":
            return ""
        is_text = "true" if kind == "string" else "false"
        return self.marker((kind if self._form.values == "type" else is_text) + self._form.mark_end)

    def _text(self, text: Text, end: str) -> str:
        """A text up to the marker behind it."""
        if text.choices is not None:
            choices = " | ".join(literal(each) for each in text.choices)
            return _joined(f"({choices})", self.marker(end))
        first = next(self._controls.parts(end.lstrip()), "")
        if isinstance(first, str) and text.is_any:
            shown = first.rstrip()
            name = self.rule("text", ANY_TEXT)
            self._rules[f"{name}[suffix={literal(shown)}]"] = self._rules.pop(name)
            return _joined(name, self.marker(end.lstrip()[len(shown) :]))
        # The reader sees names of control tokens, so a text must not spell them. What is spelled of the marker is part
        # of the terminal, so that the text does not take it for its own.
        parts = list(self._controls.parts(end))
        n_spelled = next((place for place, part in enumerate(parts) if isinstance(part, int)), len(parts))
        spelled = "".join(str(part) for part in parts[:n_spelled])
        without = f"~/(?s:.*){coded(end.strip())}(?s:.*)/"
        whole = _joined(f"({text.lark()} & {without})", literal(spelled) if spelled else "")
        name = f"TEXT_{len(self._rules)}"
        self._rules[name] = whole
        return _joined(name, *map(_part, parts[n_spelled:]))


def _joined(*parts: str) -> str:
    return " ".join(part for part in parts if part)


def _one_of(rules: Seq[str]) -> str:
    return f"({' | '.join(rules)})" if len(rules) > 1 else rules[0]


def _repeated(item: str, schema: Schema) -> str:
    least, most = schema.get("minItems", 0), schema.get("maxItems")
    if most == 0:
        return ""
    further = f'("," {item}){{{max(0, least - 1)},{"" if most is None else most - 1}}}'
    whole = item if most == 1 else f"{item} {further}"
    return whole if least else f"({whole})?"
