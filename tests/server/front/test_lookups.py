"""Names are looked up beside the loop, as the socket module does, and nothing waits for a lookup that nobody wants."""

import asyncio
import socket
import threading
from collections.abc import Coroutine

import pytest

from worker.server.front.pool_manager import Loop


def run(coroutine: Coroutine[None, None, object]) -> object:
    with asyncio.Runner(loop_factory=Loop) as runner:
        return runner.run(coroutine)


async def looked_up(host: str | None) -> object:
    return await asyncio.get_running_loop().getaddrinfo(host, 80, type=socket.SOCK_STREAM)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", None])
def test_it_finds_what_the_socket_module_finds(host: str | None) -> None:
    assert run(looked_up(host)) == socket.getaddrinfo(host, 80, type=socket.SOCK_STREAM)


def test_a_name_that_cannot_be_looked_up_is_the_same_error() -> None:
    with pytest.raises((socket.gaierror, UnicodeError)):
        run(looked_up("a" * 300))


def test_a_loop_ends_while_a_name_is_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lookup ends after the loop has, and that harms neither."""
    may_end, has_ended = threading.Event(), threading.Event()

    def look_up(*_: object) -> list[object]:
        assert may_end.wait(60)
        has_ended.set()
        return []

    monkeypatch.setattr(socket, "getaddrinfo", look_up)

    async def give_up() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await looked_up("name.invalid")

    run(give_up())
    may_end.set()
    assert has_ended.wait(60)
