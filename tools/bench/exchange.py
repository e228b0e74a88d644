"""One HTTP exchange with the time of every piece that arrived: the cheapest client that is still a correct one.

A load generator shares the processors with what it measures, so the pieces are only kept here, and read when the load
is over. httptools parses the framing and a bare asyncio protocol receives: a lone stream's token event costs 19 µs of
processor time, 107 µs through httpx2; one of eight streams' 11 and 51 µs. Runs on the load's event loop.
"""

import asyncio
import time
from dataclasses import dataclass, field
from typing import cast
from urllib.parse import urlsplit

import httptools

from worker.errors import UsageError, WorkerError

SILENCE_S = 300.0
"""A server that says nothing for so long says nothing any more: a model of 7 billion weights may read for minutes."""
N_GOING = 24
"""The pieces of an answer that is going on, if the caller has no number of its own."""


class NotReached(WorkerError):
    """No server answers at the address: one line, exit 1."""


@dataclass(frozen=True, slots=True)
class Address:
    """The address of a server."""

    host: str
    port: int
    token: str | None = None
    """Sent as a bearer token."""

    @classmethod
    def of(cls, url: str, token: str | None = None) -> "Address":
        """Raises: UsageError for what is no http://host:port."""
        wrong = UsageError(f"{url!r} is not the address of a server: give it as http://HOST:PORT")
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port or 80
        except ValueError:
            raise wrong from None
        if host is None or parts.scheme != "http" or parts.path not in ("", "/"):
            raise wrong
        return cls(host, port, token)

    def __str__(self) -> str:
        return f"http://{self.host}:{self.port}"


@dataclass(slots=True)
class Exchange:
    """A request and what came back. Times are time.perf_counter()."""

    sent_s: float
    status: int = 0
    """0: no answer began."""
    pieces: list[tuple[float, bytes]] = field(default_factory=list)
    """The parts of the body, each with the time of its arrival."""
    broken: str = "no end of the answer"
    """The reason why the answer is not whole; empty if it is."""

    @property
    def body(self) -> bytes:
        return b"".join(piece for _, piece in self.pieces)


class Connection(asyncio.Protocol):
    """A connection for one exchange after another. Made by `connect`; close it."""

    def __init__(self, address: Address, silence_s: float) -> None:
        self._address = address
        self._silence_s = silence_s
        self._parser = httptools.HttpResponseParser(self)
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.exchange = Exchange(sent_s=0.0)
        """The current exchange, as far as it has come."""
        self.heard_s = 0.0
        """The time.perf_counter() of the last bytes that came; 0 before the first."""
        self._n_going = N_GOING
        self.is_going = asyncio.Event()
        """Set when `n_going` pieces of an answer arrived, or it has ended."""

    @property
    def is_open(self) -> bool:
        """False once either side has closed it."""
        return not self._transport.is_closing()

    async def ask(self, method: str, path: str, body: bytes = b"", *, n_going: int = N_GOING) -> Exchange:
        """Send a request and wait for the end of its answer, or of the connection. Never raises for what comes back."""
        self.is_going.clear()
        self._n_going = n_going
        self._done = asyncio.get_running_loop().create_future()
        self.exchange = Exchange(sent_s=time.perf_counter())
        if self._transport.is_closing():
            self.exchange.broken = "the connection was closed before"
            return self.exchange
        self._transport.write(self._head(method, path, len(body)) + body)
        return await self._ended()

    def pause(self) -> None:
        """Take nothing from the socket until `resume`; the kernel's buffers fill."""
        self._transport.pause_reading()

    def resume(self) -> None:
        self._transport.resume_reading()

    def close(self) -> None:
        """Idempotent; a stream that has not ended is given up."""
        self._transport.abort()

    async def _ended(self) -> Exchange:
        while not self._done.done():
            n_pieces = len(self.exchange.pieces)
            await asyncio.wait([self._done], timeout=self._silence_s)
            if not self._done.done() and len(self.exchange.pieces) == n_pieces:
                self.exchange.broken = f"nothing for {self._silence_s:g} s"
                break
        return self.exchange

    def _head(self, method: str, path: str, n_bytes: int) -> bytes:
        lines = [f"{method} {path} HTTP/1.1", f"Host: {self._address.host}:{self._address.port}"]
        lines += [f"Authorization: Bearer {self._address.token}"] if self._address.token else []
        lines += ["Content-Type: application/json", f"Content-Length: {n_bytes}"] if n_bytes else []
        return "\r\n".join([*lines, "", ""]).encode()

    def _end(self, broken: str) -> None:
        self.is_going.set()
        if not self._done.done():
            self.exchange.broken = broken
            self._done.set_result(None)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self.heard_s = time.perf_counter()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._end(f"no HTTP: {error}")
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(f"the connection was lost: {exc}" if exc else "the connection was closed")

    def on_headers_complete(self) -> None:
        self.exchange.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        self.exchange.pieces.append((self.heard_s, body))
        if len(self.exchange.pieces) == self._n_going:
            self.is_going.set()

    def on_message_complete(self) -> None:
        self._end("")


async def connect(address: Address, silence_s: float = SILENCE_S) -> Connection:
    """An open connection; an answer that says nothing for `silence_s` is given up. Raises: NotReached."""
    loop = asyncio.get_running_loop()
    try:
        _, connection = await loop.create_connection(lambda: Connection(address, silence_s), address.host, address.port)
    except OSError as error:
        raise NotReached(f"no server answers at {address}: {error.strerror or error}") from None
    return connection


async def ask_once(address: Address, method: str, path: str, body: bytes = b"") -> Exchange:
    """An exchange on a connection of its own. Raises: NotReached."""
    connection = await connect(address)
    try:
        return await connection.ask(method, path, body)
    finally:
        connection.close()
