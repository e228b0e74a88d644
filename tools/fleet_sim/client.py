"""A request to a real worker at `/v1/completions`, as prompts of tokens, and the times of its answer.

Owns what is asked. Runs on the check's event loop.
"""

from dataclasses import dataclass

import msgspec

from client.openai import Chunk
from tools.bench.dialects import OK, sse
from tools.bench.exchange import Address, Exchange, connect
from tools.fleet_sim.workloads import Ask
from worker.errors import WorkerError

_SHOWN_OF_A_BODY = 200


class NoAnswer(WorkerError):
    """A worker did not answer as it was asked to: one line that says how, exit 1."""


@dataclass(frozen=True, slots=True)
class Timed:
    """Times are time.perf_counter(), in seconds."""

    sent_s: float
    arrivals_s: tuple[float, ...]
    """The arrival of each token."""
    n_cached: int

    @property
    def first_token_s(self) -> float:
        return self.arrivals_s[0] - self.sent_s


async def ask_worker(address: Address, ask: Ask) -> Timed:
    """Send a request and wait for all of its answer. Raises: NotReached, NoAnswer."""
    body = {
        "model": "any",
        "prompt": ask.prompt,
        "max_tokens": ask.n_tokens,
        "temperature": 0.0,
        "logit_bias": {str(token): bias for token, bias in ask.sampling.logit_bias},
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    encoded = msgspec.json.encode(body)
    connection = await connect(address)
    try:
        exchange = await connection.ask("POST", "/v1/completions", encoded)
    finally:
        connection.close()
    return _read(address, ask, exchange)


def _read(address: Address, ask: Ask, exchange: Exchange) -> Timed:
    if exchange.status != OK or exchange.broken:
        text = exchange.body[:_SHOWN_OF_A_BODY].decode("utf-8", "replace")
        raise NoAnswer(f"{address} answered {exchange.status} {exchange.broken} {text}")
    chunks = [(at_s, msgspec.json.decode(data, type=Chunk)) for at_s, data in sse(exchange)]
    arrivals = tuple(at_s for at_s, chunk in chunks if any(choice.text for choice in chunk.choices))
    n_cached = sum(chunk.usage.prompt_tokens_details.cached_tokens for _, chunk in chunks if chunk.usage is not None)
    if len(arrivals) != ask.n_tokens:
        raise NoAnswer(f"{address} sent {len(arrivals)} tokens, {ask.n_tokens} were asked for")
    return Timed(exchange.sent_s, arrivals, n_cached)
