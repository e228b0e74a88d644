"""The format of a model's answers: its family's row in formats.toml, and what its chat template shows.

The template renders conversations that differ in one thing, and the differences are the markers of calls, arguments and
reasoning. Pure; it runs when the template is loaded, with at most MAX_RENDERINGS renderings.

    <|assistant|><tool_call>\\n{"name": …}\\n</tool_call>\\n<tool_call>\\n{"name": …}\\n</tool_call><|end|>
    └ beginning ┘└ call_begin ┘          └ call_end ───┘└ between, then a second call                └ end of the turn
"""

import json
import re
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from itertools import takewhile
from typing import Final, Literal, NamedTuple

import msgspec
from msgspec.structs import replace

from worker.formats.read.parse import Reader, message_of
from worker.formats.read.values import loaded
from worker.formats.render.escapes import Json
from worker.formats.render.forms import Message
from worker.formats.render.probes import call, calling, offered, says
from worker.formats.render.sandbox import Unrendered
from worker.formats.render.template import ChatTemplate
from worker.wire.chat_format import HERMES, CallFormat, ChatFormat, ReasoningFormat, ValueForm

MAX_RENDERINGS: Final = 7
_MAX_TURN_CHARS = 20_000
"""A longer rendering of a turn of one line is not compared."""
_MAX_MARKER_CHARS = 300
_MAX_OBJECTS = 100
"""The most signs of an object in a turn that are read."""

_UNIT = re.compile(r"<[^<>\s]+>|\[[^\[\]\s]+\]|\w+|\s|([^\w\s])\1*")
"""The units that are compared: whole markers, words, single spaces and runs of a sign. Two different markers have
nothing in common, although they may begin or end alike."""
_MARKER = re.compile(r"<[^<>\s]+>|\[[^\[\]\s]+\]")
_LAST_MARKER = re.compile(rf"(?:{_MARKER.pattern})\Z")
_FIRST_MARKER = re.compile(rf"(?:{_MARKER.pattern})\s*(?=<)")
_QUALIFIER = re.compile(r"(?<![\w.])[a-zA-Z]\w*\.$")

_SAMPLE = "sample"
"""The word in all texts of the conversations. No marker has it."""
_USER, _NEXT_USER, _REPLY, _THOUGHT = "sample-user", "sample-again", "sample-reply", "sample-thought"
_NAME, _OTHER = "sample_tool", "sample_other"
_ID, _OTHER_ID = "sample123", "sample456"
"""Mistral's templates support no other length."""
_KEY, _NEXT, _VALUE, _NUMBER = "sample_a", "sample_b", "sample-value", 31415926
_ARGUMENTS: Json = {_KEY: _VALUE, _NEXT: _NUMBER}
"""They are in alphabetical order, because some templates sort them."""
_PROPERTIES: dict[str, Json] = {_KEY: {"type": "string"}, _NEXT: {"type": "integer"}}
_TOOLS: list[Json] = [offered(name, _PROPERTIES) for name in (_NAME, _OTHER)]
_CALL, _OTHER_CALL = call(_ID, _ARGUMENTS, _NAME), call(_OTHER_ID, _ARGUMENTS, _OTHER)
_REPLYING, _CALLING = says("assistant", _REPLY), calling(_CALL, content="")
_DECODER = json.JSONDecoder()

_VALUE_MARKS: Final[tuple[tuple[ValueForm, str, str], ...]] = (
    ("is_string", "true", "false"),
    ("type", "string", "number"),
    ("type", "string", "integer"),
)
"""The attributes of a text and of a number."""


class Family(msgspec.Struct, frozen=True):
    """A row of formats.toml: a notation, and the texts that a template of this family contains."""

    marks: tuple[str, ...]
    """All of these are in the source."""
    format: ChatFormat
    without: tuple[str, ...] = ()
    """None of these is in the source."""


class Formats(msgspec.Struct, frozen=True):
    """The table in formats.toml."""

    family: tuple[Family, ...]
    """The first one that fits counts."""
    reasoning: tuple[ReasoningFormat, ...]


@cache
def formats() -> Formats:
    """Return what is known before a template is read."""
    table = msgspec.toml.decode(files(__package__).joinpath("formats.toml").read_bytes(), type=Formats)
    families = [replace(row, format=replace(row.format, source="declared")) for row in table.family]
    return replace(table, family=tuple(families))


def declared(source: str) -> ChatFormat | None:
    """Return the notation of the family that a template's source is of, or None if it is of no known family."""
    for family in formats().family:
        if all(mark in source for mark in family.marks) and not any(mark in source for mark in family.without):
            return family.format
    return None


def chat_format(template: ChatTemplate, ends: frozenset[str] = frozenset()) -> ChatFormat:
    """The format of the template's answers. `ends` has the names of the tokens that end an answer, which are not part
    of the format.

    The markers that the template writes win, and its family's row adds what no rendering shows. The row wins if the
    template renders no calls, if its notation is another one, or if the answer that the template rendered cannot be
    read by what was found. Without a row the form is then that of HERMES.
    """
    known = declared(template.source)
    turns = _Turns(template, ends, known)
    calls = _calls_of(turns) if _REPLY in turns.reply else None
    begin, end = turns.content_markers
    found = ChatFormat(source="template", calls=calls, reasoning=turns.reasoning, content_begin=begin, content_end=end)
    if calls is None or not _reads(found, turns):
        return known or replace(HERMES, reasoning=turns.reasoning)
    return _completed(found, known, turns) if known else replace(found, name=_name_of(calls))


class _Turns:
    """The texts of turns that differ in one thing, each after the user's words."""

    def __init__(self, template: ChatTemplate, ends: frozenset[str], known: ChatFormat | None) -> None:
        self._template, self._forms, self._ends = template, template.forms_with, ends
        self.has_several = self._forms.several_calls == "own"
        """True if the template renders several calls in one message."""
        self.prompt = self._turn(is_open=True)
        """The text that an answer follows."""
        self.reply = self._turn(_REPLYING)
        self.call = self._turn(_CALLING) if self._forms.takes_calls else ""
        """One call; empty if the template does not render calls."""
        self.two_calls = self._turn(calling(_CALL, _OTHER_CALL, content="")) if self.has_several else ""
        again = self._turn(_REPLYING, says("user", _NEXT_USER))
        self._tail = again.partition(_REPLY)[2].partition(_NEXT_USER)[0]
        """The text after a reply, up to the next user's words."""
        self._end = _common(self.reply, self.call, -1).strip()
        """The text that ends the assistant's turn."""
        is_begun = self.prompt.strip() and self.reply.startswith(self.prompt) and self.call.startswith(self.prompt)
        self._beginning = self.prompt if is_begun else _common(self.reply, self.call)
        """The text that begins the assistant's turn."""
        self.reasoning = self._reasoning(known)

    def _turn(self, *messages: Message, is_open: bool = False) -> str:
        """The text after the user's words; empty if the template refuses the messages."""
        tools: Json = _TOOLS if "tools" in self._template.caps else None
        try:
            text = self._template.in_forms([says("user", _USER), *messages], self._forms, tools, is_open=is_open)
        except Unrendered:
            return ""
        own = text.rpartition(_USER)[2]
        return own if len(own) <= _MAX_TURN_CHARS else ""

    def written(self, text: str) -> str:
        """The part of the text that the model has written, without the reasoning. The text begins after the user's
        words."""
        own = text.removeprefix(self._beginning)
        return (own.rpartition(self.reasoning.end)[2] if self.reasoning else own).lstrip()

    def without_end(self, text: str) -> str:
        """The text, which is from the end of a turn, without what ends the turn: a token that ends answers, the end
        that a reply's turn has, too, or the first marker that other turns have and no call."""
        others, call = self._tail + self.prompt, self.written(self.call.partition(str(_NUMBER))[0])
        shared = (found[0] for found in _MARKER.finditer(text) if found[0] in others and found[0] not in call)
        for end in (*self._ends, self._end, next(shared, "")):
            text = text.partition(end)[0] if end else text
        return text.rstrip()

    def _reasoning(self, known: ChatFormat | None) -> ReasoningFormat | None:
        """The markers around a reasoning that the template renders before a reply or before a call; else those that the
        prompt opens, that the template names, or that the family's row has."""
        messages = [(_REPLYING, _REPLY), *([(_CALLING, _NAME)] if self._forms.takes_calls else [])]
        for message, own in messages:
            before, _, rest = self._turn({**message, "reasoning_content": _THOUGHT}).partition(_THOUGHT)
            between, is_shown, _ = rest.partition(own)
            end = _MARKER.search(between)
            if not is_shown or not end:
                continue
            begin = before.removeprefix(_common(before, self.reply)).strip()
            if not begin and end[0] in self.reply and self.reply.count(_last_marker(before)) == 1:
                # The reply has the markers, too, with nothing between them.
                begin = _last_marker(before)
            if begin:
                return ReasoningFormat(begin=begin, end=end[0])
        begun, source = _last_marker(self.prompt), self._template.source
        named = [pair for pair in formats().reasoning if pair.begin in source and pair.end in source]
        default = known.reasoning if known else None
        return min(named, key=lambda pair: begun not in (pair.begin, pair.end), default=default)

    @property
    def content_markers(self) -> tuple[str, str]:
        """The markers around an answer's text."""
        before, _, after = self.reply.partition(_REPLY)
        begin, end = self.written(before), _MARKER.match(after.lstrip())
        if self.reasoning:
            begin = begin.replace(self.reasoning.begin, "")
        is_ended = end and end[0] not in self._ends and end[0] not in self.call.removeprefix(self._beginning)
        return begin.strip(), end[0] if end and is_ended and begin.strip() else ""


def _completed(found: ChatFormat, known: ChatFormat, turns: _Turns) -> ChatFormat:
    """The format that was found, with what its family's row adds."""
    calls, row = found.calls, known.calls
    if calls is None or row is None or row.form != calls.form:
        return known
    begin, end = found.content_begin or known.content_begin, found.content_end or known.content_end
    last = calls.section_end
    for text in known.hidden:
        last = last.removesuffix(text)
    if last and row.section_end.startswith(last):
        last = row.section_end  # its last token may also end the turn
    calls = replace(
        calls,
        section_begin=calls.section_begin.removeprefix(begin + end),  # a template writes no text, between markers
        section_end=last,
        skippable=row.skippable or calls.skippable,
        between=calls.between if turns.has_several else row.between,
    )
    reasoning = found.reasoning
    if reasoning and known.reasoning and known.reasoning.end.strip() == reasoning.end.strip():
        reasoning = known.reasoning
    return replace(known, source=found.source, calls=calls, reasoning=reasoning, content_begin=begin, content_end=end)


def _name_of(calls: CallFormat) -> str:
    begin = calls.section_begin + calls.call_begin
    if calls.form == "object" and begin.strip() == "<tool_call>":
        return HERMES.name
    return " ".join([calls.form, *_MARKER.findall(begin)[:1]])


def _reads(form: ChatFormat, turns: _Turns) -> bool:
    """True if the answer that the template rendered is read as the call that was put into it."""
    reader = Reader(form, {_NAME: {"properties": _PROPERTIES}}, new_id=str)
    begin, number, end = turns.call.partition(str(_NUMBER))
    text = turns.written(begin) + number + turns.without_end(end)
    message = message_of([*reader.push(text), *reader.finish()])
    calls = [(call.name, _is_arguments(call.arguments)) for call in message.calls]
    return calls == [(_NAME, True)] and _SAMPLE not in message.content


def _calls_of(turns: _Turns) -> CallFormat | None:
    """The format of calls. None if the notation is unknown, or if a marker depends on the call."""
    alone, first = _found_in(turns.call), _found_in(turns.two_calls)
    if alone is None:
        return None
    second = _found_in(first.after.replace(_OTHER, _NAME).replace(_OTHER_ID, _ID)) if first else None
    calls = replace(alone.notation, call_begin=turns.written(alone.before), call_end=turns.without_end(alone.after))
    if first and second:
        if (notation := _indexed(first.notation, second.notation)) is None:
            return None
        calls = _around(notation, turns.written(first.before), second.before, turns.without_end(second.after))
        if turns.without_end(calls.between) != calls.between.rstrip():
            calls = replace(calls, between="")  # the turn ends after each call
    calls = _divided(calls)
    is_odd = any(_SAMPLE in text or len(text) > _MAX_MARKER_CHARS for text in ChatFormat(calls=calls).markers)
    return calls if not is_odd and (calls.form == "object" or calls.section_begin or calls.call_begin) else None


def _around(notation: CallFormat, before: str, gap: str, last: str) -> CallFormat:
    """The notation with the markers around calls. `before`: the text before the first call; `gap`: between the first
    and the second; `last`: the text after the second."""
    begin, end = _common(before, gap, -1).lstrip(), _common(gap, last).rstrip()
    shared = gap[len(gap) - len(begin) : len(end)]
    if _MARKER.fullmatch(shared.strip()):
        begin = begin.removeprefix(shared)
    else:
        end = end.removesuffix(shared)
    section = before.removesuffix(begin)
    return replace(
        notation,
        section_begin=section,
        call_begin=begin,
        call_end=end,
        between=gap.removeprefix(end).removesuffix(begin),
        section_end=last.removeprefix(end) if section else "",  # without a beginning, this is the end of the turn
    )


def _indexed(first: CallFormat, second: CallFormat) -> CallFormat | None:
    """The notation of two calls, whose names may have numbers after them. None if they differ in another way."""
    if first == second:
        return first
    for found in re.finditer(r"\d+", first.name_end):
        begin, n, end = first.name_end[: found.start()], int(found[0]), first.name_end[found.end() :]
        if replace(first, name_end=f"{begin}{n + 1}{end}") == second:
            return replace(first, name_end=end, index_begin=begin, first_index=n)
    return None


def _divided(calls: CallFormat) -> CallFormat:
    """The format with what call_begin has besides the marker: an id, the word before each name (`functions.`), and the
    first of two markers that begin a tagged call, which models leave out."""
    begin, _, id_end = calls.call_begin.partition(_ID)
    calls = replace(calls, call_begin=begin, id_end=id_end)
    if calls.form != "object" and (word := _QUALIFIER.search(begin)):
        begin = begin[: word.start()]
        calls = replace(calls, call_begin=begin, name_prefix=word[0], is_whole_id=bool(calls.index_begin))
    if calls.form == "tagged" and (first := _FIRST_MARKER.match(begin)):
        calls = replace(calls, skippable=(first[0],))
    return calls


class _FoundCall(NamedTuple):
    """A call in a rendering: its notation without the markers around it, and the texts before and after it."""

    notation: CallFormat
    before: str
    after: str


def _found_in(text: str) -> _FoundCall | None:
    """The call of _NAME in the text."""
    return (_object_in(text) or _named_in(text) or _tagged_in(text)) if _NAME in text else None


def _values_in(text: str, start: int = 0) -> Iterator[tuple[int, int, dict[str, Json]]]:
    """The JSON objects in the text, with their places. Those in another object are left out."""
    for _ in range(_MAX_OBJECTS):
        if (start := text.find("{", start)) < 0:
            return
        try:
            value, end = _DECODER.raw_decode(text, start)
        except (ValueError, RecursionError):
            start += 1
        else:
            yield start, end, value
            start = end


def _object_in(text: str) -> _FoundCall | None:
    for start, end, value in _values_in(text):
        arguments = next((key for key, one in value.items() if _is_arguments(one)), None)
        if arguments == _NAME:
            return _FoundCall(CallFormat(form="object", name_key="", arguments_key=""), text[:start], text[end:])
        name_key = next((key for key, one in value.items() if one == _NAME), None)
        if arguments is not None and name_key is not None:
            id_key = next((key for key, one in value.items() if one == _ID or f"_{key}".endswith("_id")), "")
            notation = CallFormat(form="object", name_key=name_key, arguments_key=arguments, id_key=id_key)
            return _FoundCall(notation, text[:start], text[end:])
    return None


def _is_arguments(value: Json) -> bool:
    return (loaded(value) if isinstance(value, str) else value) == _ARGUMENTS


def _named_in(text: str) -> _FoundCall | None:
    for start, end, value in _values_in(text, text.find(_NAME)):
        if value == _ARGUMENTS:
            before, _, between = text[:start].rpartition(_NAME)
            id_begin, _, name_end = between.rpartition(_ID)
            return _FoundCall(CallFormat(form="named", name_end=name_end, id_begin=id_begin), before, text[end:])
    return None


def _tagged_in(text: str) -> _FoundCall | None:
    place = text.rfind(_NAME, 0, text.find(_KEY, text.find(_NAME)))
    before, own = text[:place], text[place + len(_NAME) :]
    begin, _, rest = own.partition(_KEY)
    before_text, _, rest = rest.partition(_VALUE)
    gap, _, rest = rest.partition(_NEXT)
    before_number, has_all, after = rest.partition(str(_NUMBER))
    if not has_all:
        return None
    if before_number == "=":
        in_python = tuple(f"({_KEY}={quote}{_VALUE}{quote}, {_NEXT}={_NUMBER})" for quote in ("'", '"'))
        return _FoundCall(CallFormat(form="python"), before, after[1:]) if own.startswith(in_python) else None
    parameter_end = _common(gap, after)
    parameter_begin = gap.removeprefix(parameter_end)
    if not begin.endswith(parameter_begin) or not parameter_end:
        return None
    notation = CallFormat(
        form="tagged",
        name_end=begin.removesuffix(parameter_begin),
        parameter_begin=parameter_begin,
        parameter_name_end=before_text,
        parameter_end=parameter_end,
    )
    for kind, of_text, of_number in _VALUE_MARKS:
        mark_begin, _, mark_end = before_text.rpartition(of_text)
        if mark_end and before_number == f"{mark_begin}{of_number}{mark_end}":
            notation = replace(notation, values=kind, parameter_name_end=mark_begin, mark_end=mark_end)
            break
    else:
        if before_text != before_number:
            return None
    return _FoundCall(notation, before, after.removeprefix(parameter_end))


def _common(one: str, other: str, step: Literal[1, -1] = 1) -> str:
    """The units that both texts begin with; with step -1, those that both end with."""
    units, others = ([unit[0] for unit in _UNIT.finditer(text)][::step] for text in (one, other))
    shared = takewhile(lambda pair: pair[0] == pair[1], zip(units, others, strict=False))
    return "".join([unit for unit, _ in shared][::step])


def _last_marker(text: str) -> str:
    """The marker that the text ends with; empty if it ends with something else."""
    found = _LAST_MARKER.search(text.rstrip())
    return found[0] if found else ""
