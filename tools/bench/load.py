"""Requests sent at once or late, over one connection each, and their answers.

Nothing is parsed while one is under way. Runs on the load's event loop.
"""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from itertools import groupby

from tools.bench.answers import Answer, Ask
from tools.bench.dialects import Dialect, answer_of
from tools.bench.exchange import SILENCE_S, Address, Connection, Exchange, connect


@dataclass(frozen=True, slots=True)
class Server:
    """A server that takes requests."""

    name: str
    address: Address
    dialect: Dialect
    version: str = ""
    """The version of llama.cpp that a llama-server reports."""
    pids: Mapping[str, int] = field(default_factory=dict)
    """Its processes by their kind; none if it was not started here."""
    silence_s: float = SILENCE_S
    """A stream that says nothing for so long is given up."""


async def play(server: Server, asks: Sequence[Ask]) -> list[Answer]:
    """The answers, in the order of `asks`, which are sorted by phase. Raises: NotReached."""
    exchanges: list[Exchange] = []
    for _, phase in groupby(asks, key=lambda ask: ask.phase):
        exchanges += await _play_phase(server, list(phase))
    return [answer_of(exchange, server.dialect) for exchange in exchanges]


async def _play_phase(server: Server, asks: Sequence[Ask]) -> list[Exchange]:
    """The connections of what is sent at once are open, and all bodies are made, before the first request is sent."""
    bodies = [server.dialect.body(ask) for ask in asks]
    async with AsyncExitStack() as stack:
        early = {number: await _open(server, stack) for number, ask in enumerate(asks) if not ask.is_late}
        sent = [
            early[number].ask("POST", server.dialect.path, body)
            if number in early
            else _send_late(server, body, list(early.values()), stack)
            for number, body in enumerate(bodies)
        ]
        return await asyncio.gather(*sent)


async def _send_late(server: Server, body: bytes, early: Sequence[Connection], stack: AsyncExitStack) -> Exchange:
    """Send the request when the early ones are going, on a new connection, because servers close idle ones."""
    await asyncio.gather(*(connection.is_going.wait() for connection in early))
    return await (await _open(server, stack)).ask("POST", server.dialect.path, body)


async def _open(server: Server, stack: AsyncExitStack) -> Connection:
    connection = await connect(server.address, server.silence_s)
    stack.callback(connection.close)
    return connection
