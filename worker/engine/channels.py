"""Drawn tokens become a text in channels: control tokens divide reasoning from content.

This module owns which control tokens divide an answer in which model families, and the channel of each piece of text.
It knows nothing of templates or of how text may be shown (text.py). It is pure and runs on the step thread, with one
ChannelText per job.

    <|channel|> analysis <|message|> The user greets. <|end|> <|start|> assistant <|channel|> final <|message|> Hello!
    └ header ──────────┘             └ reasoning ───┘         └ role ─────────────────────┘             └ content ───┘
"""

from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, assert_never

from worker.engine.text import TextStream
from worker.wire.jobs import MarkUse, TokenId


class Channel(Enum):
    """The destination of text. A header names the channel that follows; headers and roles are never shown."""

    CONTENT = auto()
    REASONING = auto()
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

FAMILIES: tuple[Mapping[str, Turn], ...] = (
    # gpt-oss (harmony). The channel of a call is not the answer's either.
    {
        "<|channel|>": Turn.NAME,
        "<|message|>": Turn.BODY,
        "<|start|>": Turn.SPEAK,
        "<|end|>": Turn.ANSWER,
        "<|call|>": Turn.ANSWER,
    },
    {"[THINK]": Turn.THINK, "[/THINK]": Turn.ANSWER},  # Magistral, Ministral 3
    {"<|channel>": Turn.NAME_LINE, "<channel|>": Turn.ANSWER},  # Gemma 4
    {  # Command R7B, Command A
        "<|START_THINKING|>": Turn.THINK,
        "<|END_THINKING|>": Turn.ANSWER,
        "<|START_RESPONSE|>": Turn.ANSWER,
        "<|START_TEXT|>": Turn.ANSWER,
    },
    {"<think>": Turn.THINK, "</think>": Turn.ANSWER},
    {"<seed:think>": Turn.THINK, "</seed:think>": Turn.ANSWER},
    {"<mm:think>": Turn.THINK, "</mm:think>": Turn.ANSWER},
    {"<|begin_of_thought|>": Turn.THINK, "<|end_of_thought|>": Turn.ANSWER},
)
"""Control tokens by their names. A family counts if the vocabulary has its first two as control tokens; names that are
ordinary tokens are text, and are shown."""


@dataclass(frozen=True, slots=True)
class Marks:
    """The control tokens of a vocabulary: their names, and the effect of those that divide an answer."""

    names: Mapping[TokenId, str]
    turns: Mapping[TokenId, Turn]

    @classmethod
    def of(cls, controls: Mapping[str, TokenId]) -> "Marks":
        """Make the marks of a vocabulary; `controls` are its control tokens by their names."""
        turns: dict[TokenId, Turn] = {}
        for family in FAMILIES:
            if all(name in controls for name in list(family)[:2]):
                turns |= {controls[name]: turn for name, turn in family.items() if name in controls}
        return cls({token: name for name, token in controls.items()}, turns)

    def channel_after(self, prompt: Seq[TokenId]) -> Channel:
        """Return the channel of the text after a prompt: some templates open the reasoning, and a final message may go
        on.

        A prompt that ends in a header names its channel in a text that is not read here, so its answer counts as
        content.
        """
        last = next((self.turns[token] for token in reversed(prompt) if token in self.turns), Turn.ANSWER)
        return {Turn.THINK: Channel.REASONING, Turn.SPEAK: Channel.ROLE, Turn.NAME: Channel.HEADER}.get(
            last, Channel.CONTENT
        )


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
        channel: Channel = Channel.CONTENT,
    ) -> None:
        """`use` says whether control tokens have no text, or their names as text, or no text and divide it. `channel`
        is the first channel of a divided text."""
        self._stream = TextStream(stops)
        self._names = marks.names if use == "shown" else {}
        self._turns = marks.turns if use == "split" else {}
        self._channel = channel if use == "split" else Channel.CONTENT
        self._header = b""
        self._unheaded: bytes | None = b""
        """The text so far of an answer that has begun in a role or a header; None once a control token has come."""
        self._is_line = False
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
        self.is_reasoning = self._channel is Channel.REASONING
        turn = self._turns.get(token)
        self.is_answer = turn is None and self._channel is Channel.CONTENT
        self.n_reasoning += not self.is_answer
        if turn is not None:
            self._unheaded = None
            self._turn(turn)
            return self._stream.part()
        if self._unheaded is not None and not self.is_answer:
            self._unheaded += piece
        if self._channel is Channel.ROLE:
            return ""
        if self._channel is Channel.HEADER:
            piece = self._behind_header(piece)
        name = self._names.get(token)
        return self._stream.push(piece if name is None else name.encode())

    def flush(self) -> str:
        """Return the text that was held back at the end of generation, in the channel of the last text.

        A model may leave out the header that its prompt has begun. Then its whole text is the answer.
        """
        if self._unheaded and self._channel in (Channel.ROLE, Channel.HEADER):
            self.n_reasoning = 0
            return self._unheaded.decode(errors="replace")
        return self._stream.flush()

    def _turn(self, turn: Turn) -> None:
        match turn:
            case Turn.THINK:
                self._channel = Channel.REASONING
            case Turn.ANSWER:
                self._channel = Channel.CONTENT
            case Turn.NAME | Turn.NAME_LINE:
                self._channel, self._header, self._is_line = Channel.HEADER, b"", turn is Turn.NAME_LINE
            case Turn.BODY:
                self._begin_body()
            case Turn.SPEAK:
                self._channel = Channel.ROLE
            case _:
                assert_never(turn)

    def _behind_header(self, piece: bytes) -> bytes:
        """Read on in a header; return the rest after it if it ends with its line."""
        self._header += piece
        if not self._is_line or b"\n" not in self._header:
            return b""
        self._header, _, rest = self._header.partition(b"\n")
        self._begin_body()
        self.is_reasoning = self._channel is Channel.REASONING
        return rest

    def _begin_body(self) -> None:
        words = self._header.decode(errors="replace").split() if self._channel is Channel.HEADER else []
        self._channel = Channel.CONTENT if not words or words[0] in FINAL else Channel.REASONING
        self._header = b""
