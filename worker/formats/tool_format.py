"""The format of a model's answers: its family's row in formats.toml, and what its chat template shows.

The template renders conversations that differ in one thing, and the differences are the markers of calls, arguments and
reasoning. Pure; it runs when the template is loaded, with at most MAX_RENDERINGS renderings.

    <|assistant|><tool_call>\\n{"name": …}\\n</tool_call>\\n<tool_call>\\n{"name": …}\\n</tool_call><|end|>
    └ beginning ┘└ call_begin ┘          └ call_end ───┘└ between, then a second call                └ end of the turn
"""

import json
import re
from collections.abc import Iterator
from functools import cache, cached_property
from importlib.resources import files
from itertools import takewhile
from typing import Final, NamedTuple

import msgspec
from msgspec.structs import replace

from worker.formats.read.parse import Reader, message_of
from worker.formats.render.escapes import Json
from worker.formats.render.forms import Message
from worker.formats.render.probes import call, calling, says
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
_INDEX = re.compile(r"\d+")
_ID_KEY = re.compile(r"(.*_)?id")

_SAMPLE = "sample"
"""The word in all texts of the conversations. No marker has it."""
_USER, _NEXT_USER, _REPLY, _THOUGHT = "sample-user", "sample-again", "sample-reply", "sample-thought"
_NAME, _OTHER = "sample_tool", "sample_other"
_ID, _OTHER_ID = "sample123", "sample456"
"""Mistral's templates support no other length."""
_KEY, _NEXT, _VALUE, _NUMBER = "sample_a", "sample_b", "sample-value", 31415926
_ARGUMENTS: Json = {_KEY: _VALUE, _NEXT: _NUMBER}
"""They are in alphabetical order, because some templates sort them."""
_CALL = call(_ID, _ARGUMENTS, _NAME)
_SCHEMA: Json = {
    "type": "object",
    "properties": {_KEY: {"type": "string"}, _NEXT: {"type": "integer"}},
    "required": [_KEY, _NEXT],
}
_TOOLS: list[Json] = [
    {"type": "function", "function": {"name": name, "description": "A tool.", "parameters": _SCHEMA}}
    for name in (_NAME, _OTHER)
]
_DECODER = json.JSONDecoder()

_REASONING: Final = (
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<seed:think>", "</seed:think>"),
    ("<mm:think>", "</mm:think>"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<|begin_of_thought|>", "<|end_of_thought|>"),
)
"""Markers that a template may name without rendering a reasoning between them."""
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


@cache
def families() -> tuple[Family, ...]:
    """Return the known families. The first one that fits counts."""
    text = files(__package__).joinpath("formats.toml").read_bytes()
    rows = msgspec.toml.decode(text, type=dict[str, tuple[Family, ...]])["family"]
    return tuple(replace(row, format=replace(row.format, source="declared")) for row in rows)


def declared(source: str) -> ChatFormat | None:
    """Return the notation of the family that a template's source is of, or None if it is of no known family."""
    for family in families():
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
    calls = _calls_of(turns) if _NAME in turns.call and _REPLY in turns.reply else None
    if calls is not None and (known is None or (known.calls is not None and known.calls.form == calls.form)):
        begin, end = turns.content_markers
        found = ChatFormat(
            name=_name_of(calls),
            source="template",
            calls=calls,
            reasoning=turns.reasoning,
            content_begin=begin,
            content_end=end,
        )
        if _reads(found, turns):
            return found if known is None else _completed(found, known, has_several=turns.has_several)
    return known or replace(HERMES, reasoning=turns.reasoning)


def _completed(found: ChatFormat, known: ChatFormat, *, has_several: bool) -> ChatFormat:
    """The format that was found, with what its family's row adds. `has_several` says that the template renders several
    calls in one message."""
    calls, row = found.calls, known.calls
    assert calls is not None
    assert row is not None
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
        between=calls.between if has_several else row.between,
    )
    reasoning = found.reasoning or known.reasoning
    if reasoning and known.reasoning and known.reasoning.end.strip() == reasoning.end.strip():
        reasoning = known.reasoning
    return replace(known, source=found.source, calls=calls, reasoning=reasoning, content_begin=begin, content_end=end)


def _name_of(calls: CallFormat) -> str:
    begin = f"{calls.section_begin}{calls.call_begin}"
    if calls.form == "object" and begin.strip() == "<tool_call>":
        return HERMES.name
    found = _MARKER.search(begin)
    return f"{calls.form} {found[0]}" if found else calls.form


class _Turns:
    """The texts of turns that differ in one thing, each after the user's words."""

    def __init__(self, template: ChatTemplate, ends: frozenset[str], known: ChatFormat | None) -> None:
        self._template = template
        self._has_tools = "tools" in template.caps
        self._forms = template.forms_with if self._has_tools else template.forms_without
        self._ends = ends
        self.has_several = self._forms.several_calls == "own"
        self.prompt = self._turn(is_open=True)
        """The text that an answer follows."""
        self.reply = self._turn(says("assistant", _REPLY))
        self.call = self._turn(calling(_CALL, content="")) if self._forms.takes_calls else ""
        """One call; empty if the template does not render calls."""
        self.two_calls = (
            self._turn(calling(_CALL, call(_OTHER_ID, _ARGUMENTS, _OTHER), content="")) if self.has_several else ""
        )
        again = self._turn(says("assistant", _REPLY), says("user", _NEXT_USER))
        self._tail = again.partition(_REPLY)[2].partition(_NEXT_USER)[0]
        """The text after a reply, up to the next user's words."""
        is_begun = self.prompt.strip() and self.reply.startswith(self.prompt) and self.call.startswith(self.prompt)
        self._beginning = self.prompt if is_begun else _common_prefix(self.reply, self.call)
        """The text that begins the assistant's turn."""
        self.reasoning = self._rendered_reasoning() or self._named_reasoning() or (known.reasoning if known else None)

    def _turn(self, *messages: Message, is_open: bool = False) -> str:
        """The text after the user's words; empty if the template refuses the messages."""
        conversation: list[Message] = [says("user", _USER), *messages]
        tools: Json = _TOOLS if self._has_tools else None
        try:
            text = self._template.in_forms(conversation, self._forms, tools, is_open=is_open)
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
        for end in (*self._ends, self._shared_end.strip(), next(shared, "")):
            text = text.partition(end)[0] if end else text
        return text.rstrip()

    @cached_property
    def _shared_end(self) -> str:
        units, last = _units(self.call), ""
        while units and (unit := units.pop()) + last in self._tail:
            last = unit + last
        return last

    def _rendered_reasoning(self) -> ReasoningFormat | None:
        """The markers around a reasoning that the template renders before a reply, or before a call."""
        for message, after in ((says("assistant", _REPLY), _REPLY), (calling(_CALL, content=""), _NAME)):
            if after == _NAME and not self._forms.takes_calls:
                continue
            before, found, rest = self._turn({**message, "reasoning_content": _THOUGHT}).partition(_THOUGHT)
            if not found or after not in rest:
                continue
            begin = before.removeprefix(_common_prefix(before, self.reply)).strip()
            end = _MARKER.search(rest.partition(after)[0])
            if not begin and end and end[0] in self.reply and self.reply.count(_last_marker(before)) == 1:
                # The reply has the markers, too, with nothing between them.
                begin = _last_marker(before)
            if begin and end:
                return ReasoningFormat(begin=begin, end=end[0])
        return None

    def _named_reasoning(self) -> ReasoningFormat | None:
        """The markers that the prompt opens, or that the template names."""
        pairs = [pair for pair in _REASONING if all(marker in self._template.source for marker in pair)]
        begun = _last_marker(self.prompt)
        pairs.sort(key=lambda pair: begun not in pair)
        return ReasoningFormat(begin=pairs[0][0], end=pairs[0][1]) if pairs else None

    @property
    def content_markers(self) -> tuple[str, str]:
        """The markers around an answer's text."""
        before, _, after = self.reply.partition(_REPLY)
        begin = self.written(before)
        if self.reasoning:
            begin = begin.replace(self.reasoning.begin, "")
        end = _MARKER.match(after.lstrip())
        is_ended = end and end[0] not in self._ends and end[0] not in self.call.removeprefix(self._beginning)
        return begin.strip(), end[0] if end and is_ended and begin.strip() else ""


def _reads(form: ChatFormat, turns: _Turns) -> bool:
    """True if the answer that the template rendered is read as the call that was put into it."""
    found = _found_in(turns.call, _NAME, _ID)
    if found is None:
        return False
    reader = Reader(form, {_NAME: _SCHEMA}, new_id=str)
    text = turns.written(turns.call[: found.end]) + turns.without_end(turns.call[found.end :])
    message = message_of([*reader.push(text), *reader.finish()])
    calls = [call for call in message.calls if call.name == _NAME and _is_arguments(call.arguments)]
    return len(calls) == len(message.calls) == 1 and _SAMPLE not in message.content


def _calls_of(turns: _Turns) -> CallFormat | None:
    """The format of calls. None if the notation is unknown, or if a marker depends on the call."""
    text, alone = turns.two_calls, _found_in(turns.call, _NAME, _ID)
    first, second = _found_in(text, _NAME, _ID), _found_in(text, _OTHER, _OTHER_ID)
    if alone is None:
        return None
    if first is None or second is None:
        before, last = turns.written(turns.call[: alone.start]), turns.without_end(turns.call[alone.end :])
        calls = replace(alone.notation, call_begin=before, call_end=last)
    elif (notation := _indexed(first.notation, second.notation)) is None:
        return None
    else:
        gap = text[first.end : second.start].replace(_OTHER_ID, _ID)
        calls = _around(notation, turns.written(text[: first.start]), gap, turns.without_end(text[second.end :]))
        if turns.without_end(calls.between) != calls.between.rstrip():
            calls = replace(calls, between="")  # the turn ends after each call
    calls = _divided(calls)
    texts = [value for value in msgspec.structs.astuple(calls) if isinstance(value, str)]
    is_odd = any(_SAMPLE in text or len(text) > _MAX_MARKER_CHARS for text in texts)
    return calls if not is_odd and (calls.form == "object" or calls.section_begin or calls.call_begin) else None


def _around(notation: CallFormat, before: str, gap: str, last: str) -> CallFormat:
    """The notation with the markers around calls. `before`: the text before the first call; `gap`: between the first
    and the second; `last`: the text after the second."""
    begin, end = _common_suffix(before, gap).lstrip(), _common_prefix(gap, last).rstrip()
    shared = gap[len(gap) - len(begin) : len(end)]
    if _MARKER.fullmatch(shared.strip()):
        begin = begin[len(shared) :]
    elif shared:
        end = end[: len(end) - len(shared)]
    section = before[: len(before) - len(begin)]
    return replace(
        notation,
        section_begin=section,
        call_begin=begin,
        call_end=end,
        between=gap[len(end) : len(gap) - len(begin)],
        section_end=last[len(end) :] if section else "",  # without a beginning, this is the end of the turn
    )


def _indexed(first: CallFormat, second: CallFormat) -> CallFormat | None:
    """The notation of two calls, whose names may have numbers after them. None if they differ in another way."""
    if first == second:
        return first
    for found in _INDEX.finditer(first.name_end):
        begin, n, end = first.name_end[: found.start()], int(found[0]), first.name_end[found.end() :]
        if replace(first, name_end=f"{begin}{n + 1}{end}") == second:
            return replace(first, name_end=end, index_begin=begin, first_index=n)
    return None


def _divided(calls: CallFormat) -> CallFormat:
    """The format with what call_begin has besides the marker: an id, the word before each name (`functions.`), and the
    first of two markers that begin a tagged call, which models leave out."""
    begin, has_id, id_end = calls.call_begin.partition(_ID)
    if has_id:
        calls = replace(calls, call_begin=begin, id_end=id_end)
    if calls.form != "object" and (word := _QUALIFIER.search(begin)):
        begin = begin[: word.start()]
        calls = replace(calls, call_begin=begin, name_prefix=word[0], is_whole_id=bool(calls.index_begin))
    if calls.form == "tagged" and (first := _FIRST_MARKER.match(begin)):
        calls = replace(calls, skippable=(first[0],))
    return calls


class _FormatFound(NamedTuple):
    """A call in a rendering: its notation without the markers around it, and its place."""

    notation: CallFormat
    start: int
    end: int


def _found_in(text: str, name: str, call_id: str) -> _FormatFound | None:
    """The call with this name in the text."""
    if name not in text:
        return None
    return _object_in(text, name, call_id) or _named_in(text, name, call_id) or _tagged_in(text, name)


def _values_in(text: str, start: int = 0) -> Iterator[tuple[int, int, Json]]:
    """The JSON objects in the text, with their places. Those in another object are left out."""
    for _ in range(_MAX_OBJECTS):
        if (start := text.find("{", start)) < 0:
            return
        try:
            value, end = _DECODER.raw_decode(text, start)
        except (ValueError, RecursionError):
            start += 1
            continue
        yield start, end, value
        start = end


def _object_in(text: str, name: str, call_id: str) -> _FormatFound | None:
    for start, end, value in _values_in(text):
        assert isinstance(value, dict)
        arguments = next((key for key, one in value.items() if _is_arguments(one)), None)
        if arguments == name:
            return _FormatFound(CallFormat(form="object", name_key="", arguments_key=""), start, end)
        name_key = next((key for key, one in value.items() if one == name), None)
        if arguments is not None and name_key is not None:
            id_key = next((key for key, one in value.items() if one == call_id or _ID_KEY.fullmatch(key)), "")
            notation = CallFormat(form="object", name_key=name_key, arguments_key=arguments, id_key=id_key)
            return _FormatFound(notation, start, end)
    return None


def _is_arguments(value: Json) -> bool:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return False
    return value == _ARGUMENTS


def _named_in(text: str, name: str, call_id: str) -> _FormatFound | None:
    for start, end, value in _values_in(text, text.find(name)):
        if value == _ARGUMENTS:
            place = text.rfind(name, 0, start)
            id_begin, has_id, name_end = text[place + len(name) : start].rpartition(call_id)
            notation = CallFormat(form="named", name_end=name_end, id_begin=id_begin if has_id else "")
            return _FormatFound(notation, place, end)
    return None


def _tagged_in(text: str, name: str) -> _FormatFound | None:
    place = text.rfind(name, 0, text.find(_KEY, text.find(name)))
    texts, end = [], place + len(name)
    for word in (_KEY, _VALUE, _NEXT, str(_NUMBER)):
        start = text.find(word, end)
        if start < 0:
            return None
        texts.append(text[end:start])
        end = start + len(word)
    begin, before_text, gap, before_number = texts
    if before_number == "=":
        quote = before_text[-1:]
        is_python = begin == "(" and quote in ("'", '"') and gap == f"{quote}, " and text.startswith(")", end)
        return _FormatFound(CallFormat(form="python"), place, end + 1) if is_python else None
    values: ValueForm = "schema"
    parameter_name_end, mark_end = before_text, ""
    for kind, of_text, of_number in _VALUE_MARKS:
        mark_begin, _, rest = before_text.rpartition(of_text)
        if rest and before_number == f"{mark_begin}{of_number}{rest}":
            values, parameter_name_end, mark_end = kind, mark_begin, rest
            break
    parameter_end = _common_prefix(gap, text[end:])
    parameter_begin = gap[len(parameter_end) :]
    is_marked = bool(mark_end) or before_text == before_number
    if not is_marked or not begin.endswith(parameter_begin) or not parameter_end:
        return None
    notation = CallFormat(
        form="tagged",
        name_end=begin.removesuffix(parameter_begin),
        parameter_begin=parameter_begin,
        parameter_name_end=parameter_name_end,
        parameter_end=parameter_end,
        values=values,
        mark_end=mark_end,
    )
    return _FormatFound(notation, place, end + len(parameter_end))


def _units(text: str) -> list[str]:
    return [unit[0] for unit in _UNIT.finditer(text)]


def _common_prefix(one: str, other: str) -> str:
    return "".join(_common(_units(one), _units(other)))


def _common_suffix(one: str, other: str) -> str:
    return "".join(_common(_units(one)[::-1], _units(other)[::-1])[::-1])


def _common(units: list[str], others: list[str]) -> list[str]:
    return [one for one, _ in takewhile(lambda pair: pair[0] == pair[1], zip(units, others, strict=False))]


def _last_marker(text: str) -> str:
    """The marker that the text ends with; empty if it ends with something else."""
    found = _LAST_MARKER.search(text.rstrip())
    return found[0] if found else ""
