"""An answer's text becomes deltas: content, reasoning and calls of the offered tools, whatever the protocol.

Owns: how one request's answers are read, and the ids of calls. The engine has divided reasoning from content by tokens;
formats/read/parse.py finds the calls in the content. Pure except for the ids that it draws. `push` is called for every
token.
"""

import secrets
import string
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import log
from typing import Final

from worker.apis.core.events import Piece
from worker.apis.core.tools import NO_TOOLS, ToolUse
from worker.formats.read.parse import Content, Delta, Reader, Thought
from worker.wire.chat_format import HERMES, ChatFormat, ReasoningFormat
from worker.wire.jobs import Logprob, StopReason, TopToken

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
    is_divided: bool = False
    """True if the engine divides reasoning from content."""
    reads_fenced: bool = True
    """True if a fenced JSON object that is a call of an offered tool is read as one."""
    keeps_thoughts: bool = False
    """True if reasoning is content, between its markers."""

    def reader(self, is_sure: Callable[[str], bool]) -> Reader:
        """Return a reader of one answer. `is_sure` says whether the model was sure of a tool's name."""
        return Reader(
            *(self.form, self.use.schemas()),
            new_id=call_id,
            is_divided=self.is_divided,
            reads_fenced=self.reads_fenced,
            is_sure=is_sure,
            # The call that is required comes after the reasoning, whatever that says.
            ends_thoughts=self.use.choice != "required",
        )


_THOUGHTS: Final = ReasoningFormat(begin="<think>", end="</think>")
"""The markers of reasoning that the model's format does not name."""

PLAIN: Final = Reading()
"""Answers without calls."""


MIN_SURE: Final = log(0.985)
"""The least log-probability of a tool's name in a call that is not in the model's own form. A small model writes such a
call also where no tool helps, and then hesitates between the tools (docs/tool-formats.md)."""


class Names:
    """The log-probabilities of the names that an answer has in JSON."""

    def __init__(self) -> None:
        self._drawn: list[TopToken] = []

    def add(self, logprobs: Sequence[Logprob]) -> None:
        """Add tokens in their order; those that are no part of a name do not count."""
        self._drawn += [entry.token for entry in logprobs if entry.is_of_name]

    def is_sure(self, name: str) -> bool:
        """Return True if the model was sure of the last name that is this one, or if nothing is known of it."""
        ends = list(accumulate(len(token.text) for token in self._drawn))
        begin = "".join(token.text for token in self._drawn).rfind(name)
        if begin < 0:
            return True
        within = [
            token.logprob
            for token, end in zip(self._drawn, ends, strict=True)
            if end > begin and end - len(token.text) < begin + len(name)
        ]
        return sum(within) >= MIN_SURE


class ReadAnswer:
    """Reads one job's answer. Call `push` for each piece of its text, then `finish` once."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self.rewind()

    def rewind(self) -> None:
        """Forget the answer: the job runs again from its start."""
        self._names = Names()
        self._reader = self._reading.reader(self._names.is_sure)
        self._is_thinking = False

    def push(self, piece: Piece) -> list[Delta]:
        """The deltas that the text completes."""
        if piece.logprobs:
            self._names.add(piece.logprobs)
        return self._shown(self._reader.push(piece.text, is_thought=piece.is_reasoning))

    def finish(self, reason: StopReason = "EOS") -> list[Delta]:
        """The deltas of the text that was held back. `reason`: why the answer ended."""
        is_cut, is_stopped = reason == "MAX_TOKENS", reason == "STOP_SEQUENCE"
        return self._shown(self._reader.finish(is_cut=is_cut, is_stopped=is_stopped))

    @property
    def is_unfinished(self) -> bool:
        """True if the answer ends in a call that is not complete. A whole answer leaves it out."""
        return self._reader.is_unfinished

    @property
    def is_called(self) -> bool:
        """True if the answer has calls, and none that is not complete."""
        return self._reader.is_called

    def _shown(self, deltas: list[Delta]) -> list[Delta]:
        return [*self._as_text(deltas)] if self._reading.keeps_thoughts else deltas

    def _as_text(self, deltas: Sequence[Delta]) -> Iterator[Delta]:
        """Yield the deltas with reasoning as content."""
        marks = self._reading.form.reasoning or _THOUGHTS
        for delta in deltas:
            is_thought = isinstance(delta, Thought)
            if is_thought != self._is_thinking:
                yield Content(marks.begin if is_thought else marks.end)
                self._is_thinking = is_thought
            yield Content(delta.text) if isinstance(delta, Thought) else delta
