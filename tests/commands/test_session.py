"""SIGTERM ends a command of the terminal wherever its event loop is."""

import asyncio
import os
import signal
import socket
from collections.abc import Iterator

import pytest
import uvloop

from worker.commands.session import unwinding_by_sigterm


def raising(number: int, _: object) -> None:
    """The handler outside of event loops, as in worker/__main__.py."""
    raise SystemExit(128 + number)


@pytest.fixture(autouse=True)
def _before() -> Iterator[None]:
    before = signal.signal(signal.SIGTERM, raising)
    yield
    signal.signal(signal.SIGTERM, before)


class Terminated(asyncio.Protocol):
    """The process gets SIGTERM while the loop is in a call of this connection."""

    is_lost = False

    def data_received(self, _: bytes) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    def connection_lost(self, _: Exception | None) -> None:
        self.is_lost = True


async def work(protocol: Terminated) -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        await asyncio.get_running_loop().create_connection(lambda: protocol, sock=ours)
        with unwinding_by_sigterm():
            try:
                theirs.sendall(b"a frame")
                await asyncio.Event().wait()
            finally:
                assert not protocol.is_lost, "the loop took the signal for a failure of the connection"


def test_sigterm_in_a_call_of_the_loop_unwinds_the_work_and_fails_no_connection() -> None:
    with pytest.raises(SystemExit) as left:
        uvloop.run(work(Terminated()))
    assert left.value.code == 143
    assert signal.getsignal(signal.SIGTERM) is raising


def test_another_cancel_is_passed_on() -> None:
    async def cancelled() -> None:
        task = asyncio.current_task()
        assert task is not None
        with unwinding_by_sigterm():
            task.cancel()
            await asyncio.Event().wait()

    with pytest.raises(asyncio.CancelledError):
        uvloop.run(cancelled())
