"""One engine process and the socket to it, for as long as that process lives.

It never waits for the engine: frames come in through callbacks and leave through the transport's buffer, which is
bounded because the front bounds the jobs in flight.
"""

import asyncio
import contextlib
import socket
from asyncio.subprocess import Process
from collections.abc import Mapping, Sequence
from typing import Protocol, cast

from worker.config.engine_settings import Configure
from worker.errors import StartupError
from worker.server.front.children import StderrTail, describe, start_engine
from worker.server.front.supervision import failures_to, supervised
from worker.wire.encoding import FrameBuffer, encode_frame
from worker.wire.messages import Inbound, Outbound, outbound_decoder

_CLOSE_TIMEOUT_S = 5.0
"""An engine whose socket is closed exits at once; one that does not is wedged."""


class LinkOwner(Protocol):
    """The receiver of an engine's events. The client and the tests' recorder implement it."""

    def on_message(self, message: Outbound) -> None: ...

    def on_line(self, line: str) -> None:
        """A line of the engine's stderr."""

    def on_exit(self, cause: str, last_words: str) -> None:
        """The process is gone and everything it had sent has been delivered. This is called once, and last."""

    def on_fatal(self, error: StartupError) -> None:
        """The front failed over what the engine sent, and cannot go on."""


class EngineLink(asyncio.Protocol):
    """Use `spawn`; afterwards `send`, `kill` and `close`."""

    def __init__(self, owner: LinkOwner) -> None:
        self._owner = owner
        self._buffer = FrameBuffer()
        self._tail = StderrTail()
        self._transport: asyncio.Transport | None = None
        self._process: Process | None = None
        self._socket_closed = asyncio.Event()
        self._kill_cause: str | None = None
        self._watching: asyncio.Task[None] | None = None

    @classmethod
    async def spawn(
        cls, command: Sequence[str], owner: LinkOwner, environment: Mapping[str, str], inherited_fds: Sequence[int] = ()
    ) -> "EngineLink":
        """Start the engine in its own session, so that a terminal's Ctrl-C reaches the front only. Raises: OSError."""
        link = cls(owner)
        ours, theirs = socket.socketpair()
        with contextlib.ExitStack() as undo:
            undo.callback(ours.close)
            with theirs:
                link._process = await start_engine(command, environment, theirs, inherited_fds)
            ours.setblocking(False)
            await asyncio.get_running_loop().create_connection(lambda: link, sock=ours)
            undo.pop_all()
        link._watching = supervised(link._watch(link._process), owner.on_fatal, "the watch over the engine process")
        return link

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def send(self, message: Inbound | Configure) -> None:
        """Queue a frame. Once the engine is gone this does nothing, because `on_exit` reports that."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(encode_frame(message))

    def kill(self, cause: str) -> None:
        """Send SIGKILL, which also ends a stopped process. `cause` is what on_exit reports."""
        self._kill_cause = self._kill_cause or cause
        assert self._process is not None
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    async def close(self) -> None:
        """Close the socket, wait for the exit, and kill the engine if that does not come. Idempotent."""
        if self._transport is not None:
            self._transport.abort()
        if self._watching is None:
            return
        done, _ = await asyncio.wait([self._watching], timeout=_CLOSE_TIMEOUT_S)
        if not done:
            self.kill("it did not exit when its socket closed")
            await asyncio.wait([self._watching], timeout=_CLOSE_TIMEOUT_S)

    # ── asyncio.Protocol ─────────────────────────────────────────────────────────────────────────

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's do not inherit from asyncio's

    def data_received(self, data: bytes) -> None:
        with failures_to(self._owner.on_fatal, "the engine's socket"):
            self._deliver(data)

    def _deliver(self, data: bytes) -> None:
        """Deliver whole frames, also those before one that cannot be read: they say in whose step this happened."""
        messages: list[Outbound] = []
        unreadable: ValueError | None = None
        try:
            for body in self._buffer.feed(data):
                messages.append(outbound_decoder.decode(body))
        except ValueError as error:  # msgspec's decoding errors are ValueErrors too
            unreadable = error
        for message in messages:
            self._owner.on_message(message)
        if unreadable is not None:
            assert self._transport is not None
            self._transport.abort()  # nothing it sends is believed from here on
            self.kill(f"it sent a frame that cannot be read: {unreadable}")

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        self._socket_closed.set()

    # ── the process ──────────────────────────────────────────────────────────────────────────────

    async def _watch(self, process: Process) -> None:
        """Read stderr until it ends, even if the owner fails over a line, because an engine that cannot write stands
        still. Call the owner once the process is gone and its last frame was delivered."""
        assert process.stderr is not None
        while data := await process.stderr.read(4096):
            with failures_to(self._owner.on_fatal, "the engine's stderr"):
                for line in self._tail.feed(data):
                    self._owner.on_line(line)
        code = await process.wait()
        await self._socket_closed.wait()
        self._owner.on_exit(self._kill_cause or describe(code), self._tail.last_words)
