"""The choice of the connection to close when there are too many (docs/protocol.md#http), and of the time to drop one:
a client has time for the last bytes, or for its body, as long as it takes or sends some. Pure: no socket, no clock.
"""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
import uvicorn
from hypothesis import given
from hypothesis import strategies as st

from tests.server.web.wire import head
from worker.server.web.connection import BODY_PART_BYTES, BODY_TIMEOUT_S, LOOKS, READING_TIMEOUT_S, BoundedConnection
from worker.server.web.connection_limits import (
    MAX_CONNECTIONS,
    RESERVED_CONNECTIONS,
    ConnectionLimits,
    ConnectionState,
    affordable_connections,
)

MAX = RESERVED_CONNECTIONS + 4


@dataclass(eq=False)
class Caller:
    address: str | None = "192.0.2.1"
    is_dropped: bool = field(default=False)

    def drop(self) -> None:
        self.is_dropped = True


def joined(
    limits: ConnectionLimits, state: ConnectionState, n: int = 1, address: str | None = "192.0.2.1"
) -> list[Caller]:
    callers = [Caller(address) for _ in range(n)]
    for caller in callers:
        limits.join(caller)
        limits.set(caller, state)
    return callers


moves = st.lists(st.tuples(st.integers(0, 40), st.sampled_from([*ConnectionState, "join", "leave"])), max_size=200)


@pytest.mark.long
@given(moves)
def test_there_are_never_too_many_and_served_connections_stay(moves: list[tuple[int, ConnectionState | str]]) -> None:
    """Only a newcomer that finds all others served is turned away, whatever comes, moves and goes."""
    limits = ConnectionLimits(MAX)
    callers: list[Caller] = []
    served: set[Caller] = set()
    for number, move in moves:
        if move == "join":
            callers.append(Caller())
            limits.join(callers[-1])
        elif callers:
            caller = callers[number % len(callers)]
            served.discard(caller)
            if isinstance(move, ConnectionState):
                limits.set(caller, move)
                if move is ConnectionState.SERVED and not caller.is_dropped:
                    served.add(caller)
            else:
                limits.leave(caller)
                callers.remove(caller)
        assert limits.n_members == sum(not caller.is_dropped for caller in callers) <= MAX
        assert not any(caller.is_dropped for caller in served)


def test_the_oldest_silent_connection_is_closed_first() -> None:
    limits = ConnectionLimits(MAX)
    reading, sending = joined(limits, ConnectionState.NOT_READING) + joined(limits, ConnectionState.SENDING)
    silent = joined(limits, ConnectionState.SILENT, 2)
    served = joined(limits, ConnectionState.SERVED, MAX - 4)
    for expected in (*silent, sending, reading):
        assert not expected.is_dropped
        served += joined(limits, ConnectionState.SERVED)
        assert expected.is_dropped
    (turned_away,) = joined(limits, ConnectionState.SERVED)
    assert turned_away.is_dropped
    assert not any(caller.is_dropped for caller in served)


def test_a_connections_age_counts_from_its_last_answer_not_from_a_byte_it_sends() -> None:
    limits = ConnectionLimits(MAX)
    first, second, third = joined(limits, ConnectionState.SILENT, 3)
    limits.set(first, ConnectionState.SILENT)  # a byte of a header
    limits.set(second, ConnectionState.SERVED)
    limits.set(second, ConnectionState.SILENT)  # answered
    joined(limits, ConnectionState.SERVED, MAX - 3)
    for expected in (first, third, second):
        assert not expected.is_dropped
        joined(limits, ConnectionState.SERVED)
        assert expected.is_dropped


def test_jobs_may_hold_all_connections_except_sixteen() -> None:
    """A connection without a whole request does not count."""
    limits = ConnectionLimits(MAX)
    joined(limits, ConnectionState.SERVED, 3)
    joined(limits, ConnectionState.SENDING, 5)
    joined(limits, ConnectionState.SILENT, 5)
    (last,) = joined(limits, ConnectionState.NOT_READING)
    assert not limits.is_full
    (surplus,) = joined(limits, ConnectionState.SERVED)
    assert limits.is_full
    limits.set(surplus, ConnectionState.SILENT)
    assert not limits.is_full
    assert not last.is_dropped


def test_an_address_has_its_limit_of_requests_and_one_more_connection() -> None:
    """The one more may turn out to ask for health."""
    limits = ConnectionLimits(MAX, max_per_address=2)
    others = joined(limits, ConnectionState.SILENT, 2, "192.0.2.2")
    working = joined(limits, ConnectionState.SERVED) + joined(limits, ConnectionState.SENDING)
    assert not any(map(limits.is_over_limit, working))
    one, two = joined(limits, ConnectionState.SILENT, 2)
    assert (one.is_dropped, two.is_dropped) == (True, False)
    assert not limits.is_over_limit(working[0])
    limits.set(two, ConnectionState.SENDING)
    assert limits.is_over_limit(two)
    assert not any(caller.is_dropped for caller in [*working, *others])
    assert not any(map(limits.is_over_limit, others))


def test_clients_without_an_address_are_not_counted_together() -> None:
    limits = ConnectionLimits(MAX, max_per_address=1)
    callers = joined(limits, ConnectionState.SILENT, 5, None) + joined(limits, ConnectionState.SERVED, 5, None)
    assert not any(caller.is_dropped or limits.is_over_limit(caller) for caller in callers)


@pytest.mark.parametrize(
    ("n_open_files", "n_connections"),
    [(-1, MAX_CONNECTIONS), (4096, MAX_CONNECTIONS), (1024, 960), (64, RESERVED_CONNECTIONS + 1)],
)
def test_connections_leave_descriptors_for_other_files(n_open_files: int, n_connections: int) -> None:
    assert affordable_connections(n_open_files) == n_connections


# ── the last bytes on a closed connection ────────────────────────────────────────────────────────


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
