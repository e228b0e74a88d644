"""Floods of large bodies and of connections, and their effect on others.

These are the routes that are always answered, asked meanwhile on fresh connections, and memory and descriptors.
"""

import asyncio
import http.client
import json
import resource
import socket
import threading
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from itertools import cycle
from multiprocessing import get_context
from types import TracebackType
from typing import Self, TypeVar

import psutil

from tests.server.web.wire import JSON, head
from tests.worker_process import WorkerProcess

N_BODIES = 100
BODY_BYTES = 2 * 1024 * 1024
PERIOD_S = 0.05
GIVE_UP_S = 30.0

ALWAYS_ANSWERED = (("GET", "/health"), ("GET", "/metrics"), ("POST", "/cancel/nobody"))
N_CONNECTIONS = 10_000
N_HELD = 1500
"""The connections that a flood holds at once: more than the worker takes."""

Said = TypeVar("Said")


class Watch:
    """It asks again and again while the `with` lasts."""

    def __init__(self, worker: WorkerProcess) -> None:
        self._port = worker.port
        self._process = psutil.Process(worker.process.pid)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._ask_again_and_again, daemon=True)
        self.n_failed = 0
        self.n_answered = 0
        self.rss_before = self.rss_most = self.rss

    @property
    def rss(self) -> int:
        """The front's memory."""
        return int(self._process.memory_info().rss)

    @property
    def n_descriptors(self) -> int:
        return int(self._process.num_fds())

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(2 * GIVE_UP_S)

    def _ask_again_and_again(self) -> None:
        asked = cycle(ALWAYS_ANSWERED)
        while not self._stop.wait(PERIOD_S):
            self.rss_most = max(self.rss_most, self.rss)
            try:
                connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=GIVE_UP_S)
                connection.request(*next(asked))
                is_answered = connection.getresponse().status in (http.HTTPStatus.OK, http.HTTPStatus.ACCEPTED)
                self.n_answered += is_answered
                self.n_failed += not is_answered
                connection.close()
            except (OSError, http.client.HTTPException):
                self.n_failed += 1


def apart(work: Callable[[int], Said], port: int) -> Said:
    """`work(port)` in a process of its own, so that it takes nothing from the watching."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(work, port).result()


def flood(port: int) -> Counter[str]:
    """The status lines of bodies of the largest size that all come at once, with the number of times that each came."""
    return asyncio.run(_flood(port))


async def _flood(port: int) -> Counter[str]:
    fields = {"job_id": "large", "max_tokens": 1, "prompt": ""}
    body = json.dumps(fields | {"prompt": "x" * (BODY_BYTES - len(json.dumps(fields)))}).encode()
    request = head("POST", "/execute", content_type=JSON, content_length=len(body)) + body
    return Counter(await asyncio.gather(*(_send(port, request) for _ in range(N_BODIES))))


async def _send(port: int, request: bytes) -> str:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request)
        return (await reader.readline()).decode().strip() or "cut"
    except OSError as error:
        return type(error).__name__
    finally:
        writer.transport.abort()


def besiege(port: int) -> int:
    """Make N_CONNECTIONS connections, N_HELD of them at once, whose clients are slow, rude or gone; return how many
    were made.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 2 * N_HELD)), hard))
    chunks = b"1;x=y\r\n{\r\n" * 300
    said = cycle(
        [
            b"",
            b"GET /hea",
            head("GET", "/health"),
            head("GET", "/metrics") * 20,
            head("POST", "/execute", content_type=JSON, content_length=BODY_BYTES) + b'{"job_id":"a",' * 100,
            head("POST", "/cancel", content_type=JSON, transfer_encoding="chunked") + chunks,
            head("GET", "/health", **{f"x-{i}": "y" * 500 for i in range(100)}),
            b"\x16\x03\x01\x02\x00",
        ]
    )
    held: deque[socket.socket] = deque()
    for _ in range(N_CONNECTIONS):
        sock = socket.create_connection(("127.0.0.1", port), timeout=GIVE_UP_S)
        with suppress(OSError):  # it may be closed already to make room for others
            sock.sendall(next(said))
        held.append(sock)
        if len(held) > N_HELD:
            held.popleft().close()
    for sock in held:
        sock.close()
    return N_CONNECTIONS
