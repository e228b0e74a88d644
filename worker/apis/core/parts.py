"""An answer as parts, one after the other: texts, reasonings and calls. Each change of a part is an event.

Owns what Responses and Messages share: where a part begins and ends. Pure. `token` is called for every token.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Generic, Literal, TypeVar

from worker.apis.core.answers import Allowance, ReadChoice
from worker.apis.core.reading import Reading
from worker.formats.read.parse import Arguments, CallBegun, Content, Delta, Thought
from worker.wire.encoding import encode_json
from worker.wire.jobs import Logprob

Event = tuple[str, dict[str, Any]]
"""The type of an event, and its other members."""
Opening = Content | Thought | CallBegun
"""The delta that a part begins with."""
PartStatus = Literal["in_progress", "completed", "incomplete"]
"""A part is incomplete if the answer ended in it."""


class Part(ABC):
    """A part of an answer. Subclasses have its events."""

    def __init__(self, index: int, opening: Opening) -> None:
        self.index = index
        self.opening = opening
        self.status: PartStatus = "in_progress"
        self.texts: list[str] = []

    @property
    def text(self) -> str:
        return "".join(self.texts)

    def grown(self, text: str) -> Iterator[Event]:
        """Add text; yield its event."""
        if text:
            self.texts.append(text)
            yield self._delta(text)

    @abstractmethod
    def begun(self) -> Iterator[Event]:
        """Yield the first events."""

    @abstractmethod
    def ended(self) -> Iterator[Event]:
        """Yield the last events."""

    @abstractmethod
    def _delta(self, text: str) -> Event:
        """The event of more text."""


PartT = TypeVar("PartT", bound=Part)


class Parts(Generic[PartT]):
    """The parts of an answer; at most the last one is open."""

    def __init__(self, new: Callable[[int, Opening], PartT]) -> None:
        """`new` makes a part of its index and the delta that it begins with."""
        self.all: list[PartT] = []
        self._new = new
        self._open: PartT | None = None
        self._blank = ""
        """The white space at the beginning of a text that has nothing else yet. Anthropic's clients send texts back,
        and none may be blank."""

    def add(self, delta: Delta) -> Iterator[Event]:
        """Add a delta; yield its events."""
        if isinstance(delta, CallBegun):
            yield from self._begin(delta)
            return
        text = delta.text
        if not isinstance(delta, Arguments):
            is_other = self._open is None or type(self._open.opening) is not type(delta)
            if isinstance(delta, Content):
                text = self._blank + text
                if is_other and not text.strip():
                    self._blank = text
                    return
            if is_other:
                yield from self._begin(delta)
            self._blank = ""
        assert self._open is not None  # a call has begun before its arguments
        yield from self._open.grown(text)

    def end(self, status: PartStatus, *, drops_open: bool, filler: Opening | None = None) -> Iterator[Event]:
        """Close the last part, or drop it; yield its events. `filler` begins the only part of an answer without any."""
        if drops_open and self._open is not None:
            self._open = None
            self.all.pop()
        if filler is not None and not self.all:
            yield from self._begin(filler)
        yield from self._close(status)

    def cut(self) -> None:
        """The answer has failed: the open part stays incomplete."""
        if self._open is not None:
            self._open.status = "incomplete"

    def _begin(self, opening: Opening) -> Iterator[Event]:
        yield from self._close()
        self._open = self._new(len(self.all), opening)
        self.all.append(self._open)
        yield from self._open.begun()

    def _close(self, status: PartStatus = "completed") -> Iterator[Event]:
        self._blank = ""
        if self._open is not None:
            self._open.status = status
            yield from self._open.ended()
            self._open = None


class PartsChoice(ReadChoice, Generic[PartT]):
    """The one answer of a request, as parts. Subclasses have its first events and its last ones."""

    filler: Opening | None = None

    def __init__(self, reading: Reading, parts: Parts[PartT], *, is_stream: bool) -> None:
        super().__init__(0, Allowance(), reading, is_stream=is_stream)
        self.keeps_text = True
        self._parts = parts

    def _event(self, delta: Delta) -> bytes:
        return self._sent(self._parts.add(delta))

    def _ended(self, logprobs: Sequence[Logprob]) -> bytes:  # noqa: ARG002 - no request has them here
        assert self.finished is not None
        last = self._taken(self._answer.finish(self.finished.reason))
        is_torn = self._answer.is_unfinished
        status: PartStatus = "incomplete" if is_torn or self.finish_reason == "length" else "completed"
        events = [event for delta in self._deltas for event in self._parts.add(delta)]
        events += self._parts.end(status, drops_open=is_torn and self.is_collecting, filler=self.filler)
        return b"" if self.is_collecting else last + self._sent([*events, *self._last()])

    @abstractmethod
    def _last(self) -> Iterator[Event]:
        """Yield the events after the last part."""

    def _sent(self, events: Iterable[Event]) -> bytes:
        return b"".join([self._bytes(kind, members) for kind, members in events])

    def _bytes(self, kind: str, members: dict[str, Any]) -> bytes:
        return b"event: %b\ndata: %b\n\n" % (kind.encode(), encode_json({"type": kind, **members}))
