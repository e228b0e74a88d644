"""An answer as parts, one after the other: texts, reasonings and calls. Each change of a part is an event.

Responses and Messages share this: where a part begins and ends.
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
    def __init__(self, index: int, opening: Opening) -> None:
        self.index = index
        self.opening = opening
        self.status: PartStatus = "in_progress"
        self.texts: list[str] = []

    @property
    def text(self) -> str:
        return "".join(self.texts)

    def grown(self, text: str) -> Iterator[Event]:
        """Add text; yield its events."""
        if text:
            self.texts.append(text)
            yield from self._delta(text)

    @abstractmethod
    def begun(self) -> Iterator[Event]: ...

    @abstractmethod
    def ended(self) -> Iterator[Event]: ...

    @abstractmethod
    def _delta(self, text: str) -> Iterator[Event]: ...


PartT = TypeVar("PartT", bound=Part)


class PartsChoice(ReadChoice, Generic[PartT]):
    """The one answer of a request, as parts, of which at most the last is open. Subclasses have its first events and
    its last ones."""

    filler: Opening | None = None
    """The only part of an answer without any begins with this."""

    def __init__(self, reading: Reading, new: Callable[[int, Opening], PartT], *, is_stream: bool) -> None:
        """`new` makes a part of its index and the delta that it begins with."""
        super().__init__(0, Allowance(), reading, is_stream=is_stream)
        self.keeps_text = True
        self.parts: list[PartT] = []
        self._new = new
        self._open: PartT | None = None
        self._blank = ""
        """The white space at the beginning of a text that has nothing else yet. Anthropic's clients send texts back,
        and none may be blank."""

    def add(self, delta: Delta) -> Iterator[Event]:
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

    def close(self, status: PartStatus = "completed") -> Iterator[Event]:
        self._blank = ""
        if self._open is not None:
            self._open.status = status
            yield from self._open.ended()
            self._open = None

    def _begin(self, opening: Opening) -> Iterator[Event]:
        yield from self.close()
        self._open = self._new(len(self.parts), opening)
        self.parts.append(self._open)
        yield from self._open.begun()

    def _event(self, delta: Delta) -> bytes:
        return self._sent(self.add(delta))

    def _ended(self, logprobs: Sequence[Logprob]) -> bytes:  # noqa: ARG002 - no request has them here
        rest, events = self._rest(), [*self._last_parts()]
        return b"" if self.is_collecting else rest + self._sent([*events, *self._last()])

    def _last_parts(self) -> Iterator[Event]:
        """Make the parts of a whole answer, and close the last; yield the events."""
        for delta in self._deltas:
            yield from self.add(delta)
        is_torn = self._reader.is_unfinished
        if is_torn and self.is_collecting and self._open is not None:
            self._open = None
            self.parts.pop()
        if self.filler is not None and not self.parts:
            yield from self._begin(self.filler)
        yield from self.close("incomplete" if is_torn or self.finish_reason == "length" else "completed")

    @abstractmethod
    def _last(self) -> Iterator[Event]: ...

    def _sent(self, events: Iterable[Event]) -> bytes:
        return b"".join([self._bytes(kind, members) for kind, members in events])

    def _bytes(self, kind: str, members: dict[str, Any]) -> bytes:
        return b"event: %b\ndata: %b\n\n" % (kind.encode(), encode_json({"type": kind, **members}))
