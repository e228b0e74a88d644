"""Drawn tokens become a text in channels: some tokens divide reasoning from content.

<|channel|> analysis <|message|> The user greets. <|end|> <|start|> assistant <|channel|> final <|message|> Hello!
└ header ──────────┘             └ reasoning ───┘         └ role ─────────────────────┘             └ content ───┘
"""

import codecs
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import Final, assert_never

from worker.wire import harmony
from worker.wire.jobs import MarkUse, TokenId

_Utf8Decoder = codecs.getincrementaldecoder("utf-8")

_SURROGATE_HALF_FROM, _SURROGATE_HALF_BELOW = b"\xed\xa0", b"\xee"
"""CPython's incremental decoder waits for a third byte after ED A0..BF, though no code point begins so (RFC 3629)."""


class TextStream:
    """The text of one job. Law: for any chunking, all returned texts, joined, are decode(all bytes, "replace") without
    an unfinished code point at the very end, cut where the stop begins.

    A stop ends the text at the first character that completes one; if that character completes several, the first in
    the request is the one that matched (docs/protocol.md#post-execute).

        all pushed bytes = [ shown for good )[ held: the longest that may begin a stop )[ unfinished code point )

    Every later match begins inside the held part, so text once shown is never part of a stop.
    """

    def __init__(self, stops: Seq[str]) -> None:
        """`stops` are in the order of the request, and none of them is empty."""
        self.matched: str | None = None
        self._decoder = _Utf8Decoder("replace")
        self._is_unfinished = False
        """True within a code point."""
        self._stops = tuple(stops)
        self._held = ""

    def push(self, piece: bytes) -> str:
        """Return the text that may be shown now. The piece that completes a stop sets `matched`: then the text before
        the stop is returned, and never any text after it.
        """
        if self.matched is not None:
            return ""
        return self._looked_at(self._decode(piece)) if self._stops else self._decode(piece)

    def hush(self, *, is_quiet: bool) -> None:
        """Say whether the text from here on is a reasoning."""

    def flush(self) -> str:
        """Return the held text, at its end or at a place that no stop spans. An unfinished code point is dropped."""
        self._decoder.reset()
        self._is_unfinished = False
        held, self._held = self._held, ""
        return held

    def _decode(self, piece: bytes) -> str:
        if piece.isascii() and not self._is_unfinished:
            return piece.decode()
        text = self._decoder.decode(piece)
        pending, _ = self._decoder.getstate()
        if _SURROGATE_HALF_FROM <= pending < _SURROGATE_HALF_BELOW:
            text += self._decoder.decode(b"", final=True)
            pending = b""
        self._is_unfinished = bool(pending)
        return text

    def _looked_at(self, text: str) -> str:
        """Return what may be shown now of the held text and this one."""
        text, self._held = self._held + text, ""
        found = [(at + len(stop), n) for n, stop in enumerate(self._stops) if (at := text.find(stop)) >= 0]
        if found:
            end, n = min(found)
            self.matched = self._stops[n]
            return text[: end - len(self.matched)]
        edge = len(text) - max((n_begun(text, stop) for stop in self._stops), default=0)
        self._held = text[edge:]
        return text[:edge]


class ThoughtfulStream(TextStream):
    """A TextStream that finds no stop in the reasoning, in its markers, and in white space behind it, which belongs to
    its marker."""

    def __init__(self, stops: Seq[str], markers: tuple[str, str] | None = None, *, is_thought: bool = False) -> None:
        """`markers` stand around the reasoning if they are text; what may become one waits. `is_thought` says that
        the text begins in the reasoning."""
        super().__init__(stops)
        self._markers = markers and (markers[0].strip(), markers[1].strip())
        self._waiting = ""
        self._is_quiet = is_thought
        self._skips_space = False

    def hush(self, *, is_quiet: bool) -> None:
        self._skips_space = self._skips_space or (self._is_quiet and not is_quiet)
        self._is_quiet = is_quiet

    def flush(self) -> str:
        waiting, self._waiting = "" if self.matched is not None else self._waiting, ""
        return self._heard(waiting) + super().flush()

    def _looked_at(self, text: str) -> str:
        if self._markers is None:
            return self._heard(text)
        self._waiting += text
        shown = ""
        while True:
            marker = self._markers[self._is_quiet]
            before, found, rest = self._waiting.partition(marker)
            edge = len(before) - (0 if found else n_begun(before, marker))
            self._waiting = before[edge:] + rest
            shown += self._heard(before[:edge])
            if not found or self.matched is not None:
                break
            shown, self._held = shown + self._held + found, ""
            self.hush(is_quiet=not self._is_quiet)
        return shown

    def _heard(self, text: str) -> str:
        if self._is_quiet:
            return text
        n_space = len(text) - len(text.lstrip()) if self._skips_space else 0
        self._skips_space = self._skips_space and n_space == len(text)
        return text[:n_space] + super()._looked_at(text[n_space:])


def n_begun(text: str, sought: str) -> int:
    """Return how many characters at the end of a text may begin the sought one, which it does not contain."""
    at = max(0, len(text) - len(sought) + 1) - 1
    while (at := text.find(sought[0], at + 1)) >= 0:
        if sought.startswith(text[at:]):
            return len(text) - at
    return 0


class Channel(Enum):
    """The destination of text. A header names the channel that follows; headers and roles are not shown, except those
    of a call."""

    CONTENT = auto()
    REASONING = auto()
    CALL = auto()
    """A message to a tool. It is content with its header and markers if calls are read, else reasoning."""
    HEADER = auto()
    ROLE = auto()


class Transition(Enum):
    """The effect of a control token on the text after it."""

    THINK = auto()
    ANSWER = auto()
    NAME = auto()
    """Begin a header, which Transition.BODY ends."""
    NAME_LINE = auto()
    """Begin a header, which the end of its line ends."""
    BODY = auto()
    """Begin the channel that the header has named."""
    SPEAK = auto()
    """Begin a role: the text until the next of these tokens is not shown."""
    STAY = auto()
    """Nothing. In a header it is a part of that."""


_N_COMPARED: Final = 64
"""The number of a prompt's last tokens in which a marker is looked for."""
_HEADS: Final = (Channel.ROLE, Channel.HEADER)


@dataclass(frozen=True, slots=True)
class ChannelState:
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
    opened_in: Channel | None = None
    """The channel in which the answer has begun a role or a header; None if the prompt has begun it."""

    @property
    def head(self) -> tuple[str, str | None]:
        """The role, and the header if there is one."""
        role, header = self.role.decode(errors="replace"), self.header.decode(errors="replace")
        return (header, None) if self.channel is Channel.ROLE else (role, header)


CONTENT: Final = ChannelState(Channel.CONTENT)


@dataclass(frozen=True, slots=True)
class ControlTokens:
    """The tokens of a vocabulary that divide an answer, and the names of its control tokens."""

    names: Mapping[TokenId, str]
    """The control tokens."""
    turns: Mapping[TokenId, Transition]
    closers: Mapping[TokenId, TokenId] = field(default_factory=dict)
    """The token that closes what a token opens."""
    calls: frozenset[TokenId] = frozenset()
    """The control tokens that belong to calls."""
    enders: frozenset[TokenId] = frozenset()
    """The tokens with which a call begins, if a call ends the reasoning."""
    text_markers: tuple[str, str] | None = None
    """The markers around the reasoning if they are text, which no token divides."""
    piece: Callable[[TokenId], bytes] = lambda _: b""
    """The bytes of a token, with which a prompt's end is compared with such a marker."""

    def after(self, place: ChannelState, token: TokenId, piece: bytes) -> ChannelState:
        """Return the place after a token."""
        turn = self.turns.get(token)
        if turn is not None:
            return self._turned(place, token, turn)
        if place.channel in _HEADS:
            return self._read_on(place, (place.channel is Channel.HEADER and self._name(token)) or piece)
        return CONTENT if token in self.enders and place.channel is Channel.REASONING else place

    def _name(self, token: TokenId) -> bytes:
        return self.names.get(token, "").encode()

    def _turned(self, place: ChannelState, token: TokenId, turn: Transition) -> ChannelState:
        closer = self.closers.get(token)
        opened_in = (place.opened_in or Channel.CONTENT) if place.channel in _HEADS else place.channel
        match turn:
            case Transition.THINK:
                return ChannelState(Channel.REASONING, closer=closer)
            case Transition.ANSWER:
                return CONTENT
            case Transition.NAME | Transition.NAME_LINE:
                role = place.header if place.channel is Channel.ROLE else b""
                is_line = turn is Transition.NAME_LINE
                return ChannelState(Channel.HEADER, b"", role, is_line, closer, opened_in=opened_in)
            case Transition.BODY:
                return _body_of(place, closer) if place.channel in _HEADS else place
            case Transition.SPEAK:
                return ChannelState(Channel.ROLE, opened_in=opened_in)
            case Transition.STAY:
                is_in_head = place.channel in _HEADS
                return self._read_on(replace(place, opened_in=opened_in), self._name(token)) if is_in_head else place
            case _:
                assert_never(turn)

    def _read_on(self, place: ChannelState, text: bytes) -> ChannelState:
        place = replace(place, header=place.header + text)
        if place.is_line and b"\n" in place.header:
            return _body_of(replace(place, header=place.header.partition(b"\n")[0]), place.closer)
        text_so_far, _ = place.head
        is_begun = place.channel is Channel.ROLE and place.opened_in is None
        return CONTENT if is_begun and harmony.n_begun(text_so_far) < len(text_so_far) else place

    def place_after(self, prompt: Seq[TokenId]) -> ChannelState:
        """Return the place after a prompt: some templates open the reasoning, and a final message may go on.

        A prompt that ends in a header names its channel in a text that is not read here, so its answer counts as
        content.
        """
        if self.text_markers is not None:
            end = b"".join(self._name(token) or self.piece(token) for token in prompt[-_N_COMPARED:])
            is_opened = end.rstrip().endswith(self.text_markers[0].strip().encode())
            return replace(CONTENT, is_opened=True) if is_opened else CONTENT
        last = self._last_turn(prompt)
        if last is None or self.turns[last] not in {Transition.THINK, Transition.SPEAK, Transition.NAME}:
            return CONTENT
        return replace(self.after(CONTENT, last, b""), opened_in=None)

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


def _body_of(place: ChannelState, closer: TokenId | None) -> ChannelState:
    """Return the beginning of the text behind a head."""
    role, header = place.head
    body = harmony.body_of(role, (header or None) if place.is_line else header)
    if body == "call":
        return replace(place, channel=Channel.CALL)
    return CONTENT if body == "content" else ChannelState(Channel.REASONING, closer=closer)


NO_CONTROL_TOKENS: Final = ControlTokens({}, {})


class ChannelText:
    """A job's text, divided into channels if that is wanted. No stop is looked for in the reasoning of a divided text.
    A stop never spans two channels: text that is held back as a possible stop belongs to the channel that it was
    written in.
    """

    def __init__(
        self,
        stops: Seq[str],
        marks: ControlTokens = NO_CONTROL_TOKENS,
        use: MarkUse = "hidden",
        place: ChannelState = CONTENT,
        *,
        reads_calls: bool = False,
        stops_anywhere: bool = False,
    ) -> None:
        """`use` says whether control tokens have no text, or their names as text, or no text and divide it. `place` is
        the beginning of a divided text. `reads_calls` says that calls are content, with the markers around them.
        `stops_anywhere` says that stops are looked for in the reasoning, too.
        """
        is_split = use == "split"
        self._marks = marks if is_split else replace(marks, turns={})
        self._names = marks.names if use == "shown" else {}
        if is_split:
            text_markers = "".join(marks.text_markers or ())
            names = {token: marks.names[token] for token in marks.calls}
            self._names = {token: name for token, name in names.items() if reads_calls or name in text_markers}
        self._reads_calls = reads_calls
        self._place = place if is_split else CONTENT
        self._opening = marks.text_markers[0] if self._place.is_opened and marks.text_markers is not None else ""
        """The marker with which the prompt has opened a reasoning: who reads the text has not seen the prompt. No stop
        is looked for in it."""
        self._stream = TextStream(stops)
        if is_split and not stops_anywhere:
            is_thought = place.is_opened or self._is_reasoning(place)
            self._stream = ThoughtfulStream(stops, marks.text_markers, is_thought=is_thought)
        self._due = b""
        """Text that belongs before the next token's."""
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
        if token in self._marks.enders:
            self._hush(CONTENT)
        if is_begun:
            # What was held back is reasoning, and all of a text is of one channel.
            self._due = self._names.get(token, "").encode() or piece
            return self._stream.flush()
        if turn is not None:
            return self._turned(before, token, turn)
        if before.channel in _HEADS:
            self._n_head += 1
            if self._place.channel is before.channel:
                return ""
            piece = before.header + piece
            if before.is_line:
                piece = piece.partition(b"\n")[2]
            else:
                self.is_answer, self.n_reasoning = True, 0
            self.is_reasoning = self._is_reasoning(self._place)
            self._hush(self._place)
        name = self._names.get(token)
        due, self._due = self._due, b""
        opening, self._opening = self._opening, ""
        return opening + self._stream.push(due + (piece if name is None else name.encode()))

    def flush(self) -> str:
        """Return the text that was held back at the end of generation, in the channel of the last text.

        A model may leave out the header that its prompt has begun. Then its whole text is the answer.
        """
        due = self._due
        if self._place.channel in _HEADS and self._place.opened_in is None and b"to=" not in self._place.header:
            due, self.n_reasoning = self._place.header, 0
        if due:
            self.is_reasoning = False
        return self._opening + self._stream.push(due) + self._stream.flush()

    def _turned(self, before: ChannelState, token: TokenId, turn: Transition) -> str:
        """Return the text at a token that divides: what was held back before it, the markers of a call, or markers that
        a reasoning mentions."""
        after, text, head, name = self._place, "", "", self._marks.names.get(token, "")
        is_in_head = before.channel in _HEADS
        goes_on = turn is Transition.STAY or (turn is Transition.NAME and before.channel is Channel.ROLE)
        self._n_head = self._n_head + 1 if is_in_head else 1
        if self._reads_calls and Channel.CALL in (before.channel, after.channel):
            self.is_answer, self.is_reasoning = True, False
            self.n_reasoning -= 1
            if before.channel is Channel.CALL:
                text = "<|call|>" if after.channel in _HEADS else name
            else:
                self.n_reasoning -= self._n_head - 1
                head = f"<|channel|>commentary to={harmony.recipient_of(*after.head)}<|message|>"
        elif before is after and self._is_reasoning(before):
            text = name
        elif is_in_head and before.opened_in in (Channel.REASONING, Channel.CALL) and not goes_on:
            text = harmony.mention(*before.head, is_ended=turn is Transition.BODY)
            self.is_reasoning = True
            self._hush(ChannelState(Channel.REASONING))
        text = self._stream.push(text.encode()) + self._stream.flush()
        self._hush(after)
        return text + self._stream.push(head.encode())

    def _hush(self, place: ChannelState) -> None:
        self._stream.hush(is_quiet=self._is_reasoning(place))

    def _is_shown(self, place: ChannelState) -> bool:
        return place.channel is Channel.CONTENT or (place.channel is Channel.CALL and self._reads_calls)

    def _is_reasoning(self, place: ChannelState) -> bool:
        return place.channel is Channel.REASONING or (place.channel is Channel.CALL and not self._reads_calls)
