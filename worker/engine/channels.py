"""Drawn tokens become a text in channels: some tokens divide reasoning from content.

This module owns the place of each token (`Place`), and the channel of each piece of text (`ChannelText`). It knows
nothing of templates, of model families (dividers.py) or of how text may be shown (text.py). It is pure and runs on the
step thread.

    <|channel|> analysis <|message|> The user greets. <|end|> <|start|> assistant <|channel|> final <|message|> Hello!
    └ header ──────────┘             └ reasoning ───┘         └ role ─────────────────────┘             └ content ───┘
"""

import re
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import Final, assert_never

from worker.engine.text import TextStream
from worker.wire.jobs import MarkUse, TokenId


class Channel(Enum):
    """The destination of text. A header names the channel that follows; headers and roles are not shown, except those
    of a call."""

    CONTENT = auto()
    REASONING = auto()
    CALL = auto()
    """A message to a tool. It is content with its header and markers if calls are read, else reasoning."""
    HEADER = auto()
    ROLE = auto()


class Turn(Enum):
    """The effect of a control token on the text after it."""

    THINK = auto()
    ANSWER = auto()
    NAME = auto()
    """Begin a header, which Turn.BODY ends."""
    NAME_LINE = auto()
    """Begin a header, which the end of its line ends."""
    BODY = auto()
    """Begin the channel that the header has named."""
    SPEAK = auto()
    """Begin a role: the text until the next of these tokens is not shown."""


FINAL: Final = frozenset({"final", "response"})
"""The names of channels whose text is the answer. The text of a message without a name is the answer, too."""

_TO: Final = re.compile(rb"(?:^|\s)(to=\S*?)(?=$|\s|<)")
"""The recipient in a header or a role."""
_TO_ITSELF, _TO_THE_USER = b"to=self", b"to=user"
_N_COMPARED: Final = 64
"""The number of a prompt's last tokens in which a marker is looked for."""
_FIRST_WORD: Final = re.compile(rb"\s*([^\s<]*)")


@dataclass(frozen=True, slots=True)
class Place:
    """A point between two tokens of an answer."""

    channel: Channel
    header: bytes = b""
    """The text so far of a header or a role, with the names of its control tokens."""
    role: bytes = b""
    """The role before a header."""
    is_line: bool = False
    """True if the end of the line ends the header."""
    closer: TokenId | None = None
    """The token that closes the reasoning."""
    is_opened: bool = False
    """True if the prompt has opened a reasoning whose markers are text."""


CONTENT: Final = Place(Channel.CONTENT)


@dataclass(frozen=True, slots=True)
class Marks:
    """The tokens of a vocabulary that divide an answer, and the names of its control tokens."""

    names: Mapping[TokenId, str]
    """The control tokens."""
    turns: Mapping[TokenId, Turn]
    closers: Mapping[TokenId, TokenId] = field(default_factory=dict)
    """The token that closes what a token opens."""
    calls: frozenset[TokenId] = frozenset()
    """The control tokens that belong to calls."""
    enders: frozenset[TokenId] = frozenset()
    """The tokens with which a call begins, if a call ends the reasoning."""
    spoken: tuple[str, str] | None = None
    """The markers around the reasoning if they are text, which no token divides."""
    piece: Callable[[TokenId], bytes] = lambda _: b""
    """The bytes of a token, with which a prompt's end is compared with such a marker."""

    def after(self, place: Place, token: TokenId, piece: bytes) -> Place:
        """Return the place after a token."""
        turn = self.turns.get(token)
        if turn is None:
            if place.channel is Channel.ROLE or place.channel is Channel.HEADER:
                return self._read_on(place, self.names.get(token, "").encode() or piece)
            return CONTENT if token in self.enders and place.channel is Channel.REASONING else place
        return self._turned(place, token, turn)

    def _turned(self, place: Place, token: TokenId, turn: Turn) -> Place:
        match turn:
            case Turn.THINK:
                return Place(Channel.REASONING, closer=self.closers.get(token))
            case Turn.ANSWER:
                return CONTENT
            case Turn.NAME | Turn.NAME_LINE:
                role = place.header if place.channel is Channel.ROLE else b""
                return Place(Channel.HEADER, b"", role, turn is Turn.NAME_LINE, self.closers.get(token))
            case Turn.BODY:
                return _body_of(place, self.closers.get(token))
            case Turn.SPEAK:
                return Place(Channel.ROLE)
            case _:
                assert_never(turn)

    def _read_on(self, place: Place, text: bytes) -> Place:
        place = replace(place, header=place.header + text)
        if not place.is_line or b"\n" not in place.header:
            return place
        return _body_of(replace(place, header=place.header.partition(b"\n")[0]), place.closer)

    def place_after(self, prompt: Seq[TokenId]) -> Place:
        """Return the place after a prompt: some templates open the reasoning, and a final message may go on.

        A prompt that ends in a header names its channel in a text that is not read here, so its answer counts as
        content.
        """
        if self.spoken is not None:
            end = b"".join(self.names.get(token, "").encode() or self.piece(token) for token in prompt[-_N_COMPARED:])
            is_opened = end.rstrip().endswith(self.spoken[0].strip().encode())
            return replace(CONTENT, is_opened=True) if is_opened else CONTENT
        last = self._last_turn(prompt)
        if last is None or self.turns[last] not in {Turn.THINK, Turn.SPEAK, Turn.NAME}:
            return CONTENT
        return self.after(CONTENT, last, b"")

    def _last_turn(self, prompt: Seq[TokenId]) -> TokenId | None:
        """Return the last token that divides. Texts of clients may have words among them, and a control token comes
        behind these, so only words behind the last control token are the template's.
        """
        is_behind = True
        for token in reversed(prompt):
            if token in self.turns and (is_behind or token in self.names):
                return token
            is_behind = is_behind and token not in self.names
        return None


def _body_of(place: Place, closer: TokenId | None) -> Place:
    """Return the beginning of the text behind a header, or behind a role alone."""
    if place.channel is Channel.ROLE:
        place = replace(place, header=b"", role=place.header)
    if recipient := _TO.search(place.header) or _TO.search(place.role):
        if recipient[1] == _TO_ITSELF:
            return Place(Channel.REASONING, closer=closer)
        return CONTENT if recipient[1] == _TO_THE_USER else Place(Channel.CALL, place.header, place.role)
    if place.channel is not Channel.HEADER:
        return CONTENT
    named = _FIRST_WORD.match(place.header)
    name = named[1].decode(errors="replace") if named else ""
    return CONTENT if not name or name in FINAL else Place(Channel.REASONING, closer=closer)


NO_MARKS: Final = Marks({}, {})


class ChannelText:
    """A job's text, divided into channels if that is wanted. A stop never spans two channels: text that is held back as
    a possible stop belongs to the channel that it was written in.
    """

    def __init__(
        self,
        stops: Seq[str],
        marks: Marks = NO_MARKS,
        use: MarkUse = "hidden",
        place: Place = CONTENT,
        *,
        reads_calls: bool = False,
    ) -> None:
        """`use` says whether control tokens have no text, or their names as text, or no text and divide it. `place` is
        the beginning of a divided text. `reads_calls` says that calls are content, with the markers around them.
        """
        self._stream = TextStream(stops)
        self._marks = marks if use == "split" else replace(marks, turns={})
        self._names = marks.names if use == "shown" else {}
        if use == "split" and reads_calls:
            self._names = {token: marks.names[token] for token in marks.calls}
        self._reads_calls = reads_calls
        self._place = place if use == "split" else CONTENT
        self._unheaded: bytes | None = b""
        """The text so far of an answer that has begun in a role or a header; None once a control token has come."""
        self._due = b""
        """Text that belongs before the next token's."""
        self._opening = marks.spoken[0] if self._place.is_opened and marks.spoken is not None else ""
        """The marker with which the prompt has opened a reasoning: who reads the text has not seen the prompt. No stop
        is looked for in it."""
        self._n_head = 0
        """The number of tokens of the current role and header."""
        self.is_reasoning = False
        """True if the text that was returned last is reasoning."""
        self.is_answer = True
        """True if the last token was part of the answer."""
        self.n_reasoning = 0
        """The number of tokens that were drawn outside the answer."""

    @property
    def matched(self) -> str | None:
        """The stop that ended the text."""
        return self._stream.matched

    def push(self, token: TokenId, piece: bytes) -> str:
        """Return the text that may be shown now, all of it of one channel."""
        before, turn = self._place, self._marks.turns.get(token)
        self._place = self._marks.after(before, token, piece)
        self.is_reasoning = self._is_reasoning(before)
        self.is_answer = turn is None and self._is_shown(before)
        is_begun = turn is None and before.channel is Channel.REASONING and self._place is CONTENT
        self.is_answer |= is_begun
        self.n_reasoning += not self.is_answer
        if is_begun:
            # What was held back is reasoning, and all of a text is of one channel.
            self._due = self._names.get(token, "").encode() or piece
            return self._stream.part()
        if turn is not None:
            self._unheaded = None
            return self._turned(before, token)
        if self._unheaded is not None and not self.is_answer:
            self._unheaded += piece
        if before.channel is Channel.ROLE or before.channel is Channel.HEADER:
            self._n_head += 1
            if self._place.channel is before.channel:
                return ""
            piece = (before.header + piece).partition(b"\n")[2]
            self.is_reasoning = self._is_reasoning(self._place)
        name = self._names.get(token)
        due, self._due = self._due, b""
        opening, self._opening = self._opening, ""
        return opening + self._stream.push(due + (piece if name is None else name.encode()))

    def flush(self) -> str:
        """Return the text that was held back at the end of generation, in the channel of the last text.

        A model may leave out the header that its prompt has begun. Then its whole text is the answer.
        """
        if self._unheaded and self._place.channel in (Channel.ROLE, Channel.HEADER):
            self.n_reasoning = 0
            return self._unheaded.decode(errors="replace")
        if self._due:
            self.is_reasoning = False
        return self._opening + self._stream.push(self._due) + self._stream.flush()

    def _turned(self, before: Place, token: TokenId) -> str:
        """Return the text at a token that divides: what was held back before it, or the markers of a call."""
        after = self._place
        is_in_head = before.channel is Channel.ROLE or before.channel is Channel.HEADER
        self._n_head = self._n_head + 1 if is_in_head else 1
        if not self._reads_calls or Channel.CALL not in (before.channel, after.channel):
            return self._stream.part()
        self.is_answer, self.is_reasoning = True, False
        self.n_reasoning -= 1
        if before.channel is Channel.CALL:
            return self._stream.push(self._marks.names[token].encode()) + self._stream.part()
        self.n_reasoning -= self._n_head - 1
        return self._stream.part() + self._stream.push(_head_of_call(after))

    def _is_shown(self, place: Place) -> bool:
        return place.channel is Channel.CONTENT or (place.channel is Channel.CALL and self._reads_calls)

    def _is_reasoning(self, place: Place) -> bool:
        return place.channel is Channel.REASONING or (place.channel is Channel.CALL and not self._reads_calls)


def _head_of_call(call: Place) -> bytes:
    """Return the header of a call. A recipient that stood in the role is put where most models write it."""
    recipient = _TO.search(call.role)
    if _TO.search(call.header) or recipient is None:
        return b"<|channel|>" + call.header + b"<|message|>"
    named = _FIRST_WORD.match(call.header)
    name = named[0] if named else b""
    return b"<|channel|>%s %s%s<|message|>" % (name or b"commentary", recipient[1], call.header[len(name) :])
