"""One HTTP connection with what uvicorn leaves out: bounds on waits for its client, its standing, half-close.

Each callback ends in `_review`, which derives from the state of the exchange what the connection waits for.
"""

import asyncio
import fcntl
import socket
import struct
import sys
import termios
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import Enum, auto
from functools import partial
from typing import Any, assert_never

from uvicorn._types import ASGI3Application, ASGIReceiveCallable, ASGISendCallable, ASGISendEvent
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from worker.protocol.headers import correlation_id
from worker.web.crowd import Crowd, Standing
from worker.web.request_parser import RequestParser

HEADERS_TIMEOUT_S = 10.0
BODY_TIMEOUT_S = 60.0
"""How long a whole body may take, once the headers are complete and there is room for it."""

READING_TIMEOUT_S = 30.0
"""docs/protocol.md 6: a send without progress for this long ends the connection, and with it the job. So does the
farewell: a closed transport would wait for ever for the client to take what is left of the last answer."""

LOOKS = 10
"""How often within that time the connection looks whether bytes have left."""

MAX_OVERHEAD_BYTES = 64 * 1024
"""How much may arrive that is not body: request line, headers, blank lines, chunk framing, trailers.

The parser copies a growing header with every read: tens of megabytes of one would stop the loop for seconds.
"""

_FRAMING_PER_BODY_BYTE = 8
"""A chunk of one byte comes in six."""

_FIRST_LOOK_S, _LAST_LOOK_S = 0.02, 1.0
"""How often a half-closed connection is looked at: ever more seldom, because a reset comes after one round trip."""

_INTERIM_ANSWER = b"HTTP/1.1 100 Continue\r\n\r\n"
_LEADING_ZERO = b"0"

_WITHOUT_CHUNKS = ("0.9", "1.0")
"""The versions of HTTP whose clients cannot read a chunked body."""

_SO_NWRITE = 0x1024

_EXTENSION = "llorch.connection"


class _Wait(Enum):
    """What the client has a limited time for. The time begins again whenever this changes."""

    FIRST_BYTE = auto()
    HEADERS = auto()
    BODY = auto()
    READING = auto()
    FAREWELL = auto()


class BoundedConnection(HttpToolsProtocol):
    """uvicorn's protocol with a bound on every wait for the client."""

    parser: RequestParser  # type: ignore[assignment] # it has what uvicorn uses of httptools' own

    def __init__(
        self,
        on_malformed: Callable[[str, int], None],
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        """`on_malformed` is told of each answer to what is not HTTP: its correlation id and the bytes of its body."""
        super().__init__(config, server_state, app_state, _loop)
        self.parser = RequestParser(self)
        self.app = partial(_answer, self.app)
        self._on_malformed = on_malformed
        assert isinstance(server_state, Crowd)
        self.crowd = server_state
        self._wait: _Wait | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._look: asyncio.TimerHandle | None = None
        self._n_overhead_bytes = 0
        self._is_in_headers = False
        self._is_body_held_back = False
        self._has_client_finished = False
        """Whether it has shut down its sending side, with a FIN."""

    @property
    def address(self) -> str | None:
        return self.client[0] if self.client else None

    def drop(self) -> None:
        """Close without waiting for the client; what it has not yet taken of an answer is lost."""
        self.transport.abort()

    # ── asyncio.Protocol ─────────────────────────────────────────────────────────────────────────

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn has it
        super().connection_made(transport)
        self.crowd.join(self)
        self._review()

    def connection_lost(self, exc: Exception | None) -> None:
        self.crowd.leave(self)
        self._cancel_timer()
        if self._look is not None:
            self._look.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._n_overhead_bytes += len(data)
        super().data_received(data)
        if self._n_overhead_bytes > MAX_OVERHEAD_BYTES:
            self.transport.abort()
        elif self._is_body_awaited and self.cycle.body:
            # More comes when the application has taken this: it may be waiting for room (bodies.py).
            self.flow.pause_reading()
        self._review()

    def eof_received(self) -> bool:  # type: ignore[override] # uvicorn's never asks for it to stay open
        """The client sends no more. Returns whether the transport stays open, as it does while a whole request is owed
        its answer.

        A FIN says no more than that. It may come from a client that reads on, as `nc -N` does, or from one that has
        left, which no answer will reach. Only a write tells them apart: who has left answers it with a reset.
        """
        self._has_client_finished = True
        if self._is_idle or self._is_body_awaited:
            return False
        self._provoke_reset()
        self._look_for_reset(_FIRST_LOOK_S)
        return True

    def pause_writing(self) -> None:
        super().pause_writing()
        self._review()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._review()

    # ── the parser's and uvicorn's callbacks ─────────────────────────────────────────────────────

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._is_in_headers = True

    def on_headers_complete(self) -> None:
        self._is_in_headers = False
        if self.parser.get_http_version() in _WITHOUT_CHUNKS:
            self.expect_100_continue = False  # RFC 9110 10.1.1: it knows no interim answers either
        super().on_headers_complete()
        self.scope["extensions"] = {_EXTENSION: {"connection": self, "cycle": self.cycle}}

    def on_body(self, body: bytes) -> None:
        self._n_overhead_bytes = max(0, self._n_overhead_bytes - _FRAMING_PER_BODY_BYTE * len(body))
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._n_overhead_bytes = 0
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._has_client_finished and (self._is_idle or self._is_body_awaited):
            self.transport.close()
        self._review()

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._review()

    def send_400_response(self, msg: str) -> None:
        """Answer as uvicorn does, with the id that every response carries, but never in the middle of a stream."""
        if self._is_idle or not (self.cycle.response_started or self.pipeline):
            correlation = correlation_id(None)
            head = (
                "HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain; charset=utf-8\r\nconnection: close\r\n"
                f"x-correlation-id: {correlation}\r\ncontent-length: {len(msg)}\r\n\r\n"
            )
            self.transport.write((head + msg).encode("ascii"))
            self._on_malformed(correlation, len(msg))
        self.transport.close()

    # ── what it waits for ────────────────────────────────────────────────────────────────────────

    @property
    def _is_idle(self) -> bool:
        """Whether no response is owed."""
        return self.cycle is None or self.cycle.response_complete

    @property
    def _is_body_awaited(self) -> bool:
        """Whether the request whose turn it is has not arrived in full."""
        return not self._is_idle and not self.pipeline and self.cycle.more_body

    def _review(self) -> None:
        self.crowd.stand(self, self._standing())
        wait = self._awaited()
        if wait is not self._wait:
            self._wait = wait
            self._restart_timer()

    def _standing(self) -> Standing:
        if self._is_idle:
            return Standing.SILENT
        if self._is_body_awaited:
            return Standing.SENDING
        return Standing.NOT_READING if self.flow.write_paused else Standing.SERVED

    def _awaited(self) -> _Wait | None:
        """What the client is waited for; None while the worker owes the next move. A request that is pipelined behind a
        running answer may take its time."""
        if self.transport.is_closing():
            return _Wait.FAREWELL
        if self._is_body_awaited:
            return None if self._is_body_held_back else _Wait.BODY
        if not self._is_idle:
            return _Wait.READING if self.flow.write_paused else None
        if self._is_in_headers:
            return _Wait.HEADERS
        if self.cycle is not None and self.cycle.more_body:
            return _Wait.BODY  # its answer, a refusal, did not wait for it
        # uvicorn bounds the silence between two requests, but takes its timer back at a blank line.
        return None if self.timeout_keep_alive_task is not None else _Wait.FIRST_BYTE

    def _restart_timer(self) -> None:
        self._cancel_timer()
        match self._wait:
            case None:
                pass
            case _Wait.READING | _Wait.FAREWELL:
                self._look_again(self.untaken_bytes, n_vain=0)
            case _Wait.BODY:
                self._timer = self.loop.call_later(BODY_TIMEOUT_S, self.transport.abort)
            case _Wait.FIRST_BYTE | _Wait.HEADERS:
                self._timer = self.loop.call_later(HEADERS_TIMEOUT_S, self.transport.abort)
            case _:
                assert_never(self._wait)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    @property
    def untaken_bytes(self) -> int:
        """How much of what was sent is in our buffer, or in the kernel's until the client's machine acknowledges it."""
        return self.transport.get_write_buffer_size() + _send_queue_bytes(self.transport.get_extra_info("socket"))

    def _look_again(self, n_untaken: int, n_vain: int) -> None:
        self._cancel_timer()
        self._timer = self.loop.call_later(READING_TIMEOUT_S / LOOKS, self._look_at_taking, n_untaken, n_vain)

    def _look_at_taking(self, n_before: int, n_vain: int) -> None:
        """Drop the connection unless bytes go on leaving, however slowly. `n_vain` counts the looks since some left."""
        n_untaken = self.untaken_bytes
        n_vain = 0 if n_untaken < n_before else n_vain + 1
        if n_vain < LOOKS:
            self._look_again(n_untaken, n_vain)
        else:
            self.transport.abort()

    @contextmanager
    def body_held_back(self) -> Iterator[None]:
        """While the client is not asked for its body, it is not late."""
        self._is_body_held_back = True
        self._review()
        try:
            yield
        finally:
            self._is_body_held_back = False
            self._review()

    # ── half-closed ──────────────────────────────────────────────────────────────────────────────

    def _provoke_reset(self) -> None:
        """Send bytes that mean nothing in HTTP: an interim answer before the headers, later a chunk size's first digit.

        Without them a client that left while its job waits would keep its place until the job's first event. Behind
        pipelined requests nobody knows how far the answer before them is: there the next event has to tell.
        """
        if self.pipeline:
            return
        if self.cycle.response_started:
            if self.cycle.chunked_encoding:
                self.transport.write(_LEADING_ZERO)
        elif self.cycle.scope["http_version"] == "1.1":
            self.transport.write(_INTERIM_ANSWER)

    def _look_for_reset(self, after_s: float) -> None:
        """The transport reads no more and so does not notice a reset by itself."""
        self._look = self.loop.call_later(after_s, self._end_if_reset, min(2 * after_s, _LAST_LOOK_S))

    def _end_if_reset(self, next_s: float) -> None:
        if _is_reset(self.transport.get_extra_info("socket")):
            self.transport.abort()
        else:
            self._look_for_reset(next_s)


async def _answer(app: ASGI3Application, scope: Any, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
    """Run the application. An old client gets an answer of unknown length without chunks, ended by closing."""
    if scope["http_version"] in _WITHOUT_CHUNKS:
        send = _Unchunked(scope["extensions"][_EXTENSION]["cycle"]).send
    await app(scope, receive, send)


class _Unchunked:
    """uvicorn's sending, which knows bodies in chunks and those of an announced length."""

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle
        self._is_until_close = False

    async def send(self, message: ASGISendEvent) -> None:
        if message["type"] == "http.response.start":
            self._is_until_close = all(name.lower() != b"content-length" for name, _ in message.get("headers", ()))
            if self._is_until_close:
                self._cycle.chunked_encoding = False
        elif message["type"] == "http.response.body" and self._is_until_close:
            self._cycle.expected_content_length = len(message.get("body", b""))
        await self._cycle.send(message)


def is_crowded(scope: Mapping[str, Any]) -> bool:
    """Whether a job on this connection would take what is kept for health, cancel and metrics."""
    return connection_of(scope).crowd.is_full


def has_too_many(scope: Mapping[str, Any]) -> bool:
    """Whether this connection's address has requests on more connections than --max-connections-per-address."""
    connection = connection_of(scope)
    return connection.crowd.is_over_limit(connection)


async def wait_until_taken(scope: Mapping[str, Any]) -> None:
    """Return once the client has taken so much of what was sent that a further send does not wait."""
    await connection_of(scope).flow.drain()


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


def _is_reset(sock: socket.socket | None) -> bool:
    try:
        return sock is None or sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) != 0
    except OSError:  # closed meanwhile
        return True


def connection_of(scope: Mapping[str, Any]) -> BoundedConnection:
    connection: BoundedConnection = scope["extensions"][_EXTENSION]["connection"]
    return connection
