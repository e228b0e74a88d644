"""The format of a model's answers, found in its chat template.

Owns the comparison: the template renders conversations that differ in one thing, and the differences are the markers of
calls, arguments and reasoning. Pure; it runs when the template is loaded, with at most MAX_RENDERINGS renderings.

    <|assistant|><tool_call>\\n{"name": …}\\n</tool_call>\\n<tool_call>\\n{"name": …}\\n</tool_call><|end|>
    └ beginning ┘└ call_begin ┘          └ call_end ───┘└ between, then a second call                └ end of the turn
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Protocol

import msgspec

from worker.chat.families import declared
from worker.chat.forms import Forms, Message
from worker.chat.marks import Json
from worker.chat.parse import Reader, message_of
from worker.chat.sandbox import Unrendered
from worker.wire.chat_format import HERMES, CallFormat, ChatFormat, ReasoningFormat, ValueForm


class Template(Protocol):
    """The template whose format is wanted."""

    source: str

    @property
    def caps(self) -> frozenset[str]:
        """The parts that appear in the text."""

    def best_forms(self, *, has_tools: bool) -> Forms:
        """The forms that the template supports."""

    def in_forms(self, messages: list[Message], forms: Forms, *, tools: Json, is_open: bool = True) -> str:
        """The prompt with the messages in these forms. Raises: Unrendered."""


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
_QUALIFIER = re.compile(r"(?<![\w.])[a-zA-Z]\w*\.$")
_INDEX = re.compile(r"\d+")
_ID_KEY = re.compile(r"(.*_)?id")

_USER, _NEXT_USER = "needle-user", "needle-again"
_REPLY, _THOUGHT = "needle-reply", "needle-thought"
_NAME, _OTHER = "needle_tool", "needle_other"
_ID, _OTHER_ID = "needle123", "needle456"
"""Mistral's templates support no other length."""
_KEY, _NEXT, _VALUE, _NUMBER = "needle_a", "needle_b", "needle-value", 31415926
_ARGUMENTS: dict[str, Json] = {_KEY: _VALUE, _NEXT: _NUMBER}
"""They are in alphabetical order, because some templates sort them."""

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


def chat_format(template: Template, ends: frozenset[str] = frozenset()) -> ChatFormat:
    """The format of the template's answers. `ends` has the names of the tokens that end an answer, which are not part
    of the format.

    The markers that the template writes win, and its family's declaration adds what no rendering shows. A declaration
    wins if the template renders no calls, if its notation is another one, or if the answer that the template rendered
    cannot be read by what was found. Without a declaration the form is then that of HERMES.
    """
    known = declared(template.source)
    probe = _Probe(template, ends)
    turns = _turns_of(probe, known)
    found = _derived(probe, turns)
    if found is not None and (known is None or _has_form_of(known, found)) and _reads(found, turns):
        if known is None:
            return found
        return _completed(found, known, has_several=probe.forms.several_calls == "own")
    return known or msgspec.structs.replace(HERMES, reasoning=turns.reasoning)


def _derived(probe: "_Probe", turns: "_Turns") -> ChatFormat | None:
    """The format that the renderings show; None if they show no call."""
    calls = _calls_of(probe, turns) if _NAME in turns.call and _REPLY in turns.reply else None
    if calls is None:
        return None
    begin, end = _content_of(turns)
    return ChatFormat(
        name=_name_of(calls),
        source="template",
        calls=calls,
        reasoning=turns.reasoning,
        content_begin=begin,
        content_end=end,
    )


def _has_form_of(known: ChatFormat, found: ChatFormat) -> bool:
    return known.calls is not None and found.calls is not None and known.calls.form == found.calls.form


def _completed(found: ChatFormat, known: ChatFormat, *, has_several: bool) -> ChatFormat:
    """The format that was found, with what its family's declaration adds. `has_several` says that the template renders
    several calls in one message."""
    assert found.calls is not None
    assert known.calls is not None
    begin, end = found.content_begin or known.content_begin, found.content_end or known.content_end
    last = found.calls.section_end
    for text in known.hidden:
        last = last.removesuffix(text)
    if last and known.calls.section_end.startswith(last):
        last = known.calls.section_end  # its last token may also end the turn
    calls = msgspec.structs.replace(
        found.calls,
        # The template writes no text, between markers.
        section_begin=found.calls.section_begin.removeprefix(begin + end),
        section_end=last,
        skippable=known.calls.skippable or found.calls.skippable,
        between=found.calls.between if has_several else known.calls.between,
    )
    reasoning = found.reasoning or known.reasoning
    if reasoning and known.reasoning and known.reasoning.end.strip() == reasoning.end.strip():
        reasoning = known.reasoning
    return msgspec.structs.replace(
        found,
        name=known.name,
        calls=calls,
        reasoning=reasoning,
        opening=known.opening,
        content_begin=begin,
        content_end=end,
        hidden=known.hidden,
    )


def _reads(form: ChatFormat, turns: "_Turns") -> bool:
    """True if the answer that the template rendered is read as the call that was put into it."""
    found = _found_in(turns.call, _NAME, _ID)
    if found is None:
        return False
    written, end = turns.written(turns.call[: found.end]), turns.without_end(turns.call[found.end :])
    reader = Reader(form, {_NAME: _SCHEMA}, new_id=str)
    message = message_of([*reader.push(written + end), *reader.finish()])
    calls = [call for call in message.calls if call.name == _NAME and _is_arguments(call.arguments)]
    return len(calls) == len(message.calls) == 1 and "needle" not in message.content


# ── renderings ───────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class _Probe:
    """Renders conversations that differ in one thing."""

    template: Template
    ends: frozenset[str]

    @property
    def has_tools(self) -> bool:
        return "tools" in self.template.caps

    @property
    def forms(self) -> Forms:
        return self.template.best_forms(has_tools=self.has_tools)

    def turn(self, *messages: Message, is_open: bool = False) -> str:
        """The text after the user's words; empty if the template refuses the messages."""
        conversation: list[Message] = [{"role": "user", "content": _USER}, *messages]
        tools: Json = _TOOLS if self.has_tools else None
        try:
            text = self.template.in_forms(conversation, self.forms, tools=tools, is_open=is_open)
        except Unrendered:
            return ""
        own = text.rpartition(_USER)[2]
        return own if len(own) <= _MAX_TURN_CHARS else ""


@dataclass(frozen=True, slots=True)
class _Turns:
    """The renderings after the user's words, and the reasoning's markers."""

    prompt: str
    """The text that an answer follows."""
    reply: str
    call: str
    """One call; empty if the template does not render calls."""
    tail: str
    """The text after a reply, up to the next user's words."""
    ends: frozenset[str]
    reasoning: ReasoningFormat | None

    @property
    def beginning(self) -> str:
        """The text that begins the assistant's turn."""
        if self.prompt.strip() and self.reply.startswith(self.prompt) and self.call.startswith(self.prompt):
            return self.prompt
        return _common_prefix(self.reply, self.call)

    def written(self, text: str) -> str:
        """The part of the text that the model has written, without the reasoning. The text begins after the user's
        words."""
        own = text.removeprefix(self.beginning)
        return (own.rpartition(self.reasoning.end)[2] if self.reasoning else own).lstrip()

    def without_end(self, text: str) -> str:
        """The text, which is from the end of a turn, without what ends the turn."""
        for end in (*self.ends, self._end.strip(), self._shared_in(text)):
            text = text.partition(end)[0] if end else text
        return text.rstrip()

    def _shared_in(self, text: str) -> str:
        """The first marker in the text that other turns have, too, and no call; empty if there is none."""
        others, call = self.tail + self.prompt, self.written(self.call.partition(str(_NUMBER))[0])
        shared = (found[0] for found in _MARKER.finditer(text) if found[0] in others and found[0] not in call)
        return next(shared, "")

    @property
    def _end(self) -> str:
        """The end of a call's turn that a reply's turn has, too."""
        units = _units(self.call)
        last = ""
        while units and (unit := units.pop()) + last in self.tail:
            last = unit + last
        return last


def _turns_of(probe: _Probe, known: ChatFormat | None) -> _Turns:
    prompt, reply = probe.turn(is_open=True), probe.turn(_says(_REPLY))
    call = probe.turn(_says("", _call())) if probe.forms.takes_calls else ""
    again = probe.turn(_says(_REPLY), {"role": "user", "content": _NEXT_USER})
    tail = again.partition(_REPLY)[2].partition(_NEXT_USER)[0]
    reasoning = _reasoning_of(probe, prompt, reply) or (known.reasoning if known else None)
    return _Turns(prompt, reply, call, tail, probe.ends, reasoning)


def _says(content: Json, *calls: Json) -> Message:
    message: Message = {"role": "assistant", "content": content}
    return {**message, "tool_calls": list(calls)} if calls else message


def _call(name: str = _NAME, call_id: str = _ID) -> Json:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": dict(_ARGUMENTS)}}


# ── calls ────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class _Found:
    """A call in a rendering: its notation without the markers around it, and its place."""

    notation: CallFormat
    start: int
    end: int


def _calls_of(probe: _Probe, turns: _Turns) -> CallFormat | None:
    """The format of calls. None if the notation is unknown, or if a marker depends on the call."""
    found = _found_in(turns.call, _NAME, _ID)
    if found is None:
        return None
    both = probe.turn(_says("", _call(), _call(_OTHER, _OTHER_ID))) if probe.forms.several_calls == "own" else ""
    first, second = _found_in(both, _NAME, _ID), _found_in(both, _OTHER, _OTHER_ID)
    if first is None or second is None:
        before, last = turns.written(turns.call[: found.start]), turns.without_end(turns.call[found.end :])
        calls: CallFormat | None = msgspec.structs.replace(found.notation, call_begin=before, call_end=last)
    else:
        before, last = turns.written(both[: first.start]), turns.without_end(both[second.end :])
        gap = both[first.end : second.start].replace(_OTHER_ID, _ID)
        notation = _indexed(first.notation, second.notation)
        calls = None if notation is None else _around(notation, before, gap, last)
        if calls is not None and turns.without_end(calls.between) != calls.between.rstrip():
            # The turn ends after each call.
            calls = msgspec.structs.replace(calls, between="")
    if calls is None:
        return None
    calls = _with_skippable(_with_qualifier(_with_id(calls)))
    is_begun = calls.form == "object" or calls.section_begin or calls.call_begin
    return calls if is_begun and not _is_odd(calls) else None


def _around(notation: CallFormat, before: str, gap: str, last: str) -> CallFormat:
    """The notation with the markers around calls. `before`: the text before the first call; `gap`: between the first
    and the second; `last`: the text after the second."""
    begin, end = _common_suffix(before, gap).lstrip(), _common_prefix(gap, last).rstrip()
    shared = gap[len(gap) - len(begin) : len(end)]
    if _MARKER.fullmatch(shared.strip()):
        begin = begin[len(shared) :]
    elif shared:
        end = end[: len(end) - len(shared)]
    rest = gap[: len(gap) - len(begin)]
    section = before[: len(before) - len(begin)]
    return msgspec.structs.replace(
        notation,
        section_begin=section,
        call_begin=begin,
        call_end=end,
        between=rest[len(end) :],
        # Without a beginning, this is the end of the turn.
        section_end=last[len(end) :] if section else "",
    )


def _indexed(first: CallFormat, second: CallFormat) -> CallFormat | None:
    """The notation of two calls, whose names may have numbers after them. None if they differ in another way."""
    if first == second:
        return first
    for found in _INDEX.finditer(first.name_end):
        begin, n, end = first.name_end[: found.start()], int(found[0]), first.name_end[found.end() :]
        if msgspec.structs.replace(first, name_end=f"{begin}{n + 1}{end}") == second:
            return msgspec.structs.replace(first, name_end=end, index_begin=begin, first_index=n)
    return None


def _with_id(calls: CallFormat) -> CallFormat:
    """The format with the id that stands before the name apart from the markers."""
    begin, has_id, end = calls.call_begin.partition(_ID)
    return msgspec.structs.replace(calls, call_begin=begin, id_end=end) if has_id else calls


def _with_qualifier(calls: CallFormat) -> CallFormat:
    """The format with the word before each name (`functions.`) apart from the marker."""
    found = _QUALIFIER.search(calls.call_begin)
    if found is None or calls.form == "object":
        return calls
    begin = calls.call_begin[: found.start()]
    return msgspec.structs.replace(calls, call_begin=begin, name_prefix=found[0], is_whole_id=bool(calls.index_begin))


def _with_skippable(calls: CallFormat) -> CallFormat:
    """The format with the first of two markers that begin a tagged call: models leave it out."""
    first = re.match(rf"(?:{_MARKER.pattern})\s*(?=<)", calls.call_begin)
    if calls.form != "tagged" or first is None:
        return calls
    return msgspec.structs.replace(calls, skippable=(first[0],))


def _is_odd(calls: CallFormat) -> bool:
    """True if a text of the format depends on the call, or is no marker."""
    texts = [value for value in msgspec.structs.astuple(calls) if isinstance(value, str)]
    return any("needle" in text or len(text) > _MAX_MARKER_CHARS for text in texts)


def _found_in(text: str, name: str, call_id: str) -> _Found | None:
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


def _object_in(text: str, name: str, call_id: str) -> _Found | None:
    for start, end, value in _values_in(text):
        assert isinstance(value, dict)
        if notation := _members(value, name, call_id):
            return _Found(notation, start, end)
    return None


def _members(value: dict[str, Json], name: str, call_id: str) -> CallFormat | None:
    """The members of an object that is a call."""
    arguments = next((key for key, one in value.items() if _is_arguments(one)), None)
    if arguments == name:
        return CallFormat(form="object", name_key="", arguments_key="")
    name_key = next((key for key, one in value.items() if one == name), None)
    if arguments is None or name_key is None:
        return None
    id_key = next((key for key, one in value.items() if one == call_id or _ID_KEY.fullmatch(key)), "")
    return CallFormat(form="object", name_key=name_key, arguments_key=arguments, id_key=id_key)


def _is_arguments(value: Json) -> bool:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return False
    return value == _ARGUMENTS


def _named_in(text: str, name: str, call_id: str) -> _Found | None:
    place = text.find(name)
    found = next(((start, end) for start, end, value in _values_in(text, place) if value == _ARGUMENTS), None)
    if found is None:
        return None
    start, end = found
    place = text.rfind(name, 0, start)
    between = text[place + len(name) : start]
    id_begin, has_id, name_end = between.partition(call_id)
    if not has_id:
        id_begin, name_end = "", between
    return _Found(CallFormat(form="named", name_end=name_end, id_begin=id_begin), place, end)


def _tagged_in(text: str, name: str) -> _Found | None:
    key = text.find(_KEY, text.find(name))
    place = text.rfind(name, 0, key)
    texts, end = [], place + len(name)
    for word in (_KEY, _VALUE, _NEXT, str(_NUMBER)):
        start = text.find(word, end)
        if start < 0:
            return None
        texts.append(text[end:start])
        end = start + len(word)
    begin, before_text, gap, before_number = texts
    if before_number == "=":
        return _python_at(text, place, end, texts)
    marks = _marks_in(before_text, before_number)
    if marks is None:
        return None
    parameter_end = _common_prefix(gap, text[end:])
    parameter_begin = gap[len(parameter_end) :]
    if not begin.endswith(parameter_begin) or not parameter_end:
        return None
    values, parameter_name_end, mark_end = marks
    notation = CallFormat(
        form="tagged",
        name_end=begin.removesuffix(parameter_begin),
        parameter_begin=parameter_begin,
        parameter_name_end=parameter_name_end,
        parameter_end=parameter_end,
        values=values,
        mark_end=mark_end,
    )
    return _Found(notation, place, end + len(parameter_end))


def _marks_in(before_text: str, before_number: str) -> tuple[ValueForm, str, str] | None:
    """The way to know an argument's type, and the texts around the mark of it, if there is one."""
    if before_text == before_number:
        return "schema", before_text, ""
    kinds: tuple[tuple[ValueForm, str, str], ...] = (
        ("is_string", "true", "false"),
        ("type", "string", "number"),
        ("type", "string", "integer"),
    )
    for values, of_text, of_number in kinds:
        begin, _, end = before_text.rpartition(of_text)
        if end and before_number == f"{begin}{of_number}{end}":
            return values, begin, end
    return None


def _python_at(text: str, place: int, end: int, texts: list[str]) -> _Found | None:
    begin, before_text, gap, before_number = texts
    quote = before_text[-1:]
    is_python = begin == "(" and before_number == "=" and quote in ("'", '"') and gap == f"{quote}, "
    if not is_python or not text.startswith(")", end):
        return None
    return _Found(CallFormat(form="python"), place, end + 1)


# ── reasoning and content ────────────────────────────────────────────────────────────────────────


def _reasoning_of(probe: _Probe, prompt: str, reply: str) -> ReasoningFormat | None:
    """The markers around a rendered reasoning; else those that the prompt opens, or that the template names."""
    thought: Message = {"reasoning_content": _THOUGHT}
    for message, after in (({**_says(_REPLY), **thought}, _REPLY), ({**_says("", _call()), **thought}, _NAME)):
        if after == _NAME and not probe.forms.takes_calls:
            continue
        before, found, rest = probe.turn(message).partition(_THOUGHT)
        if found and after in rest:
            begin = before.removeprefix(_common_prefix(before, reply)).strip()
            end = _MARKER.search(rest.partition(after)[0])
            if not begin and end and end[0] in reply and reply.count(_last_marker(before)) == 1:
                # The reply has the markers, too, with nothing between them.
                begin = _last_marker(before)
            if begin and end:
                return ReasoningFormat(begin=begin, end=end[0])
    source = probe.template.source
    pairs = [pair for pair in _REASONING if all(marker in source for marker in pair)]
    begun = _last_marker(prompt)
    pairs.sort(key=lambda pair: begun not in pair)
    return ReasoningFormat(begin=pairs[0][0], end=pairs[0][1]) if pairs else None


def _last_marker(text: str) -> str:
    """The marker that the text ends with; empty if it ends with something else."""
    found = list(_MARKER.finditer(text.rstrip()))
    return found[-1][0] if found and found[-1].end() == len(text.rstrip()) else ""


def _content_of(turns: _Turns) -> tuple[str, str]:
    """The markers around an answer's text."""
    before, _, after = turns.reply.partition(_REPLY)
    begin = turns.written(before)
    if turns.reasoning:
        begin = begin.replace(turns.reasoning.begin, "")
    end = _MARKER.match(after.lstrip())
    is_own = end is not None and end[0] not in turns.call.removeprefix(turns.beginning) and end[0] not in turns.ends
    return begin.strip(), end[0] if begin.strip() and end and is_own else ""


# ── comparison ───────────────────────────────────────────────────────────────────────────────────


def _units(text: str) -> list[str]:
    return [unit[0] for unit in _UNIT.finditer(text)]


def _common_prefix(one: str, other: str) -> str:
    """The units that both texts begin with."""
    n_chars = 0
    for unit, same in zip(_units(one), _units(other), strict=False):
        if unit != same:
            break
        n_chars += len(unit)
    return one[:n_chars]


def _common_suffix(one: str, other: str) -> str:
    """The units that both texts end with."""
    n_chars = 0
    for unit, same in zip(reversed(_units(one)), reversed(_units(other)), strict=False):
        if unit != same:
            break
        n_chars += len(unit)
    return one[len(one) - n_chars :]


# ── names ────────────────────────────────────────────────────────────────────────────────────────


def _name_of(calls: CallFormat) -> str:
    """The name of a format that is of no known family."""
    begin = f"{calls.section_begin}{calls.call_begin}"
    if calls.form == "object" and begin.strip() == "<tool_call>":
        return HERMES.name
    found = _MARKER.search(begin)
    return f"{calls.form} {found[0]}" if found else calls.form
