"""Clients that are slow, many, rude or broken: each costs itself something, and nobody else (docs/protocol.md#http)."""

import re
import resource
import selectors
import signal
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx2
import psutil
import pytest

from tests.apis.pool.vectors import R0
from tests.server.web.wire import (
    CANCELLED,
    COUNT,
    IMPATIENCES,
    JSON,
    dribble,
    exchange,
    head,
    post_json,
    read_answer,
    read_to_end,
    read_until,
    request_of,
    standing_still,
)
from tests.worker_process import Stream, WorkerProcess, check_order, eventually, serve_default, serving
from worker.server.web.server import UNUSED_TIMEOUT_S

pytestmark = [pytest.mark.process, pytest.mark.model]

MAX_CONNECTIONS = 1024
RESERVED = 16
HEADERS_TIMEOUT_S = 10

HEALTH = head("GET", "/health")


impatient = serving("shallow_model", "--parallel", "1", "--ctx-size", "2048", constants=IMPATIENCES)


@pytest.fixture
def open_files() -> Iterator[None]:
    """Enough of them for more connections than the worker takes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


# ── slow ─────────────────────────────────────────────────────────────────────────────────────────

SLOW = {
    "says nothing": (b"", b""),
    "half a request line": (b"GET /hea", b""),
    "headers without their end": (HEALTH[:-2], b""),
    "a header that never ends": (b"GET /health HTTP/1.1\r\nx: ", b"x"),
    "blank lines after an answer": (HEALTH, b"\r\n"),
}
"""The data that is sent at once, and the data that is sent again about every second."""


def test_slow_request_headers_are_cut_after_ten_seconds_and_streams_are_not(worker: WorkerProcess) -> None:
    """The real ten seconds, once, for all kinds of slowness together."""
    with ExitStack() as stack:
        stream = stack.enter_context(Stream(worker.url, request_of("outlives", max_tokens=2000)))
        stream.until("token")
        began_s = time.monotonic()
        socks = {stack.enter_context(worker.connect()): kind for kind in SLOW}
        for sock, kind in socks.items():
            sock.sendall(SLOW[kind][0])
        lived_s = {socks[sock]: ended_s - began_s for sock, ended_s in _until_all_are_cut(socks)}
        assert set(lived_s) == set(SLOW)
        assert min(lived_s.values()) >= HEADERS_TIMEOUT_S - 0.5
        assert worker.get("/health").status_code == 200
        worker.post("/cancel/outlives")
        last = list(stream)[-1]
        assert last == CANCELLED or last["type"] == "end"


def _until_all_are_cut(socks: dict[socket.socket, str]) -> Iterator[tuple[socket.socket, float]]:
    """(socket, when it was cut), as it happens; meanwhile the slow ones go on."""
    with selectors.DefaultSelector() as selector:
        for sock in socks:
            selector.register(sock, selectors.EVENT_READ)
        while selector.get_map():
            for key, _ in selector.select(timeout=1.0):
                assert isinstance(key.fileobj, socket.socket)
                if not _take(key.fileobj):
                    selector.unregister(key.fileobj)
                    yield key.fileobj, time.monotonic()
            for sock, kind in socks.items():
                with suppress(OSError):
                    sock.sendall(SLOW[kind][1])


def _take(sock: socket.socket) -> bytes:
    try:
        return sock.recv(65536)
    except ConnectionResetError:
        return b""


def test_a_body_that_does_not_arrive_is_cut(impatient: WorkerProcess) -> None:
    with impatient.connect() as sock:
        sock.sendall(head("POST", "/execute", content_type=JSON, content_length=100) + b'{"job_id"')
        assert read_to_end(sock) == b""
    check_order(impatient.run(prompt=COUNT, max_tokens=1))


HASTY = {"server.web.server.UNUSED_TIMEOUT_S": 1}
hasty = serving("shallow_model", "--ctx-size", "2048", scope="function", constants=HASTY)


def test_a_connection_without_another_request_is_closed(hasty: WorkerProcess) -> None:
    with hasty.connect() as sock:
        for _ in range(2):
            sock.sendall(HEALTH)
            assert read_answer(sock).status == 200
        assert read_to_end(sock) == b""


GIVEN_UP_S = {"nginx": 60.0, "Go": 90.0, "reqwest": 90.0, "Google's load balancers": 600.0}
"""The seconds after which clients and proxies close a connection that they do not use. Source: nginx's
keepalive_timeout of upstreams, http.DefaultTransport's IdleConnTimeout, reqwest's pool_idle_timeout, Google's HTTP
keepalive timeout to backends.
"""


def test_clients_close_an_unused_connection_first() -> None:
    """Otherwise a request that is on its way when the worker closes would be lost."""
    assert max(*GIVEN_UP_S.values(), httpx2.Limits().keepalive_expiry or 0) < UNUSED_TIMEOUT_S


@pytest.mark.parametrize("connection", ["close", "keep-alive"])
def test_an_answer_that_is_not_read_does_not_hold_its_connection(impatient: WorkerProcess, connection: str) -> None:
    """Closing would wait for ever for a client that neither reads nor leaves."""
    with dribble(impatient) as sock:
        sock.sendall(post_json("/cancel", {"job_id": "j" * 1_900_000}, connection=connection))
        port = sock.getsockname()[1]
        assert sock.recv(10) == b"HTTP/1.1 2"
        eventually(lambda: port not in remote_ports(impatient))


def remote_ports(worker: WorkerProcess) -> set[int]:
    connections = psutil.Process(worker.process.pid).net_connections("tcp4")
    return {connection.raddr.port for connection in connections if connection.raddr}


# ── many ─────────────────────────────────────────────────────────────────────────────────────────


N_FOR_JOBS = 4
FEW = {"server.web.connection_limits.MAX_CONNECTIONS": N_FOR_JOBS + RESERVED}
narrow = serving("shallow_model", "--ctx-size", "2048", scope="function", constants=FEW)
"""A worker that takes few connections."""


def answers_what_is_always_answered(worker: WorkerProcess) -> bool:
    statuses = [worker.get("/health").status_code, worker.get("/metrics").status_code]
    return [*statuses, worker.post("/cancel/nobody").status_code] == [200, 200, 202]


@pytest.mark.usefixtures("open_files")
@pytest.mark.parametrize("said", [b"", b"G"], ids=["nothing", "a byte"])
def test_a_crowd_of_idle_connections_keeps_no_client_out(worker: WorkerProcess, said: bytes) -> None:
    """The oldest of them make room for whoever comes, and streams stay."""
    with ExitStack() as stack:
        stream = stack.enter_context(Stream(worker.url, request_of(f"before-a-crowd-that-said-{said.decode()}")))
        stream.until("token")
        crowd = [stack.enter_context(worker.connect()) for _ in range(MAX_CONNECTIONS + 76)]
        for sock in crowd:
            with suppress(ConnectionError):
                sock.sendall(said)
        for _ in range(3):
            assert answers_what_is_always_answered(worker)
        assert worker.post("/execute", json=R0 | {"max_tokens": 1}).is_success
        assert sum(map(_is_cut, crowd)) >= 76
        assert stream.until("token")


@pytest.mark.usefixtures("open_files")
def test_requests_that_come_faster_than_connections_are_taken_are_all_answered(worker: WorkerProcess) -> None:
    """They wait in the listener's queue; the first are not cut for the last before they are read."""
    with ExitStack() as stack:
        worker.process.send_signal(signal.SIGSTOP)
        try:
            crowd = [stack.enter_context(worker.connect()) for _ in range(MAX_CONNECTIONS + 276)]
            for sock in crowd:
                sock.sendall(HEALTH)
        finally:
            worker.process.send_signal(signal.SIGCONT)
        assert {read_answer(sock).status for sock in crowd} == {200}


def test_jobs_leave_sixteen_connections_to_health_cancel_and_metrics(narrow: WorkerProcess) -> None:
    """Others crowd in behind them with half a request; half a body gives way as silence does."""
    with standing_still(narrow) as engine, ExitStack() as stack:  # nobody decides on a job: each keeps its connection
        jobs = [stack.enter_context(narrow.connect()) for _ in range(N_FOR_JOBS)]
        for number, sock in enumerate(jobs):
            sock.sendall(post_json("/execute", request_of(f"kept-{number}", max_tokens=1)))
        eventually(lambda: len(jobs) == narrow.health()["queue_depth"])
        half = post_json("/cancel", {"job_id": "nobody"})[:-1]
        for _ in range(2 * RESERVED):
            stack.enter_context(narrow.connect()).sendall(half)
        refused = narrow.post("/execute", json=R0)
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        assert refused.json()["code"] == "WORKER_BUSY"
        assert answers_what_is_always_answered(narrow)
        engine.resume()
        assert {read_answer(sock).status for sock in jobs} == {200}
    assert narrow.post("/execute", json=R0 | {"max_tokens": 1}).is_success


def test_an_address_has_a_limit_of_requests(shallow_model: Path) -> None:
    """Health answers it all the same, and other addresses do not notice."""
    flags = ("--ctx-size", "2048", "--max-connections-per-address", "2")
    with serve_default(shallow_model, *flags) as worker, standing_still(worker.ready()) as engine, ExitStack() as stack:
        jobs = [stack.enter_context(worker.connect()) for _ in range(2)]
        for number, sock in enumerate(jobs):
            sock.sendall(post_json("/execute", request_of(f"mine-{number}", max_tokens=1)))
        eventually(lambda: worker.health()["queue_depth"] == 2)
        assert worker.post("/execute", json=R0).json()["code"] == "WORKER_BUSY"
        assert answers_what_is_always_answered(worker)
        if sys.platform == "linux":  # where all of 127.0.0.0/8 is there
            other = socket.create_connection(("127.0.0.1", worker.port), source_address=("127.0.0.2", 0))
            jobs.append(stack.enter_context(other))
            other.sendall(post_json("/execute", R0 | {"max_tokens": 1}))
            eventually(lambda: worker.health()["queue_depth"] == 3)
        engine.resume()
        assert {read_answer(sock).status for sock in jobs} == {200}


def _is_cut(sock: socket.socket) -> bool:
    """True if the worker has closed a silent connection."""
    if sock.fileno() < 0:
        return True
    sock.setblocking(False)
    try:
        return not sock.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True


# ── rude ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("before", [b"", HEALTH], ids=["a stream", "a pipelined request"])
def test_garbage_behind_a_stream_ends_it_without_an_answer_inside(worker: WorkerProcess, before: bytes) -> None:
    with worker.connect() as sock:
        sock.sendall(post_json("/execute", request_of("interrupted")))
        read_until(sock, b'"type":"token"')
        sock.sendall(before + b"\x00 not http\r\n\r\n")
        received = read_to_end(sock)
    assert b"400 Bad Request" not in received
    assert (b"HTTP/1.1" in received) <= bool(before)
    eventually(worker.is_idle)


@pytest.mark.parametrize(
    ("beginning", "rest"),
    [
        (b"GET /health HTTP/1.1\r\nx: ", b"x" * 4096),
        (b"GET /", b"x" * 4096),
        (b"GET /health HTTP/1.1\r\n", b"x: y\r\n" * 700),
        (b"", b"\r\n" * 2048),
        (head("POST", "/cancel", content_type=JSON, transfer_encoding="chunked") + b"0\r\nx: ", b"x" * 4096),
        (head("POST", "/cancel", content_type=JSON, transfer_encoding="chunked") + b"1;x=", b"x" * 4096),
    ],
    ids=["header", "path", "headers", "blank lines", "trailer", "chunk extension"],
)
def test_an_endless_head_is_cut_at_64_kibibytes(worker: WorkerProcess, beginning: bytes, rest: bytes) -> None:
    """A parser that kept it would copy it with every read and stop the loop for seconds."""
    with worker.connect() as sock:
        sock.sendall(beginning)
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            sock.sendall(rest * (64 * 1024 * 1024 // len(rest)))
    assert worker.get("/health").status_code == 200


def test_large_headers_are_accepted(worker: WorkerProcess) -> None:
    assert exchange(worker, head("GET", "/health", x_large="x" * 60_000)).status == 200


# ── several requests on one connection ───────────────────────────────────────────────────────────


def test_pipelined_requests_are_answered_in_order(worker: WorkerProcess) -> None:
    """A stream too comes whole before the answer to what was sent behind it."""
    job = post_json("/execute", request_of("piped", max_tokens=3))
    last = head("POST", "/nope", connection="close", content_length=0)
    with worker.connect() as sock:
        sock.sendall(HEALTH + job + job + HEALTH + last)
        received = read_to_end(sock)
    statuses = re.findall(rb"HTTP/1\.1 (\d+) ", received)
    assert statuses == [b"200", b"200", b"200", b"200", b"404"]
    assert received.count(b'"type":"started"') == received.count(b'"type":"end"') == 2


def test_half_a_request_after_a_stream_does_not_cut_it(impatient: WorkerProcess) -> None:
    """The limit on its time starts only when no answer is pending."""
    with impatient.connect() as sock:
        sock.sendall(post_json("/execute", request_of("outlives-the-half", max_tokens=500)) + HEALTH[:-2])
        received = read_until(sock, b"0\r\n\r\n")
        assert b'"type":"end"' in received
        sock.sendall(b"\r\n")
        assert b'"status":"healthy"' in read_until(sock, b"}")
        sock.sendall(HEALTH[:-2])
        assert read_to_end(sock) == b""
