"""1,024 connections without a request, opened anew as the worker cuts them. `python -m tests.attacks.idle`."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial

from tests.attacks.watch import apart, attacked, seconds
from worker.web.server import allow_open_files

N_CONNECTIONS = 1100
"""More than the worker takes, so that each new one has to push out another."""


class Crowd:
    """Keeps `n_connections` open; each sends `said` at once and then about every second."""

    def __init__(self, port: int, n_connections: int, said: bytes) -> None:
        self._port = port
        self._n_connections = n_connections
        self._said = said
        self.n_opened = 0

    @asynccontextmanager
    async def besieging(self) -> AsyncIterator[None]:
        members = [asyncio.create_task(self._stay()) for _ in range(self._n_connections)]
        try:
            yield
        finally:
            for member in members:
                member.cancel()
            await asyncio.wait(members)

    async def _stay(self) -> None:
        while True:
            with suppress(OSError):
                reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
                self.n_opened += 1
                try:
                    await self._say(reader, writer)
                finally:
                    writer.transport.abort()

    async def _say(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            writer.write(self._said)
            with suppress(TimeoutError):
                async with asyncio.timeout(1.0):
                    if not await reader.read(1024):
                        return


async def _besiege(port: int, said: bytes, for_s: float) -> int:
    crowd = Crowd(port, N_CONNECTIONS, said)
    async with crowd.besieging():
        await asyncio.sleep(for_s)
    return crowd.n_opened


def besiege(said: bytes, for_s: float, port: int) -> int:
    """Returns how many connections were opened."""
    allow_open_files()
    return asyncio.run(_besiege(port, said, for_s))


def run(said: bytes) -> None:
    for_s = seconds(20.0)
    with attacked() as (worker, _):
        n_opened = apart(partial(besiege, said, for_s), worker.port)
        sys.stdout.write(f"{n_opened} connections were opened in {for_s:.0f} s\n")


if __name__ == "__main__":
    run(b"")
