"""The wire of `/execute` (docs/protocol.md#post-execute): a request, its events, and the answer they make. Pure."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import msgspec

from client.sse import data_in


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
    """The token's log-probability under the model's raw logits, in nats."""
    top: tuple[Top, ...]


class Started(msgspec.Struct, frozen=True, tag_field="type", tag="started"):
    seed: int
    prompt_tokens: int
    cached_tokens: int = 0


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

END = -1
"""Stands in `Answer.choices` for the end token that ended an answer; its id is not on the wire."""


def decode(data: bytes) -> Event:
    """One event. Raises: msgspec.DecodeError, UnicodeDecodeError."""
    return _decoder.decode(data)


def events(chunks: Iterable[bytes]) -> Iterator[Event]:
    """The events of a stream as they come. Raises: as `decode`."""
    return map(decode, data_in(chunks))


@dataclass(frozen=True, slots=True)
class Answer:
    """All of one stream."""

    job_id: str
    seed: int | None = None
    """The seed that `started` reports."""
    drawn: tuple[Drawn, ...] = ()
    """Every sampled token whose text was shown."""
    text: str = ""
    stop_reason: str = ""
    """`""` when the job did not come to its end."""
    n_sampled: int = 0
    error: str = ""
    """Code and message of the error event, or why there was no stream; else `""`."""
    n_terminal: int = 0
    """Terminal events; exactly one is right."""

    @property
    def tokens(self) -> tuple[int, ...]:
        return tuple(drawn.id for drawn in self.drawn)

    @property
    def choices(self) -> tuple[int, ...]:
        """The tokens, and END where the model ended the answer."""
        return (*self.tokens, END) if self.stop_reason == "EOS" else self.tokens


def answer_of(job_id: str, events: Sequence[Event]) -> Answer:
    """The answer that a stream's events make, also of a stream that broke off."""
    started = next((event for event in events if isinstance(event, Started)), None)
    ended = next((event for event in events if isinstance(event, End)), None)
    failed = next((event for event in events if isinstance(event, Failed)), None)
    tokens = [event for event in events if isinstance(event, Token)]
    return Answer(
        job_id=job_id,
        seed=started.seed if started else None,
        drawn=tuple(drawn for token in tokens for drawn in token.logprobs),
        text="".join(token.t for token in tokens),
        stop_reason=ended.stop_reason if ended else "",
        n_sampled=ended.tokens_sampled if ended else 0,
        error=f"{failed.code}: {failed.message}" if failed else "",
        n_terminal=sum(isinstance(event, End | Failed) for event in events),
    )


def unanswered(job_id: str, error: Exception) -> Answer:
    """The answer for a job that was refused or whose worker was gone."""
    return Answer(job_id, error=str(error) or type(error).__name__)
