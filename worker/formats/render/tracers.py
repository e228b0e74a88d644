"""Check that a rendering contains all of a conversation.

Each text gets a unique private-use character, its tracer. It stays with the text through trimming, cutting and JSON.
"""

import json
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import dropwhile

from worker.formats.render.escapes import Json
from worker.formats.render.forms import END_OF_THOUGHT, LEADING, RESULTS, Message, calls_of, function_of, object_of

_PRIVATE = re.compile("[\U000f0000-\U0010ffff]")
_TAIL_CHARS = 200
"""The number of characters at a text's end that are searched for a word."""
_WORD = re.compile(r"\w+")
_ESCAPED = re.compile(r"\\U([0-9a-f]{8})|\\u(d[89ab][0-9a-f]{2})\\u(d[c-f][0-9a-f]{2})")
"""The form of a tracer if a template writes an object in Python's syntax, or JSON in ASCII."""


@dataclass(frozen=True, slots=True)
class Misplaced:
    """The first message that is not in a rendering, and the first that does not follow the one before it; None if there
    is no such message."""

    lost: int | None
    moved: int | None


@dataclass(slots=True)
class _TracedTurn:
    """The tracers of one message."""

    at: int
    role: Json
    said: list[str] = field(default_factory=list)
    """The tracers in its content."""
    called: list[str] = field(default_factory=list)
    """The tracers in its calls."""


@dataclass(slots=True)
class Tracers:
    """The messages with tracers in their contents, in names of functions, and in arguments. Reasoning has no tracer,
    because templates deliberately omit it."""

    characters: Iterator[str]
    """The characters that are neither in the conversation nor in the template."""
    words: frozenset[str]
    """The template's words, which it may search for in a text."""
    _turns: list[_TracedTurn] = field(default_factory=list)

    def put_into(self, messages: list[Message]) -> list[Message]:
        """Copies of the messages with tracers."""
        made = []
        for at, message in enumerate(messages):
            turn = _TracedTurn(at, message.get("role"))
            self._turns.append(turn)
            made.append(self._message(message, turn))
        return made

    def found_in(self, text: str) -> Misplaced:
        """The messages that the rendering lost or moved."""
        positions: dict[str, list[int]] = {}
        for found in _PRIVATE.finditer(_ESCAPED.sub(_unescaped, text)):
            positions.setdefault(found[0], []).append(found.start())
        lost = next((turn.at for turn in self._turns if not positions.keys() >= {*turn.said, *turn.called}), None)
        return Misplaced(lost, self._moved(positions) if lost is None else lost)

    def _moved(self, positions: Mapping[str, list[int]]) -> int | None:
        """The first message that does not follow the one before it. A template may put leading system messages
        anywhere, and may order results by their calls or calls by their results."""

        def positions_after(start: int, tracers: list[str]) -> list[int]:
            """The first position of each tracer at or after the start; -1 if there is none."""
            return [next((position for position in positions[one] if position >= start), -1) for one in tracers]

        end = end_of_calls = start_of_results = 0
        for turn in dropwhile(lambda turn: turn.role in LEADING, self._turns):
            is_result = turn.role in RESULTS
            if not is_result:
                end = max(end, end_of_calls)
            start = start_of_results if is_result else end
            said, called = positions_after(start, turn.said), positions_after(start, turn.called)
            if -1 in said + called:
                return turn.at
            end, end_of_calls = max([end, *said]), max([end_of_calls, *called])
            if not is_result:
                start_of_results = end
        return None

    def _message(self, message: Message, turn: _TracedTurn) -> Message:
        made, content = dict(message), message.get("content")
        if isinstance(content, str):
            made["content"] = self._text(content, turn.said, is_thought=turn.role == "assistant")
        elif isinstance(content, list):
            made["content"] = [
                {**part, "text": self._text(str(part["text"]), turn.said)}
                if isinstance(part, dict) and isinstance(part.get("text"), str)
                else part
                for part in content
            ]
        if calls := calls_of(message):
            made["tool_calls"] = [{**call, "function": self._called(function_of(call), turn.called)} for call in calls]
        return made

    def _called(self, function: dict[str, Json], into: list[str]) -> Json:
        name, arguments = function.get("name"), function.get("arguments")
        called = object_of(arguments) if isinstance(arguments, str) else arguments
        traced = self._inside(called, into)
        if isinstance(arguments, str) and isinstance(called, dict):
            traced = json.dumps(traced, ensure_ascii=False)
        return {**function, "name": self._inside(name, into), "arguments": traced}

    def _inside(self, value: Json, into: list[str]) -> Json:
        """The value with a tracer in the last text that is in it."""
        if isinstance(value, str):
            return self._text(value, into)
        if isinstance(value, dict):
            for key, inner in reversed(value.items()):
                if (made := self._inside(inner, into)) != inner:
                    return value | {key: made}
        elif isinstance(value, list):
            for at, inner in reversed([*enumerate(value)]):
                if (made := self._inside(inner, into)) != inner:
                    return [*value[:at], made, *value[at + 1 :]]
        return value

    def _text(self, text: str, into: list[str], *, is_thought: bool = False) -> str:
        """The text with a tracer. It is after the first letter of the last word that the template does not contain, or
        else after the last sign. A text of spaces gets none."""
        start = 0
        if is_thought:
            start = max((found.end() for found in END_OF_THOUGHT.finditer(text)), default=0)
        tail = max(start, len(text) - _TAIL_CHARS)
        words = [word for word in _WORD.finditer(text, tail) if word[0] not in self.words]
        at = words[-1].start() + 1 if words else len(text.rstrip())
        if at <= start:
            return text
        if not (tracer := next(self.characters, "")):
            # There are more texts than free characters; the other texts suffice for the check.
            return text
        into.append(tracer)
        return text[:at] + tracer + text[at:]


def _unescaped(found: re.Match[str]) -> str:
    code, high, low = found.groups()
    if high:
        return bytes.fromhex(high + low).decode("utf-16-be")
    return chr(int(code, 16)) if int(code, 16) <= sys.maxunicode else found[0]
