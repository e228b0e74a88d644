"""The parts of an answer as they are read, and the message that they make.

White space before a call is not content, and a call of a tool that is not offered is content.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from worker.formats.read.values import quoted


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


def message_of(deltas: Sequence[Delta], *, is_unfinished: bool = False) -> Message:
    """Return the sum of the deltas. `is_unfinished` says that the last call is left out, because it is not complete."""
    content = "".join(delta.text for delta in deltas if isinstance(delta, Content))
    reasoning = "".join(delta.text for delta in deltas if isinstance(delta, Thought))
    begun = {delta.index: delta for delta in deltas if isinstance(delta, CallBegun)}
    arguments: dict[int, list[str]] = {index: [] for index in begun}
    for delta in deltas:
        if isinstance(delta, Arguments):
            arguments[delta.index].append(delta.text)
    calls = tuple(Call(one.id, one.name, "".join(arguments[index])) for index, one in begun.items())
    return Message(content, reasoning, calls[:-1] if is_unfinished else calls)


class Deltas:
    """Collects the deltas of one answer."""

    def __init__(self, tools: Mapping[str, object], new_id: Callable[[int], str], opening: str = "") -> None:
        self.tools = tools
        self.n_calls = 0
        self.is_fresh = True
        """True if there is no content and no call yet."""
        self.is_open = False
        """True if a call has begun that has not ended."""
        self.skips_space = False
        """True if white space at the beginning of the next content is not given out."""
        self.opening = opening
        """The end of the prompt that is read as a part of the answer, as far as it may still become content."""
        self._new_id = new_id
        self._ids: set[str] = set()
        self._out: list[Delta] = []
        self._space = ""
        self._thought_space = ""
        self._has_thought = False

    def taken(self) -> list[Delta]:
        """Return the deltas since the last call of this method."""
        out, self._out = self._out, []
        return out

    def say(self, text: str) -> None:
        """Add content. White space at its end waits for more, because a call may follow."""
        if self.opening:
            while text and text[0] == self.opening[:1]:
                text, self.opening = text[1:], self.opening[1:]
        if not self.tools:
            self._add_content(text)
            return
        text = self._space + text
        said = text.rstrip()
        self._space = text[len(said) :]
        if said:
            self._add_content(said)
            self.is_fresh = False

    def _add_content(self, text: str) -> None:
        if self.skips_space:
            text = text.lstrip()
        if text:
            self.skips_space = False
            self._out.append(Content(text))

    def think(self, text: str) -> None:
        """Add reasoning. White space at its ends is not part of it."""
        text = self._thought_space + (text if self._has_thought else text.lstrip())
        thought = text.rstrip()
        self._thought_space = text[len(thought) :]
        if thought:
            self._has_thought = True
            self._out.append(Thought(thought))

    def begin_thought(self) -> None:
        """Begin a reasoning: white space before its first word is not part of it."""
        self._thought_space, self._has_thought = "", False

    def begin(self, name: str, own_id: str = "") -> None:
        """Begin a call. `own_id` is the id that the model has given it."""
        self.opening = ""
        self.is_open = name in self.tools
        if not self.is_open:
            self._space = "" if self.is_fresh else self._space
            self.say(f'{{"name": {quoted(name)}, "arguments": ')
            return
        call_id = own_id if own_id and own_id not in self._ids else self._new_id(self.n_calls)
        self._ids.add(call_id)
        self._space = ""
        self.is_fresh = False
        self._out.append(CallBegun(self.n_calls, call_id, name))

    def argue(self, text: str) -> None:
        """Add to the arguments of the call that has begun."""
        if not text:
            return
        if self.is_open:
            self._out.append(Arguments(self.n_calls, text))
        else:
            self.say(text)

    def end(self) -> None:
        """End the call that has begun."""
        if self.is_open:
            self.n_calls += 1
            self.is_open = False
        else:
            self.say("}")

    def drop_space(self) -> None:
        """Drop the white space before a marker."""
        self._space = ""

    def finish(self) -> None:
        """Give out the white space at the end of an answer without calls."""
        if self._space and not self.n_calls:
            self._add_content(self._space)
        self._space = ""
