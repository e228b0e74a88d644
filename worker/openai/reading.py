"""An answer's text becomes deltas: content, reasoning and calls of the offered tools, whatever the protocol.

Owns: how one request's answers are read, and the ids of calls. The engine has divided reasoning from content by tokens;
chat/parse.py finds the calls in the content. Refuses to know: the events of a protocol. Pure except for the ids that it
draws; runs on the front's event loop. `push` is called for every token.
"""

import re
import secrets
import string
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from worker.chat.parse import CallBegun, Content, Delta, Reader, Thought
from worker.openai.tools import NO_TOOLS, TEXT_ARGUMENT, ToolUse
from worker.wire.chat_format import HERMES, ChatFormat, ReasoningFormat

_ID_CHARS = string.ascii_letters + string.digits
_MAX_ID_CHARS = 9
"""The only length that Mistral's templates accept; all others accept any."""


def call_id(index: int) -> str:  # noqa: ARG001 - a Reader's new_id
    """A new id for a call."""
    return "".join(secrets.choice(_ID_CHARS) for _ in range(_MAX_ID_CHARS))


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The rules by which the answers to one request are read."""

    form: ChatFormat = HERMES
    use: ToolUse = NO_TOOLS
    reads_fenced: bool = True
    """True if a fenced JSON object that is a call of an offered tool is read as one."""
    keeps_thoughts: bool = False
    """True if reasoning is content, between its markers."""

    def reader(self) -> Reader:
        return Reader(self.form, self.use.schemas(), new_id=call_id, reads_fenced=self.reads_fenced)


_THOUGHTS: Final = ReasoningFormat(begin="<think>", end="</think>")
"""The markers of reasoning that the model's format does not name."""

PLAIN: Final = Reading()
"""Answers without calls."""


class ReadAnswer:
    """Reads one job's answer. Call `push` for each piece of its text, then `finish` once."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self.rewind()

    def rewind(self) -> None:
        """Forget the answer: the job runs again from its start."""
        self._reader = self._reading.reader()
        self.has_calls = False
        """True if a call has begun."""
        self._is_thinking = False

    def push(self, text: str, *, is_reasoning: bool = False) -> list[Delta]:
        """The deltas that the text completes. `is_reasoning`: the engine says that it is not the answer's text."""
        return self._noted([Thought(text)] if is_reasoning else self._reader.push(text))

    def finish(self, *, is_cut: bool = False) -> list[Delta]:
        """The deltas of the text that was held back. `is_cut`: the answer ended at its length."""
        return self._noted(self._reader.finish(is_cut=is_cut))

    def _noted(self, deltas: Sequence[Delta]) -> list[Delta]:
        self.has_calls = self.has_calls or any(isinstance(delta, CallBegun) for delta in deltas)
        return list(self._as_text(deltas) if self._reading.keeps_thoughts else deltas)

    def _as_text(self, deltas: Sequence[Delta]) -> Iterator[Delta]:
        """Yield the deltas with reasoning as content."""
        marks = self._reading.form.reasoning or _THOUGHTS
        for delta in deltas:
            is_thought = isinstance(delta, Thought)
            if is_thought != self._is_thinking:
                yield Content(marks.begin if is_thought else marks.end)
                self._is_thinking = is_thought
            yield Content(delta.text) if isinstance(delta, Thought) else delta


# ── the text of a custom tool's call ─────────────────────────────────────────────────────────────

_OPENING = re.compile(rf'\s*\{{\s*"{TEXT_ARGUMENT}"\s*:\s*"')
_UNITS = re.compile(r'(?:[^"\\]|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})*')
"""The characters of a JSON string that are complete."""
_HALF_PAIR = re.compile(r"(?<!\\)(?:\\\\)*(\\u[dD][89abAB][0-9a-fA-F]{2})\Z")
"""A high surrogate at the end, whose other half may follow."""
_MAX_OPENING_CHARS = 256
"""A text whose first so many characters are no opening is read only when it is complete."""


class TextArgument:
    """Reads the one text argument of a custom tool out of the JSON of its arguments, as the JSON comes."""

    def __init__(self) -> None:
        self._all: list[str] = []
        self._rest = ""
        """The JSON that is not decoded yet."""
        self._is_open = False

    def push(self, part: str) -> str:
        """The characters of the argument that the part completes."""
        self._all.append(part)
        self._rest += part
        if not self._is_open:
            found = _OPENING.match(self._rest[:_MAX_OPENING_CHARS])
            if found is None:
                return ""
            self._is_open, self._rest = True, self._rest[found.end() :]
        units = _UNITS.match(self._rest)
        assert units is not None  # it matches nothing, too
        end = units.end()
        half = _HALF_PAIR.search(self._rest, 0, end)
        if half is not None and not self._rest.startswith('"', end):
            end -= len(half[1])
        text = _decoded(self._rest[:end])
        self._rest = self._rest[end:]
        return text

    def finish(self) -> str:
        """The characters that are left at the end. Arguments of another form are a text as they are."""
        if self._is_open:
            return ""
        arguments = "".join(self._all)
        try:
            value = msgspec.json.decode(arguments)
        except (msgspec.DecodeError, RecursionError):
            return arguments
        text = value.get(TEXT_ARGUMENT) if isinstance(value, dict) else None
        return text if isinstance(text, str) else arguments


_ESCAPES = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_ESCAPE = re.compile(r"\\u([0-9a-fA-F]{4})|\\(.)", re.DOTALL)


def _decoded(units: str) -> str:
    """The text of complete characters of a JSON string; half a surrogate pair becomes U+FFFD."""
    if "\\" not in units:
        return units
    text = _ESCAPE.sub(lambda found: chr(int(found[1], 16)) if found[1] else _ESCAPES.get(found[2], found[2]), units)
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
