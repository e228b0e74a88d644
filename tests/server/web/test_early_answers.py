"""An answer that comes before the body has been read reaches a client that is still sending (RFC 9112, 9.6)."""

import http.client
import socket
import subprocess
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress

import pytest

from tests.server.web.wire import JSON, head, read_answer, read_to_end, read_until
from tests.worker_process import WorkerProcess, eventually, serving_toy

pytestmark = pytest.mark.process

N_BYTES = 60_000_000
"""Far more than the kernels of both sides hold."""
BODY = b"x" * N_BYTES
TOKEN = "a-token-for-tests"

guarded = serving_toy("--max-connections-per-address", "1", environment={"LLORCH_API_TOKEN": TOKEN})
"""A worker that refuses for every reason that is known before a body is read."""

GIVEN = {"authorization": f"Bearer {TOKEN}"}
REFUSALS = {
    "token": (401, "/v1/messages", {}),
    "path": (404, "/v1/nothing", GIVEN),
    "path of no API": (404, "/nothing", GIVEN),
    "method": (405, "/health", GIVEN),
    "size": (413, "/execute", GIVEN),
    "type": (415, "/v1/chat/completions", GIVEN | {"content-type": "text/plain"}),
    "coding": (415, "/v1/responses", GIVEN | {"content-encoding": "gzip"}),
}
ENDINGS: list[dict[str, str]] = [{}, {"connection": "close"}]
CONNECTIONS = {
    "keep-alive": ("HTTP/1.1", {}),
    "close": ("HTTP/1.1", {"connection": "close"}),
    "HTTP/1.0": ("HTTP/1.0", {}),
}


def request(path: str, headers: dict[str, str], version: str = "HTTP/1.1", body: bytes = BODY) -> bytes:
    fields = {"host": "worker", "content-type": JSON, "content-length": str(len(body)), **headers}
    lines = [f"POST {path} {version}", *(f"{name}: {value}" for name, value in fields.items()), "", ""]
    return "\r\n".join(lines).encode() + body


@pytest.mark.parametrize("connection", CONNECTIONS)
@pytest.mark.parametrize("refusal", REFUSALS)
def test_a_client_that_sends_all_before_it_reads_gets_the_answer(
    guarded: WorkerProcess, refusal: str, connection: str
) -> None:
    status, path, headers = REFUSALS[refusal]
    version, ending = CONNECTIONS[connection]
    with guarded.connect() as sock:
        sock.sendall(request(path, {**headers, **ending}, version))
        if connection == "keep-alive":
            assert read_answer(sock).status == status
            sock.sendall(head("GET", "/livez"))
            assert read_answer(sock).status == 200
        else:
            received = read_to_end(sock)
            assert received.startswith(b"HTTP/1.1 %d " % status)
            assert received.count(b"HTTP/1.1") == 1
    if connection != "HTTP/1.0":  # a client that waits for 100 gets the answer at once
        with guarded.connect() as sock:
            sock.sendall(request(path, {**headers, **ending, "expect": "100-continue"})[:-N_BYTES])
            assert read_answer(sock).status == status


@pytest.mark.parametrize("connection", CONNECTIONS)
def test_a_refusal_for_want_of_room_reaches_its_client_too(guarded: WorkerProcess, connection: str) -> None:
    version, ending = CONNECTIONS[connection]
    with guarded.connect() as other:
        other.sendall(request("/v1/messages", GIVEN | {"expect": "100-continue"})[:-N_BYTES])
        read_until(other, b" 100 Continue")
        with guarded.connect() as sock:
            sock.sendall(request("/v1/messages", GIVEN | ending, version))
            assert read_answer(sock).status == 503


@pytest.mark.parametrize("ending", ENDINGS, ids=["keep-alive", "close"])
def test_a_body_in_chunks_is_dropped_as_well(guarded: WorkerProcess, ending: dict[str, str]) -> None:
    with guarded.connect() as sock:
        sock.sendall(head("POST", "/nothing", transfer_encoding="chunked", **GIVEN, **ending))
        for _ in range(60):
            sock.sendall(b"f4240\r\n" + BODY[:1_000_000] + b"\r\n")
        sock.sendall(b"0\r\n\r\n")
        assert read_answer(sock).status == 404


def test_what_is_no_http_is_answered_before_all_of_it_has_come(guarded: WorkerProcess) -> None:
    with guarded.connect() as sock:
        sock.sendall(request("/execute", {"content-length": "5, 6"}))
        assert read_to_end(sock).startswith(b"HTTP/1.1 400 ")


def test_nothing_behind_an_early_answer_is_carried_out(guarded: WorkerProcess) -> None:
    """The connection ends, so what a client sends behind its body is not read as a request."""
    hidden = head("GET", "/metrics", **GIVEN)
    with guarded.connect() as sock:
        sock.sendall(request("/nothing", GIVEN | {"connection": "close"}, body=b"x" * 100)[:-50])
        answer = read_answer(sock)
        sock.sendall(b"x" * 50 + hidden)
        assert answer.status == 404
        assert sock.recv(1) == b""


# ── clients ──────────────────────────────────────────────────────────────────────────────────────


def by_http_client(worker: WorkerProcess, path: str, headers: dict[str, str]) -> tuple[int, bytes]:
    with closing(http.client.HTTPConnection("127.0.0.1", worker.port, timeout=120)) as connection:
        connection.request("POST", path, body=BODY, headers={"content-type": JSON, **headers})
        response = connection.getresponse()
        return response.status, response.read()


def by_httpx(worker: WorkerProcess, path: str, headers: dict[str, str]) -> tuple[int, bytes]:
    response = worker.post(path, content=BODY, headers={"content-type": JSON, **headers})
    return response.status_code, response.content


def by_curl(worker: WorkerProcess, path: str, headers: dict[str, str], *options: str) -> tuple[int, bytes]:
    given = [word for name, value in {"content-type": JSON, **headers}.items() for word in ("-H", f"{name}: {value}")]
    command = ["curl", "-sS", "-w", "\n%{http_code}", "--data-binary", "@-", *given, *options, worker.url + path]
    done = subprocess.run(command, input=BODY, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    text, _, status = done.stdout.rpartition(b"\n")
    return int(status), text


Client = Callable[[WorkerProcess, str, dict[str, str]], tuple[int, bytes]]
CLIENTS: dict[str, Client] = {
    "http.client": by_http_client,
    "httpx": by_httpx,
    "curl": by_curl,
    "patient curl": lambda worker, path, headers: by_curl(worker, path, {**headers, "expect": ""}),
    "old curl": lambda worker, path, headers: by_curl(worker, path, headers, "--http1.0"),
}


@pytest.mark.parametrize("ending", ENDINGS, ids=["keep-alive", "close"])
@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("refusal", ["token", "size", "path of no API"])
def test_clients_read_the_answer(guarded: WorkerProcess, client: str, refusal: str, ending: dict[str, str]) -> None:
    status, path, headers = REFUSALS[refusal]
    answered, body = CLIENTS[client](guarded, path, {**headers, **ending})
    assert answered == status
    assert body


# ── bounds ───────────────────────────────────────────────────────────────────────────────────────

brief = serving_toy("--max-body-mb", "1", constants={"server.web.connection.BODY_TIMEOUT_S": 2.0})
MAX_DROPPED_BYTES = 4 * 2**20
"""Twice the largest body of that worker, which `/execute` takes."""
MAX_BUFFERED_BYTES = 16 * 2**20
"""The kernels of both sides may hold this much."""


@pytest.mark.parametrize("path", ["/nothing", "/execute"])
@pytest.mark.parametrize("connection", CONNECTIONS)
def test_a_client_that_sends_without_an_end_is_cut(brief: WorkerProcess, path: str, connection: str) -> None:
    version, ending = CONNECTIONS[connection]
    n_sent = 0
    with brief.connect() as sock, suppress(ConnectionError):
        sock.sendall(request(path, {"content-length": str(10**12), **ending}, version, b""))
        while n_sent < 10 * MAX_BUFFERED_BYTES:
            n_sent += sock.send(BODY[:65536])
    assert n_sent < MAX_DROPPED_BYTES + MAX_BUFFERED_BYTES


@pytest.mark.parametrize("connection", CONNECTIONS)
def test_a_client_that_neither_goes_on_nor_leaves_is_cut(brief: WorkerProcess, connection: str) -> None:
    version, ending = CONNECTIONS[connection]
    with brief.connect() as sock:
        sock.sendall(request("/nothing", ending, version, BODY[:1_000_000])[:-500_000])
        assert read_answer(sock).status == 404
        eventually(lambda: is_reset(sock))


def is_reset(sock: socket.socket) -> bool:
    """True if the other side no longer takes what is sent."""
    try:
        sock.sendall(b"x")
    except ConnectionError:
        return True
    return False


@pytest.mark.parametrize("ending", ENDINGS, ids=["keep-alive", "close"])
def test_connections_that_part_make_room_for_others(guarded: WorkerProcess, ending: dict[str, str]) -> None:
    with ExitStack() as stack:
        for _ in range(1100):
            sock = stack.enter_context(guarded.connect())
            with suppress(ConnectionError):
                sock.sendall(request("/nothing", ending, body=b"x" * 200)[:-100])
        assert guarded.get("/livez").status_code == 200
