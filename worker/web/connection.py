"""One HTTP connection: what uvicorn leaves out. Limits on connections and on the time a request may take to arrive."""

import asyncio
import fcntl
import socket
import struct
import sys
import termios
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from worker.protocol.headers import correlation_id

MAX_CONNECTIONS = 1024
RESERVED_CONNECTIONS = 16
"""Kept for health, cancel and metrics: with fewer free, /execute is answered WORKER_BUSY."""

HEADERS_TIMEOUT_S = 10.0
BODY_TIMEOUT_S = 60.0
"""For a whole body of at most 2 MiB, once the headers are complete."""

FAREWELL_TIMEOUT_S = 30.0
"""In which a client must take some of what is left of the last answer: a closed transport would wait for ever."""

MAX_OVERHEAD_BYTES = 64 * 1024
"""What may arrive that is not body: request line, headers, blank lines, chunk framing, trailers.

The parser copies a growing header with every read: tens of megabytes of one would stop the loop for seconds.
"""

_FRAMING_PER_BODY_BYTE = 8
"""A chunk of one byte comes in six."""

_SO_NWRITE = 0x1024

_EXTENSION = "llorch.connection"


class BoundedConnection(HttpToolsProtocol):
    """uvicorn's protocol with a bound on every wait for the client."""

    _arrival_timer: asyncio.TimerHandle | None = None
    _n_overhead_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn has it
        super().connection_made(transport)
        if len(self.connections) > MAX_CONNECTIONS:
            transport.abort()
            return
        self._allow(HEADERS_TIMEOUT_S)

    def connection_lost(self, exc: Exception | None) -> None:
        self._arrived()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._n_overhead_bytes += len(data)
        super().data_received(data)
        if self._n_overhead_bytes > MAX_OVERHEAD_BYTES:
            self.transport.abort()
        elif self._n_overhead_bytes and self._is_idle and self._arrival_timer is None:
            # Blank lines between requests: uvicorn has just taken back its own timer for idle connections.
            self._allow(HEADERS_TIMEOUT_S)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["extensions"] = {_EXTENSION: {"connection": self}}
        self._allow(HEADERS_TIMEOUT_S)

    def on_headers_complete(self) -> None:
        self._allow(BODY_TIMEOUT_S)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._n_overhead_bytes = max(0, self._n_overhead_bytes - _FRAMING_PER_BODY_BYTE * len(body))
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._n_overhead_bytes = 0
        self._arrived()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing():
            self._take_leave()

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._take_leave()

    def send_400_response(self, msg: str) -> None:
        """uvicorn's, with the id that every response carries, and never into the middle of a stream."""
        if self._is_idle or not (self.cycle.response_started or self.pipeline):
            head = (
                "HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain; charset=utf-8\r\nconnection: close\r\n"
                f"x-correlation-id: {correlation_id(None)}\r\ncontent-length: {len(msg)}\r\n\r\n"
            )
            self.transport.write((head + msg).encode("ascii"))
        self.transport.close()
        self._take_leave()

    @property
    def untaken_bytes(self) -> int:
        """Of what was sent: what waits in our buffer, or in the kernel's for the client's machine to acknowledge it."""
        return self.transport.get_write_buffer_size() + _send_queue_bytes(self.transport.get_extra_info("socket"))

    @property
    def _is_idle(self) -> bool:
        """No response is owed."""
        return self.cycle is None or self.cycle.response_complete

    def _allow(self, seconds: float) -> None:
        self._arrived()
        self._arrival_timer = self.loop.call_later(seconds, self.transport.abort)

    def _take_leave(self) -> None:
        """Drop the connection unless bytes of the last answer go on leaving, however slowly."""
        self._arrived()
        self._arrival_timer = self.loop.call_later(FAREWELL_TIMEOUT_S, self._leave, self.untaken_bytes)

    def _leave(self, n_untaken: int) -> None:
        if self.untaken_bytes < n_untaken:
            self._take_leave()
        else:
            self.transport.abort()

    def _arrived(self) -> None:
        if self._arrival_timer is not None:
            self._arrival_timer.cancel()
            self._arrival_timer = None


def is_crowded(scope: Mapping[str, Any]) -> bool:
    """Whether only the reserved connections are left."""
    return len(_connection(scope).connections) > MAX_CONNECTIONS - RESERVED_CONNECTIONS


async def is_taken(scope: Mapping[str, Any], *, within_s: float) -> bool:
    """Whether the client takes, in that time, so much of what was sent that a further send does not wait."""
    flow = _connection(scope).flow
    if flow.write_paused:
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await flow.drain()
    return not flow.write_paused


def untaken_bytes(scope: Mapping[str, Any]) -> int:
    """What was sent on the connection and has not arrived at the client's machine."""
    return _connection(scope).untaken_bytes


def abort_connection(scope: Mapping[str, Any]) -> None:
    """Drop a connection whose client does not read; closing it would wait for the client again."""
    _connection(scope).transport.abort()


def _send_queue_bytes(sock: socket.socket | None) -> int:
    """Source: Linux, tcp(7), SIOCOUTQ, whose number is TIOCOUTQ's; macOS, sys/socket.h, SO_NWRITE."""
    if sock is None:  # closed
        return 0
    try:
        if sys.platform == "darwin":
            return sock.getsockopt(socket.SOL_SOCKET, _SO_NWRITE)
        (n_bytes,) = struct.unpack("i", fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, bytes(4)))
        return int(n_bytes)
    except (OSError, ValueError):  # closed meanwhile
        return 0


def _connection(scope: Mapping[str, Any]) -> BoundedConnection:
    connection: BoundedConnection = scope["extensions"][_EXTENSION]["connection"]
    return connection
