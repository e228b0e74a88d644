"""The last bytes on a closed connection: a client has time for them as long as it takes some, and no longer."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, cast

import uvicorn

from tests.server.web.wire import head
from worker.server.web.connection import BODY_PART_BYTES, BODY_TIMEOUT_S, LOOKS, READING_TIMEOUT_S, BoundedConnection
from worker.server.web.connection_limits import ConnectionLimits


class Timer:
    def __init__(self, clock: "Clock", callback: Callable[[], None]) -> None:
        self._clock = clock
        self._callback = callback

    def go_off(self) -> None:
        self.cancel()
        self._callback()

    def cancel(self) -> None:
        self._clock.timers.remove(self)


class Clock:
    """The part of an event loop that a connection needs; its timers fire when the test says so."""

    def __init__(self) -> None:
        self.timers: list[Timer] = []

    def call_later(self, delay_s: float, callback: Callable[..., None], *arguments: object) -> Timer:
        self.timers.append(Timer(self, lambda: callback(*arguments)))
        return self.timers[-1]

    def go_off(self) -> None:
        (timer,) = self.timers
        timer.go_off()

    def create_task(self, coroutine: Coroutine[Any, Any, None]) -> "Task":
        coroutine.close()
        return Task()


class Task:
    def add_done_callback(self, callback: Callable[..., None]) -> None: ...


class Wire(asyncio.Transport):
    """Its client takes bytes when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.n_queued = 60_000
        self.is_aborted = False
        self._is_closing = False

    def get_write_buffer_size(self) -> int:
        return self.n_queued

    def is_closing(self) -> bool:
        return self._is_closing

    def pause_reading(self) -> None: ...

    def close(self) -> None:
        self._is_closing = True

    def abort(self) -> None:
        self.is_aborted = True


async def _app(scope: Any, receive: Any, send: Any) -> None: ...


def connected() -> tuple[BoundedConnection, Clock, Wire]:
    clock, wire, config = Clock(), Wire(), uvicorn.Config(_app)
    loop = cast(asyncio.AbstractEventLoop, clock)
    connection = BoundedConnection(lambda *_: None, 0, config, ConnectionLimits(max_connections=20), {}, _loop=loop)
    connection.connection_made(wire)
    return connection, clock, wire


def test_a_closed_connection_is_dropped_after_a_time_without_progress_and_not_before() -> None:
    connection, clock, wire = connected()
    connection.timeout_keep_alive_handler()
    for _ in range(5):
        wire.n_queued -= 1
        clock.go_off()
        assert not wire.is_aborted
    for _ in range(LOOKS):
        assert not wire.is_aborted
        clock.go_off()
    assert wire.is_aborted
    assert READING_TIMEOUT_S == 30


def test_a_body_may_take_longer_than_its_time_if_each_part_of_it_does_not() -> None:
    connection, clock, wire = connected()
    connection.data_received(head("POST", "/execute", content_length=100 * BODY_PART_BYTES))
    for _ in range(5):
        connection.data_received(b"x" * BODY_PART_BYTES)
        clock.go_off()
        assert not wire.is_aborted
    connection.data_received(b"x" * (BODY_PART_BYTES - 1))
    clock.go_off()
    assert wire.is_aborted
    assert BODY_TIMEOUT_S == 60
