"""The rules by which one request's answers are read, the ids of calls, and whether the model was sure of a tool's name.

The engine has divided reasoning from content by tokens; formats/read/parse.py finds the calls in the content.
"""

import secrets
import string
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import log
from typing import Final

from worker.apis.core.tools import NO_TOOLS, ToolUse
from worker.formats.read.parse import Reader
from worker.wire.chat_format import HERMES, ChatFormat
from worker.wire.jobs import Logprob, TopToken

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
