"""Floods of connections and of large bodies keep nobody out, and leave nothing behind.

The routes that are always answered are asked meanwhile on fresh connections, and memory and descriptors are watched.
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
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.apis.pool.vectors import R0
from tests.loops import on_a_loop
from tests.server.web.wire import JSON, head, post_json, read_answer
from tests.worker_process import WorkerProcess, eventually, serving_toy
from worker.server.web.large_bodies import SHARED_BYTES, SharedMemory

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


# ── connections ──────────────────────────────────────────────────────────────────────────────────

SHARE = 1.02
"""The memory and descriptors after a flood, compared with those after an earlier one or before it."""
N_FIRST = 4
"""The floods after which the allocator holds what it keeps for the next one."""
MOST_FIRST_BYTES = 32e6
"""The most that they add."""

besieged = serving_toy(scope="function")


@pytest.mark.process
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("n_floods", [1, pytest.param(12, marks=pytest.mark.soak)])
def test_ten_thousand_connections_keep_health_cancel_and_metrics_answered_and_leave_nothing(
    besieged: WorkerProcess, n_floods: int
) -> None:
    """Silent, half said, unread, in tiny chunks, with large headers, and no HTTP at all."""
    before = Watch(besieged)
    n_descriptors, n_bytes = before.n_descriptors, [before.rss]
    for _ in range(n_floods):
        with Watch(besieged) as watch:
            assert apart(besiege, besieged.port) == N_CONNECTIONS
        assert watch.n_failed == 0
        assert watch.n_answered >= len(ALWAYS_ANSWERED)
        eventually(lambda: watch.n_descriptors <= SHARE * n_descriptors)
        n_bytes.append(watch.rss)
    n_first = min(N_FIRST, n_floods)
    assert n_bytes[n_first] - n_bytes[0] < MOST_FIRST_BYTES, n_bytes
    assert n_bytes[-1] <= SHARE * n_bytes[n_first], n_bytes


# ── large bodies: their memory is lent in order, never exceeds the total, and is never lost ──────


async def settled() -> None:
    """Wait until every task has gone as far as it can."""
    for _ in range(50):
        await asyncio.sleep(0)


@given(st.lists(st.tuples(st.sampled_from(["take", "give back", "cancel"]), st.integers(0, 10)), max_size=40))
@on_a_loop
async def test_memory_is_never_lent_twice_nor_lost_and_is_lent_in_order(moves: list[tuple[str, int]]) -> None:
    memory = SharedMemory(10)
    takers: list[tuple[int, asyncio.Task[None]]] = []
    for move, n in moves:
        if move == "take":
            takers.append((n, asyncio.create_task(memory.take(n))))
        elif takers:
            n_bytes, task = taker = takers[n % len(takers)]
            if task.done():
                memory.give_back(n_bytes)
                takers.remove(taker)
            elif move == "cancel":
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
                takers.remove(taker)
        await settled()
        has = [task.done() for _, task in takers]
        n_taken = sum(n_bytes for n_bytes, task in takers if task.done())
        assert n_taken <= 10
        waiting = [n_bytes for n_bytes, task in takers if not task.done()]
        assert memory.n_waiting == len(waiting)
        assert has == sorted(has, reverse=True), "a later caller was served first"
        assert not waiting or n_taken + waiting[0] > 10
    for _, task in takers:
        task.cancel()
    await asyncio.gather(*(task for _, task in takers), return_exceptions=True)


@on_a_loop
async def test_memory_that_is_lent_to_a_cancelled_caller_goes_to_the_next() -> None:
    memory = SharedMemory(2)
    await memory.take(2)
    second, third = (asyncio.create_task(memory.take(2)) for _ in range(2))
    await settled()
    memory.give_back(2)
    second.cancel()
    await settled()
    assert second.cancelled()
    assert third.done()
    assert not memory.n_waiting


@pytest.mark.process
@pytest.mark.model
def test_a_flood_of_large_bodies_neither_delays_health_nor_fills_memory(worker: WorkerProcess) -> None:
    """100 bodies of 2 MiB took 192 MB, which were not freed, when all of them were read at once."""
    with Watch(worker) as watch:
        statuses = apart(flood, worker.port)
    assert statuses.total() == 100
    assert set(statuses) <= {"HTTP/1.1 400 Bad Request", "HTTP/1.1 503 Service Unavailable"}
    assert statuses["HTTP/1.1 400 Bad Request"] >= 4
    assert watch.n_failed == 0
    assert watch.rss - watch.rss_before < 64e6


@pytest.mark.process
@pytest.mark.model
def test_large_bodies_that_do_not_arrive_lose_their_memory_to_those_that_do(worker: WorkerProcess) -> None:
    """Four stalled bodies hold all of it. After another body has waited ten seconds, they are refused for now."""
    stalled = [worker.connect() for _ in range(4)]
    for sock in stalled:
        sock.sendall(head("POST", "/execute", content_type=JSON, content_length=SHARED_BYTES // 4) + b'{"job_id":')
    with worker.connect() as patient:
        patient.sendall(post_json("/execute", R0 | {"prompt": "Hello " + " " * 40_000, "max_tokens": 1}))
        answer = read_answer(patient)
    assert answer.status in {400, 503}
    for sock in stalled:
        with sock:
            assert read_answer(sock).status == 503
