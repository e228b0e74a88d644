"""An answer's text becomes a message: content, reasoning, and calls.

Owns the reading of answers. A text that cannot be read is content, never an error. The result does not depend on how
the text is cut into pieces. Pure; runs on the front's event loop, with one Reader per answer.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from worker.wire.chat_format import ChatFormat


@dataclass(frozen=True, slots=True)
class Content:
    """More of the answer's text."""

    text: str


@dataclass(frozen=True, slots=True)
class Thought:
    """More of the reasoning's text."""

    text: str


@dataclass(frozen=True, slots=True)
class CallBegun:
    """A call has begun. Calls have rising indexes from 0."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class Arguments:
    """More of the JSON text of a call's arguments. All parts of one call together are one JSON value, if the call is
    complete."""

    index: int
    text: str


Delta = Content | Thought | CallBegun | Arguments


@dataclass(frozen=True, slots=True)
class Call:
    """A call that the model has written."""

    id: str
    name: str
    arguments: str
    """JSON text."""


@dataclass(frozen=True, slots=True)
class Message:
    """The sum of an answer's deltas."""

    content: str
    reasoning: str
    calls: tuple[Call, ...]


class Reader:
    """Reads one answer. Call push for each piece of its text, then finish once."""

    def __init__(
        self,
        form: ChatFormat,
        tools: Mapping[str, object],
        *,
        new_id: Callable[[int], str],
        is_reasoning: bool = False,
        reads_fenced: bool = True,
    ) -> None:
        """`tools` maps the names of the offered tools to the schemas of their arguments; empty if calls must not be
        read. `new_id` makes the id of a call from its index. `is_reasoning` says that the prompt has opened the
        reasoning. `reads_fenced` says that a fenced JSON object that is an offered tool's call is read as a call.
        """

    def push(self, text: str) -> list[Delta]:
        """The deltas that the text completes."""
        return [Content(text)] if text else []

    def finish(self, *, is_cut: bool = False) -> list[Delta]:  # noqa: ARG002
        """The deltas of the text that was held back. `is_cut` says that the answer ended at its length."""
        return []


def message_of(deltas: Sequence[Delta]) -> Message:
    """The sum of the deltas."""
    content = "".join(delta.text for delta in deltas if isinstance(delta, Content))
    reasoning = "".join(delta.text for delta in deltas if isinstance(delta, Thought))
    begun = {delta.index: delta for delta in deltas if isinstance(delta, CallBegun)}
    arguments = dict.fromkeys(begun, "")
    for delta in deltas:
        if isinstance(delta, Arguments):
            arguments[delta.index] += delta.text
    return Message(content, reasoning, tuple(Call(one.id, one.name, arguments[index]) for index, one in begun.items()))
