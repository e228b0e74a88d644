"""More jobs than there is room for: a burst of which the rest is refused, and ten thousand refusals timed.

Owns how the worker is filled and that every refusal is one. Runs on the load's event loop, on a worker of its own.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from statistics import median

from tools.bench.answers import Ask, percentile
from tools.bench.dialects import NO_ROOM, OK
from tools.bench.exchange import Connection, Exchange, connect
from tools.bench.load import Server, play
from tools.bench.processes import cpu_s
from tools.bench.prompts import Prompts
from worker.errors import WorkerError

N_PLACES = 8
WORKER_FLAGS = ("--parallel", "2", "--max-queue", str(N_PLACES - 2), "--threads", "1", "--max-tokens-out", "8000")
"""One thread generates, so that the front and the client have a processor where there are two."""
_N_BURST = 32
_N_COMPARED = 1000
"""The number of first and of last refusals that are compared."""
_FILL_S, _RETRY_S = 60.0, 0.05
_LONG_JOB = Ask(prompt="Once upon a time", n_tokens=7000)


class NotFull(WorkerError):
    """The worker took jobs for which it should have had no room."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overload:
    """The behaviour of a full worker with further requests."""

    n_burst: int
    """Jobs sent at once into `n_places` slots and places in the queue."""
    n_places: int
    n_answered: int
    n_refused: int
    n_failed: int
    """Neither of the two."""
    n_refusals: int
    """Sent one after another to a full queue; the times are of these."""
    front_us: float | None
    """Processor time of the front for one; None if it is unknown."""
    median_us: float
    """The median time that the client measures."""
    p99_us: float
    first_us: float
    """The median of the first thousand."""
    last_us: float


async def overload(server: Server, prompts: Prompts, n_refusals: int) -> Overload:
    """The burst, then this many refusals.

    Raises: NotReached; NotFull when something was taken that should have been refused.
    """
    burst = await play(server, [Ask(prompt=prompts.of(24), n_tokens=32) for _ in range(_N_BURST)])
    async with _full(server):
        front = [server.pids["front"]] if "front" in server.pids else []
        before_s = cpu_s(front)
        times_us = await _refusals(server, prompts, n_refusals)
        front_s = cpu_s(front) - before_s
    return Overload(
        n_burst=len(burst),
        n_places=N_PLACES,
        n_answered=sum(not answer.error for answer in burst),
        n_refused=sum(answer.is_refused for answer in burst),
        n_failed=sum(bool(answer.error) and not answer.is_refused for answer in burst),
        n_refusals=len(times_us),
        front_us=1e6 * front_s / len(times_us) if front else None,
        median_us=median(times_us),
        p99_us=percentile(times_us, 99),
        first_us=median(times_us[:_N_COMPARED]),
        last_us=median(times_us[-_N_COMPARED:]),
    )


@asynccontextmanager
async def _full(server: Server) -> AsyncIterator[None]:
    """Every place of the worker is taken by a job that goes on; they are given up at the end."""
    async with AsyncExitStack() as places:
        give_up_s = time.monotonic() + _FILL_S
        for _ in range(N_PLACES):
            while not await _take_place(server, places):
                if time.monotonic() > give_up_s:
                    raise NotFull(f"{server.name} had no room for {N_PLACES} jobs within {_FILL_S:g} s")
                await asyncio.sleep(_RETRY_S)
        yield


async def _take_place(server: Server, places: AsyncExitStack) -> bool:
    """True if a long job was accepted. A refusal is retried, because jobs that have just ended may still count."""
    connection = await connect(server.address)
    job = asyncio.create_task(connection.ask("POST", server.dialect.path, server.dialect.body(_LONG_JOB)))
    places.push_async_callback(_give_up, connection, job)
    await connection.has_begun.wait()
    if connection.status not in (OK, NO_ROOM):
        raise NotFull(f"{server.name} answered {connection.status} to a long job, which should have gone on")
    return connection.status == OK


async def _give_up(connection: Connection, job: asyncio.Task[Exchange]) -> None:
    connection.close()
    await job


async def _refusals(server: Server, prompts: Prompts, n_refusals: int) -> Sequence[float]:
    """Microseconds of each, from sending to the end of its answer, on one connection."""
    connection = await connect(server.address)
    body = server.dialect.body(Ask(prompt=prompts.of(64), n_tokens=96))
    times_us = []
    try:
        for number in range(n_refusals):
            exchange = await connection.ask("POST", server.dialect.path, body)
            times_us.append(1e6 * (time.perf_counter() - exchange.sent_s))
            if exchange.status != NO_ROOM:
                raise NotFull(f"{server.name} answered {exchange.status} to job {number + 1} beyond its queue")
    finally:
        connection.close()
    return times_us
