"""What a client asks a running worker and what it is told: a request, a stream of events, the answer they make.

Owns the client's side of the wire (docs/protocol.md 4) and where two answers part. Refuses to know how a worker is
reached (serving.py) and how much difference is allowed. Pure.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from math import inf

import msgspec

N_TOP = 20
"""Log-probabilities asked for with each token: as many as a request may ask for."""

N_DRAWN = 16
"""Tokens that a seeded request may draw from; those reported after them are so near that rounding may bring them in."""

END = -1
"""Stands in `Answer.choices` for the end token that ended an answer; its id is not on the wire."""


class Request(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A body of `POST /execute`. A seed of None leaves it to the worker."""

    job_id: str
    prompt: str
    max_tokens: int
    temperature: float
    logprobs: int
    seed: int | None = None
    top_k: int = 0


class Top(msgspec.Struct, frozen=True):
    id: int
    logprob: float


class Drawn(msgspec.Struct, frozen=True):
    """One sampled token with its row's most probable ones, best first."""

    id: int
    logprob: float
    """Of the token under the model's raw logits, nats."""
    top: tuple[Top, ...]


class Started(msgspec.Struct, frozen=True, tag_field="type", tag="started"):
    seed: int


class Token(msgspec.Struct, frozen=True, tag_field="type", tag="token"):
    t: str
    logprobs: tuple[Drawn, ...] = ()


class Metrics(msgspec.Struct, frozen=True, tag_field="type", tag="metrics"):
    pass


class End(msgspec.Struct, frozen=True, tag_field="type", tag="end"):
    stop_reason: str
    tokens_sampled: int


class Failed(msgspec.Struct, frozen=True, tag_field="type", tag="error"):
    code: str
    message: str


Event = Started | Token | Metrics | End | Failed
_decoder: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Event)


def events(chunks: Iterable[bytes]) -> Iterator[Event]:
    """Server-sent events as they come, whatever way the bytes are cut. Raises: msgspec.ValidationError."""
    rest = b""
    for chunk in chunks:
        *frames, rest = (rest + chunk).split(b"\n\n")
        yield from (_decoder.decode(frame.removeprefix(b"data: ")) for frame in frames)


@dataclass(frozen=True, slots=True)
class Answer:
    """All of one stream."""

    job_id: str
    seed: int | None
    """As `started` reports it."""
    drawn: tuple[Drawn, ...]
    """Every sampled token whose text was shown."""
    text: str
    stop_reason: str
    """`""` when the job did not come to its end."""
    n_sampled: int
    error: str
    """Code and message of the error event, or why there was no stream; else `""`."""
    n_terminal: int
    """Terminal events; exactly one is right."""

    @property
    def tokens(self) -> tuple[int, ...]:
        return tuple(drawn.id for drawn in self.drawn)

    @property
    def choices(self) -> tuple[int, ...]:
        """The tokens, and END where the model ended the answer."""
        return (*self.tokens, END) if self.stop_reason == "EOS" else self.tokens


def answer_of(job_id: str, told: Sequence[Event]) -> Answer:
    """The answer that a stream's events make, also of a stream that broke off."""
    started = next((event for event in told if isinstance(event, Started)), None)
    ended = next((event for event in told if isinstance(event, End)), None)
    failed = next((event for event in told if isinstance(event, Failed)), None)
    tokens = [event for event in told if isinstance(event, Token)]
    return Answer(
        job_id=job_id,
        seed=started.seed if started else None,
        drawn=tuple(drawn for token in tokens for drawn in token.logprobs),
        text="".join(token.t for token in tokens),
        stop_reason=ended.stop_reason if ended else "",
        n_sampled=ended.tokens_sampled if ended else 0,
        error=f"{failed.code}: {failed.message}" if failed else "",
        n_terminal=sum(isinstance(event, End | Failed) for event in told),
    )


def unanswered(job_id: str, why: str) -> Answer:
    """For a job that was refused or whose worker was gone."""
    return Answer(job_id, None, (), "", "", 0, why, 0)


@dataclass(frozen=True, slots=True)
class Parting:
    """Where two continuations of one prompt first differ."""

    position: int
    """Generated tokens that are the same."""
    gap: float
    """By how much the rows say that the two tokens differ, nats, the larger of both rows; inf where a row does not
    list both."""


def parting(one: Answer, other: Answer, ends: Collection[int] = ()) -> Parting | None:
    """Where two served answers part; None when they are the same. `ends`: the vocabulary's end tokens."""
    for position, (mine, yours) in enumerate(zip_longest(one.choices, other.choices)):
        if mine != yours:
            rows = [answer.drawn[position] for answer in (one, other) if position < len(answer.drawn)]
            return Parting(position, max((_gap(row, mine, yours, ends) for row in rows), default=inf))
    return None


def parting_from(answer: Answer, expected: Sequence[int], ends: Collection[int] = ()) -> Parting | None:
    """Where a served answer leaves the tokens that were to be expected, which may go on after their own end.

    Tokens whose text was never shown (half a character at the very end) are not missed.
    """
    for position, (mine, theirs) in enumerate(zip(answer.choices, expected, strict=False)):
        wanted = END if theirs in ends else theirs
        if mine != wanted:
            is_shown = position < len(answer.drawn)
            return Parting(position, _gap(answer.drawn[position], mine, theirs, ends) if is_shown else inf)
        if mine == END:
            return None
    n_told = len(answer.choices)
    return None if answer.n_sampled >= len(expected) else Parting(n_told, inf)


def _gap(row: Drawn, one: int | None, other: int | None, ends: Collection[int]) -> float:
    """Between two choices, by one row. The token's own figure is not trusted: its id is looked up like the other's."""
    difference = abs(_listed(row, one, ends) - _listed(row, other, ends))
    return difference if difference < inf else inf


def _listed(row: Drawn, choice: int | None, ends: Collection[int]) -> float:
    ids = ends if choice == END else (choice,)
    return max((top.logprob for top in row.top if top.id in ids), default=-inf)
