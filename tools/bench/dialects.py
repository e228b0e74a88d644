"""The requests to servers and the reading of their streams: `/execute` of ours, `/completion` of llama-server. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

import msgspec

from client import execute
from client.openai import Error
from client.sse import Frames, is_comment
from tools.bench.exchange import Exchange
from tools.bench.measures import Answer, Ask

OK = 200
_SHOWN_OF_A_BODY = 200
_job_numbers = count(1)


@dataclass(frozen=True, slots=True)
class Event:
    """The content of one event of a stream, independent of any server's format."""

    has_text: bool = False
    n_prompt: int = 0
    """Tokens of the prompt, where the event says so."""
    n_cached: int = 0
    """Those of them that were not computed, where the event says so."""
    n_tokens: int | None = None
    """Sampled tokens; only the last event has them."""
    error: str = ""


class Ours:
    """`POST /execute` with server-sent events. `health_path`: 200 when requests are taken."""

    path, health_path = "/execute", "/readyz"

    def __init__(self, prefix: str) -> None:
        """`prefix` of the job ids, which must be unique at that worker."""
        self._prefix = prefix

    def body(self, ask: Ask) -> bytes:
        body = {
            "job_id": f"{self._prefix}-{next(_job_numbers)}",
            "prompt": ask.prompt,
            "max_tokens": ask.n_tokens,
            "temperature": ask.temperature,
            "top_p": ask.top_p,
            "seed": ask.seed,
            "ignore_eos": True,
        }
        return msgspec.json.encode(body)

    def event(self, data: bytes) -> Event:
        match execute.decode(data):
            case execute.Started(prompt_tokens=n_prompt, cached_tokens=n_cached):
                return Event(n_prompt=n_prompt, n_cached=n_cached)
            case execute.Token():
                return Event(has_text=True)
            case execute.End(tokens_sampled=n_tokens):
                return Event(n_tokens=n_tokens)
            case execute.Failed(code=code, message=message):
                return Event(error=f"{code}: {message}")
            case execute.Metrics():
                return Event()


class _Timings(msgspec.Struct, frozen=True):
    predicted_n: int = 0
    cache_n: int = 0


class _Chunk(msgspec.Struct, frozen=True):
    """The fields of llama-server's events that are looked at."""

    content: str = ""
    stop: bool = False
    tokens_evaluated: int = 0
    timings: _Timings = _Timings()
    error: Error | None = None


class LlamaServer:
    """`POST /completion` with `stream`.

    Its own defaults where a request of ours has none. Greedy is asked for as what costs it least: with its default
    top-k of 40 it would look for 40 candidates, with none it would exponentiate the whole vocabulary.
    """

    path, health_path = "/completion", "/health"

    def body(self, ask: Ask) -> bytes:
        body = {
            "prompt": ask.prompt,
            "n_predict": ask.n_tokens,
            "temperature": ask.temperature,
            "top_k": 1 if ask.temperature == 0.0 else 0,
            "top_p": ask.top_p,
            "min_p": 0.0,
            "seed": ask.seed,
            "stream": True,
            "ignore_eos": True,
            "cache_prompt": True,
        }
        return msgspec.json.encode(body)

    def event(self, data: bytes) -> Event:
        chunk = msgspec.json.decode(data, type=_Chunk)
        return Event(
            has_text=bool(chunk.content),
            n_prompt=chunk.tokens_evaluated,
            n_cached=chunk.timings.cache_n,
            n_tokens=chunk.timings.predicted_n if chunk.stop else None,
            error=chunk.error.message if chunk.error else "",
        )


Dialect = Ours | LlamaServer


def answer_of(exchange: Exchange, dialect: Dialect) -> Answer:
    """The answer; an incomplete one has an `error`."""
    if exchange.status == 0:
        return _failed(exchange, f"no answer: {exchange.broken}")
    if exchange.status != OK:
        text = exchange.body[:_SHOWN_OF_A_BODY].decode("utf-8", "replace")
        return _failed(exchange, f"{exchange.status} {text}")
    try:
        return _read(exchange, dialect)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return _failed(exchange, f"no event: {error}")


def _read(exchange: Exchange, dialect: Dialect) -> Answer:
    arrivals: list[float] = []
    n_prompt = n_cached = 0
    for at_s, data in sse(exchange):
        event = dialect.event(data)
        n_prompt, n_cached = n_prompt or event.n_prompt, n_cached or event.n_cached
        if event.has_text:
            arrivals.append(at_s)
        if event.error:
            return _failed(exchange, event.error)
        if event.n_tokens is not None and not arrivals:
            return _failed(exchange, f"{event.n_tokens} tokens, none of them with text")
        if event.n_tokens is not None:
            return Answer(
                sent_s=exchange.sent_s,
                arrivals_s=tuple(arrivals),
                ended_s=at_s,
                n_tokens=event.n_tokens,
                n_prompt=n_prompt,
                n_cached=n_cached,
            )
    return _failed(exchange, f"cut after {len(arrivals)} tokens: {exchange.broken or 'no last event'}")


def _failed(exchange: Exchange, error: str) -> Answer:
    return Answer(sent_s=exchange.sent_s, error=error)


def sse(exchange: Exchange) -> Iterator[tuple[float, bytes]]:
    """The data of each server-sent event, and when its last byte was there. Comments are no events."""
    frames = Frames()
    for at_s, piece in exchange.pieces:
        for frame in frames.feed(piece):
            # An error of llama-server's is no `data`.
            if (place := frame.find(b"{")) >= 0 and not is_comment(frame):
                yield at_s, frame[place:]
