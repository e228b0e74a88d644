"""One HTTP connection with what uvicorn lacks: limits on waits for the client, half-close, and a close in stages while
the client is sending.

Each callback notes its event, which moves a request by the table `MOVES`, and ends in `_review`, which takes the wait
for the client from the state of the request that is being answered, or that is coming.

    UNUSED ──bytes──▶ OPENED ──begin──▶ HEADERS ──end──▶ BODY ──end──▶ SERVED ──answered──▶ UNUSED
                                                         │  ▲ for memory
                                                         │  └──▶ HELD_BACK ──end──▶ SERVED
                                                         └──answered──▶ REFUSED ──end──▶ UNUSED
"""

import asyncio
import fcntl
import re
import socket
import struct
import sys
import termios
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

from httptools import HttpParserUpgrade, HttpRequestParser
from uvicorn._types import ASGI3Application, ASGIReceiveCallable, ASGISendCallable, ASGISendEvent
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from worker.apis.core.received import correlation_id
from worker.errors import WorkerBusy
from worker.server.web.connection_limits import ConnectionLimits, ConnectionState

HEADERS_TIMEOUT_S = 10.0
BODY_TIMEOUT_S = 60.0
"""A whole body may take this long, once the headers are complete and there is memory for it. A longer body than
BODY_PART_BYTES may take this long for each such part."""

BODY_PART_BYTES = 4 * 1024 * 1024

READING_TIMEOUT_S, LOOKS = 30.0, 10
"""docs/protocol.md#life-of-a-job: a send without progress for this long ends the connection, and with it the job. The
farewell has the same limit: a closed transport would wait forever for the client to read the rest of an answer. So many
checks are made within that time."""

MAX_OVERHEAD_BYTES = 64 * 1024
"""The most bytes outside the body: request line, headers, blank lines, chunk framing, trailers.

The parser copies a growing header with every read: a header of tens of megabytes would block the loop for seconds.
"""

_FRAMING_PER_BODY_BYTE = 8
"""A chunk with one byte of body takes six bytes."""

_FIRST_LOOK_S, _LAST_LOOK_S = 0.02, 1.0
"""The interval between checks of a half-closed connection grows, because a reset comes after one round trip."""

_WITHOUT_CHUNKS = ("0.9", "1.0")
"""The versions of HTTP whose clients cannot read a chunked body."""

_ABSOLUTE_TARGET = re.compile(rb"[a-z][a-z0-9+.-]*://([^/?#]*)", re.IGNORECASE)
_EXTENSION = "llorch.connection"

_Wait = Enum("_Wait", ["FIRST_BYTE", "HEADERS", "BODY", "READING", "FAREWELL"])
"""The client's next move, for which it has a limited time. The time starts again when this changes."""


class RequestState(Enum):
    """The state of a request on its connection; what the connection is in it, and the wait for the client. Without a
    wait it is the worker's turn, or uvicorn limits the silence."""

    UNUSED = (ConnectionState.SILENT, None)
    """Nothing of it has come since the last answer. uvicorn has a timer for that."""
    OPENED = (ConnectionState.SILENT, _Wait.FIRST_BYTE)
    """No more than blank lines have come; uvicorn has taken its timer back, or the connection is new."""
    HEADERS = (ConnectionState.SILENT, _Wait.HEADERS)
    BODY = (ConnectionState.SENDING, _Wait.BODY)
    HELD_BACK = (ConnectionState.SENDING, None)
    """The worker does not read the body now, because there is no memory for it."""
    SERVED = (ConnectionState.SERVED, None)
    """It has arrived, and its answer is not complete."""
    REFUSED = (ConnectionState.SILENT, _Wait.BODY)
    """Its answer is complete, and its body is not."""

    def __init__(self, of_connection: ConnectionState, wait: _Wait | None) -> None:
        self.of_connection = of_connection
        self.wait = wait


Event = Enum("Event", ["BYTES", "BEGIN", "END_OF_HEADERS", "HELD", "RELEASED", "END_OF_BODY", "ANSWERED"])

MOVES: dict[RequestState, dict[Event, RequestState]] = {
    RequestState.UNUSED: {Event.BYTES: RequestState.OPENED, Event.BEGIN: RequestState.HEADERS},
    RequestState.OPENED: {Event.BEGIN: RequestState.HEADERS},
    RequestState.HEADERS: {Event.END_OF_HEADERS: RequestState.BODY},
    RequestState.BODY: {
        Event.HELD: RequestState.HELD_BACK,
        Event.END_OF_BODY: RequestState.SERVED,
        Event.ANSWERED: RequestState.REFUSED,
    },
    RequestState.HELD_BACK: {Event.RELEASED: RequestState.BODY, Event.END_OF_BODY: RequestState.SERVED},
    RequestState.SERVED: {Event.ANSWERED: RequestState.UNUSED},
    RequestState.REFUSED: {Event.END_OF_BODY: RequestState.UNUSED},
}
"""An event that a state does not have here leaves it as it is."""

_ARRIVING = (RequestState.BODY, RequestState.HELD_BACK)
_OWED = (*_ARRIVING, RequestState.SERVED)
"""The states in which a request has no complete answer."""


class RequestParser(HttpRequestParser):
    """httptools' parser, which ignores every offer to switch to another protocol, as RFC 9110 7.8 allows.

    Clients make such offers in ordinary requests: the JDK's client sends `Upgrade: h2c` with each. httptools treats
    what follows the head of such a request as the other protocol's. So this parser parses the head again without its
    Upgrade lines: the listener gets the beginning and the headers twice, and their end once.
    """

    def __init__(self, listener: HttpToolsProtocol) -> None:
        self._listener = listener
        self._begin()

    def _begin(self) -> None:
        super().__init__(self)
        # uvicorn sets it too: a request pipelined after one that ends the connection is not an error.
        self.set_dangerous_leniencies(lenient_data_after_close=True)

    def __getattr__(self, name: str) -> Any:
        """The callbacks that this class does not have are the listener's."""
        return getattr(self._listener, name)

    @property
    def _is_offer(self) -> bool:
        """CONNECT is itself an offer: the request has no other content."""
        return self.should_upgrade() and self.get_method() != b"CONNECT"

    def feed_data(self, data: Any) -> None:
        """Raises: HttpParserError."""
        rest = memoryview(data)
        while rest:
            try:
                super().feed_data(rest)
                return
            except HttpParserUpgrade as offer:
                if not self._is_offer:
                    return
                rest = rest[offer.args[0] :]
                line = b"%b %b HTTP/%b" % (self.get_method(), self._listener.url, self.get_http_version().encode())
                headers = [b"%b: %b" % header for header in self._listener.headers if header[0].lower() != b"upgrade"]
                self._begin()  # the parser may be in the state of a closed connection
                super().feed_data(b"\r\n".join([line, *headers, b"", b""]))

    def on_header(self, name: bytes, value: bytes) -> None:
        # Trailing spaces are not part of the value (RFC 9110, 5.5); the parser has removed leading ones.
        self._listener.on_header(name, value.rstrip(b" \t"))

    def on_headers_complete(self) -> None:
        if not self._is_offer:
            self._listener.on_headers_complete()

    def on_message_complete(self) -> None:
        if not self._is_offer:
            self._listener.on_message_complete()


class BoundedConnection(HttpToolsProtocol):
    """uvicorn's protocol with a limit on every wait for the client."""

    def __init__(
        self,
        on_malformed: Callable[[str, int], None],
        max_dropped_bytes: int,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        """`on_malformed` is called for each answer to bytes that are not HTTP, with its correlation id and body
        size. `max_dropped_bytes` limits a body, or its rest, that arrives after the answer."""
        super().__init__(config, server_state, app_state, _loop)
        self.parser = RequestParser(self)
        self.app = partial(_answer, self.app)
        self._on_malformed = on_malformed
        self._max_dropped_bytes = max_dropped_bytes
        self._n_body_bytes = 0
        """The bytes of the current body that have arrived."""
        self._n_overhead_bytes = 0
        self._is_parting = False
        """True if the worker has shut down its sending side, and drops what arrives."""
        self._has_client_finished = False
        """True if the client has shut down its sending side with a FIN."""
        assert isinstance(server_state, ConnectionLimits)
        self.limits = server_state
        self._requests = deque([RequestState.OPENED])
        """The requests that are not answered yet, the last of which may still be coming."""
        self._wait: _Wait | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._look: asyncio.TimerHandle | None = None

    @property
    def address(self) -> str | None:
        return self.client[0] if self.client else None

    def drop(self) -> None:
        """Close without waiting for the client; the unread part of an answer is lost."""
        self.transport.abort()

    # ── asyncio.Protocol ─────────────────────────────────────────────────────────────────────────

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn has it
        super().connection_made(transport)
        self.limits.join(self)
        self._review()

    def connection_lost(self, exc: Exception | None) -> None:
        self.limits.leave(self)
        for timer in filter(None, (self._timer, self._look)):
            timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._is_parting:
            self._n_body_bytes += len(data)
        else:
            self._n_overhead_bytes += len(data)
            self._note(Event.BYTES)
            super().data_received(data)
        is_too_long_a_head = self._n_overhead_bytes > MAX_OVERHEAD_BYTES and not self._is_parting
        if is_too_long_a_head or (self._state not in _OWED and self._n_body_bytes > self._max_dropped_bytes):
            self.transport.abort()
        elif self._state in _ARRIVING and self.cycle.body:
            # Reading resumes when the application has taken this data: it may be waiting for memory (bodies.py).
            self.flow.pause_reading()
        self._review()

    def eof_received(self) -> bool:  # type: ignore[override] # uvicorn's never asks for it to stay open
        """The client sends no more. Returns True to keep the transport open while a whole request has no answer yet.

        A FIN says only that. The client may still read, as `nc -N` does, or it may be gone, and then its job would stay
        in the queue. Only a write shows the difference: a client that is gone answers it with a reset.
        """
        self._has_client_finished = True
        if self._state is not RequestState.SERVED:
            return False
        # Bytes that have no effect in HTTP: an interim answer before the headers, later a chunk size's first digit. If
        # requests are pipelined, the progress of the answer before them is unknown.
        if self.cycle.response_started and not self.pipeline:
            if self.cycle.chunked_encoding:
                self.transport.write(b"0")
        elif self.cycle.scope["http_version"] == "1.1" and not self.pipeline:
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        self._look = self.loop.call_later(_FIRST_LOOK_S, self._look_for_reset, 2 * _FIRST_LOOK_S)
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
        if self._requests[-1] is RequestState.SERVED:
            self._requests.append(RequestState.OPENED)
        self._note(Event.BEGIN)

    def on_headers_complete(self) -> None:
        self._note(Event.END_OF_HEADERS)
        if self.parser.get_http_version() in _WITHOUT_CHUNKS:
            self.expect_100_continue = False  # RFC 9110 10.1.1: it knows no interim answers either
        self._n_body_bytes = 0
        self._unset_keepalive_if_required()
        if absolute := _ABSOLUTE_TARGET.match(self.url):
            # RFC 9112 3.2.2: the target's host counts, and the header does not.
            self.headers[:] = [(b"host", absolute[1]), *(line for line in self.headers if line[0] != b"host")]
        super().on_headers_complete()
        # What a cycle calls of its transport.
        parts = SimpleNamespace(write=self.transport.write, is_closing=self.transport.is_closing, close=self._end)
        self.cycle.transport = cast(asyncio.Transport, parts)
        self.scope["extensions"] = {_EXTENSION: {"connection": self, "cycle": self.cycle}}

    def on_body(self, body: bytes) -> None:
        self._n_body_bytes += len(body)
        self._n_overhead_bytes = max(0, self._n_overhead_bytes - _FRAMING_PER_BODY_BYTE * len(body))
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._n_overhead_bytes = 0
        super().on_message_complete()
        self._note(Event.END_OF_BODY)
        if self._state is RequestState.UNUSED:  # the answer came before, and uvicorn has taken its timer back
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if len(self._requests) > 1:
            self._requests.popleft()
        else:
            self._note(Event.ANSWERED)
        if self._is_parting:
            self._unset_keepalive_if_required()
        if self._has_client_finished and self._state is not RequestState.SERVED:
            self.transport.close()
        self._review()

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._review()

    def send_400_response(self, msg: str) -> None:
        """Answer like uvicorn, with the id that every response has, but never in the middle of a stream."""
        if self._state not in _OWED or not (self.cycle.response_started or self.pipeline):
            correlation = correlation_id(None)
            head = (
                "HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain; charset=utf-8\r\nconnection: close\r\n"
                f"x-correlation-id: {correlation}\r\ncontent-length: {len(msg)}\r\n\r\n"
            )
            self.transport.write((head + msg).encode("ascii"))
            self._on_malformed(correlation, len(msg))
        if self._state in _OWED:
            self.transport.close()
        else:
            self._part()

    # ── the end ──────────────────────────────────────────────────────────────────────────────────

    def _end(self) -> None:
        """A cycle closes its connection, because its answer is complete, or will never be."""
        if self._state in _ARRIVING and self.cycle.response_complete:
            self._part()
        else:
            self.transport.close()

    def _part(self) -> None:
        """Close in stages (RFC 9112 9.6): send no more, and drop what the client still sends until it closes.

        Otherwise the kernel would answer unread bytes with a reset, and a client that sends its whole body before it
        reads would lose the answer.
        """
        if not self.transport.is_closing():
            self.transport.write_eof()
            self._is_parting = True
            self.flow.resume_reading()

    # ── the current wait ────────────────────────────────────────────────────────────────────────

    @property
    def _state(self) -> RequestState:
        """The state of the request that is being answered, or that is coming."""
        return self._requests[0]

    def _note(self, event: Event, at: int = -1) -> None:
        """Move a request, by default the last one, which is the one that is being read."""
        state = self._requests[at]
        self._requests[at] = MOVES[state].get(event, state)

    def _review(self) -> None:
        """Set the state of the connection, and limit the wait for the client's next move, if it is the client's turn. A
        request behind the one that is being answered has no limit."""
        is_blocked = self.flow.write_paused and self._state not in _ARRIVING
        self.limits.set(self, ConnectionState.NOT_READING if is_blocked else self._state.of_connection)
        wait = _Wait.READING if is_blocked else self._state.wait
        if self.transport.is_closing():
            wait = _Wait.FAREWELL
        if wait is self._wait:
            return
        self._wait = wait
        if self._timer is not None:
            self._timer.cancel()
        if wait in (_Wait.READING, _Wait.FAREWELL):
            self._look_at_taking(sys.maxsize, n_vain=0)
        elif wait is _Wait.BODY:
            self._look_at_body(-BODY_PART_BYTES)
        elif wait is not None:
            self._timer = self.loop.call_later(HEADERS_TIMEOUT_S, self.transport.abort)

    def _look_at_taking(self, n_before: int, n_vain: int) -> None:
        """Drop the connection unless bytes are sent, however slowly. `n_vain`: the checks since the last progress."""
        # In our buffer, or in the kernel's and unacknowledged by the client's machine.
        n_untaken = self.transport.get_write_buffer_size()
        n_untaken += _send_queue_bytes(self.transport.get_extra_info("socket"))
        n_vain = 0 if n_untaken < n_before else n_vain + 1
        if n_vain < LOOKS:
            self._timer = self.loop.call_later(READING_TIMEOUT_S / LOOKS, self._look_at_taking, n_untaken, n_vain)
        else:
            self.transport.abort()

    def _look_at_body(self, n_before: int) -> None:
        """Drop the connection unless another part of the body has arrived."""
        if self._n_body_bytes - n_before < BODY_PART_BYTES:
            self.transport.abort()
        else:
            self._timer = self.loop.call_later(BODY_TIMEOUT_S, self._look_at_body, self._n_body_bytes)

    @contextmanager
    def body_held_back(self) -> Iterator[None]:
        """Suspend the limit on the body while the worker does not read it."""
        self._note(Event.HELD, at=0)
        self._review()
        try:
            yield
        finally:
            self._note(Event.RELEASED, at=0)
            self._review()

    def _look_for_reset(self, next_s: float) -> None:
        """End after a reset, or look again later: the transport no longer reads and does not notice a reset itself."""
        if _is_reset(self.transport.get_extra_info("socket")):
            self.transport.abort()
        else:
            self._look = self.loop.call_later(next_s, self._look_for_reset, min(2 * next_s, _LAST_LOOK_S))


async def _answer(app: ASGI3Application, scope: Any, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
    """Run the application. An old client gets an answer of unknown length without chunks, ended by closing, which
    uvicorn does not support."""
    cycle: RequestResponseCycle = scope["extensions"][_EXTENSION]["cycle"]
    is_until_close = False

    async def send_unchunked(message: ASGISendEvent) -> None:
        nonlocal is_until_close
        if message["type"] == "http.response.start":
            is_until_close = all(name.lower() != b"content-length" for name, _ in message.get("headers", ()))
            if is_until_close:
                cycle.chunked_encoding = False
        elif message["type"] == "http.response.body" and is_until_close:
            cycle.expected_content_length = len(message.get("body", b""))
        await send(message)

    await app(scope, receive, send_unchunked if scope["http_version"] in _WITHOUT_CHUNKS else send)


def check_address(scope: Mapping[str, Any]) -> None:
    """Raises: WorkerBusy if the address has requests on more connections than --max-connections-per-address."""
    connection = connection_of(scope)
    if connection.limits.is_over_limit(connection):
        raise WorkerBusy("too many requests come from this address; try again later", retry_after_s=1)


def _send_queue_bytes(sock: socket.socket | None) -> int:
    """The unsent bytes of the socket. Source: Linux, tcp(7), SIOCOUTQ (same number as TIOCOUTQ); macOS, SO_NWRITE."""
    if sock is None:  # closed
        return 0
    try:
        if sys.platform == "darwin":
            return sock.getsockopt(socket.SOL_SOCKET, 0x1024)
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
