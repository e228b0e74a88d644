"""How the two servers are asked and how their streams are read: `/execute` of ours, `/completion` of llama-server.

Owns every field name of both wires. Refuses to know sockets (exchange.py) and when a request is due (load.py). Pure.
"""

from collections.abc import Callable, Iterator
from itertools import count
from typing import Protocol

import msgspec

from tools.bench.answers import Answer, Ask
from tools.bench.exchange import Exchange

OK, NO_ROOM = 200, 503
_SHOWN_OF_A_BODY = 200
_job_numbers = count(1)


class Dialect(Protocol):
    """One server's words."""

    path: str
    health_path: str
    """200 when requests are taken."""

    def body(self, ask: Ask) -> bytes:
        """The request, streamed, with the length it asks for."""

    def answer(self, exchange: Exchange) -> Answer:
        """What came back; anything but a whole answer has its `error`."""


class _Execute(msgspec.Struct, frozen=True, kw_only=True):
    job_id: str
    prompt: str
    max_tokens: int
    temperature: float
    top_p: float
    seed: int
    ignore_eos: bool = True


class _Event(msgspec.Struct, frozen=True):
    """The fields of all events of ours that are looked at."""

    type: str
    t: str = ""
    tokens_sampled: int = 0
    code: str = ""
    message: str = ""


class Ours:
    """`POST /execute` with server-sent events."""

    path, health_path = "/execute", "/readyz"

    def __init__(self, prefix: str) -> None:
        """`prefix` of the job ids, which must be nobody else's at that worker."""
        self._prefix = prefix

    def body(self, ask: Ask) -> bytes:
        return msgspec.json.encode(
            _Execute(
                job_id=f"{self._prefix}-{next(_job_numbers)}",
                prompt=ask.prompt,
                max_tokens=ask.n_tokens,
                temperature=ask.temperature,
                top_p=ask.top_p,
                seed=ask.seed,
            )
        )

    def answer(self, exchange: Exchange) -> Answer:
        return _read(exchange, self._answer)

    def _answer(self, exchange: Exchange) -> Answer:
        arrivals: list[float] = []
        for at_s, data in sse(exchange):
            event = msgspec.json.decode(data, type=_Event)
            match event.type:
                case "token":
                    arrivals.append(at_s)
                case "end":
                    return _ended(exchange, arrivals, at_s, event.tokens_sampled)
                case "error":
                    return _failed(exchange, f"{event.code}: {event.message}")
        return _cut(exchange, arrivals)


class _Completion(msgspec.Struct, frozen=True, kw_only=True):
    prompt: str
    n_predict: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    seed: int
    stream: bool = True
    ignore_eos: bool = True
    cache_prompt: bool = True


class _Error(msgspec.Struct, frozen=True):
    message: str = ""


class _Timings(msgspec.Struct, frozen=True):
    predicted_n: int = 0


class _Chunk(msgspec.Struct, frozen=True):
    """The fields of llama-server's events that are looked at."""

    content: str = ""
    stop: bool = False
    timings: _Timings = _Timings()
    error: _Error | None = None


class LlamaServer:
    """`POST /completion` with `stream`.

    Its own defaults where a request of ours has none. Greedy is asked for as what costs it least: with its default
    top-k of 40 it would look for 40 candidates, with none it would exponentiate the whole vocabulary.
    """

    path, health_path = "/completion", "/health"

    def body(self, ask: Ask) -> bytes:
        is_greedy = ask.temperature == 0.0
        return msgspec.json.encode(
            _Completion(
                prompt=ask.prompt,
                n_predict=ask.n_tokens,
                temperature=ask.temperature,
                top_k=1 if is_greedy else 0,
                top_p=ask.top_p,
                min_p=0.0,
                seed=ask.seed,
            )
        )

    def answer(self, exchange: Exchange) -> Answer:
        return _read(exchange, self._answer)

    def _answer(self, exchange: Exchange) -> Answer:
        arrivals: list[float] = []
        for at_s, data in sse(exchange):
            chunk = msgspec.json.decode(data, type=_Chunk)
            if chunk.error is not None:
                return _failed(exchange, chunk.error.message)
            if chunk.content:
                arrivals.append(at_s)
            if chunk.stop:
                return _ended(exchange, arrivals, at_s, chunk.timings.predicted_n)
        return _cut(exchange, arrivals)


def sse(exchange: Exchange) -> Iterator[tuple[float, bytes]]:
    """The data of each server-sent event, and when its last byte was there. Comments are no events."""
    rest = b""
    for at_s, piece in exchange.pieces:
        *events, rest = (rest + piece).split(b"\n\n")
        for event in events:
            if (place := event.find(b"{")) >= 0 and not event.startswith(b":"):
                yield at_s, event[place:]


def _read(exchange: Exchange, read: Callable[[Exchange], Answer]) -> Answer:
    """What `read` makes of the stream, where there is one that can be read."""
    if exchange.status != OK:
        return _refused(exchange)
    try:
        return read(exchange)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return _failed(exchange, f"no event: {error}")


def _ended(exchange: Exchange, arrivals: list[float], ended_s: float, n_tokens: int) -> Answer:
    if not arrivals:
        return _failed(exchange, f"{n_tokens} tokens, none of them with text")
    return Answer(sent_s=exchange.sent_s, arrivals_s=tuple(arrivals), ended_s=ended_s, n_tokens=n_tokens)


def _refused(exchange: Exchange) -> Answer:
    if exchange.status == 0:
        return _failed(exchange, f"no answer: {exchange.broken}")
    text = exchange.body[:_SHOWN_OF_A_BODY].decode("utf-8", "replace")
    return _failed(exchange, f"{exchange.status} {text}", is_refused=exchange.status == NO_ROOM)


def _failed(exchange: Exchange, error: str, *, is_refused: bool = False) -> Answer:
    return Answer(sent_s=exchange.sent_s, error=error, is_refused=is_refused)


def _cut(exchange: Exchange, arrivals: list[float]) -> Answer:
    return _failed(exchange, f"cut after {len(arrivals)} tokens: {exchange.broken or 'no last event'}")
