"""Clients cancel, leave, stop reading at any stage (docs/protocol.md#life-of-a-job): slot and cells are free again."""

import json
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.client import HTTPResponse
from pathlib import Path
from urllib.parse import quote

import httpx2
import pytest

from tests.server.web.wire import (
    CANCELLED,
    IMPATIENCE_S,
    IMPATIENCES,
    LONGER_PROMPT,
    UNHURRIED,
    dribble,
    events_in,
    head,
    post_json,
    read_to_end,
    read_until,
    request_of,
    standing_still,
)
from tests.worker_process import (
    ONE_SLOT,
    PATIENCE_S,
    Event,
    Stream,
    WorkerProcess,
    altered,
    check_order,
    eventually,
    serve_default,
    serving,
    text_of,
)

pytestmark = [pytest.mark.process, pytest.mark.model]

TOKEN = b'"type":"token"'
STARTED = b'"type":"started"'

HUGE_ID = "j" * 1_900_000
"""Comes back in `started` and `metrics`: more than a socket's buffers hold, in one event."""


single = serving("any_model", *ONE_SLOT, "--ctx-size", "8192", *UNHURRIED)


@pytest.fixture(autouse=True)
def the_next_job_works(single: WorkerProcess) -> Iterator[None]:
    """Check that the next job works; every test here ends with this."""
    yield
    eventually(single.is_idle)
    check_order(single.run(prompt="Hello", max_tokens=2))


def counted(worker: WorkerProcess, outcome: str) -> float:
    return worker.metrics()[f'worker_requests_total{{outcome="{outcome}"}}']


def decode_steps(worker: WorkerProcess) -> float:
    return worker.metrics()['worker_steps_total{kind="decode"}']


# ── a client that cancels ────────────────────────────────────────────────────────────────────────


def cancel(worker: WorkerProcess, job_id: str) -> None:
    response = worker.post("/cancel", json={"job_id": job_id, "reason": "unknown fields are ignored"})
    assert (response.status_code, response.json()) == (202, {"status": "cancelling", "job_id": job_id})


def test_a_cancelled_job_that_waited_sends_started_and_its_error_and_the_other_goes_on(single: WorkerProcess) -> None:
    with Stream(single.url, request_of("runs")) as running, Stream(single.url, request_of("waits")) as waiting:
        running.until("token")
        eventually(lambda: single.health()["queue_depth"] == 1)
        cancel(single, "waits")
        started, error = list(waiting)
        assert (started["type"], started["job_id"], started["cached_tokens"]) == ("started", "waits", 0)
        assert error == CANCELLED
        assert single.health()["queue_depth"] == 0
        running.until("token")


def test_a_job_cancelled_in_prefill_never_decodes(single: WorkerProcess) -> None:
    before = decode_steps(single)
    with Stream(single.url, request_of("prefills", prompt=LONGER_PROMPT)) as stream:
        stream.until("started")
        eventually(lambda: single.metrics()["worker_kv_cells_used"] > 0)
        cancel(single, "prefills")
        assert list(stream) == [CANCELLED]
    eventually(single.is_idle)
    assert decode_steps(single) == before


ARRAY = {"type": "array", "items": {"type": "integer"}, "minItems": 1000}


@pytest.mark.parametrize("constraint", [{}, {"json_schema": ARRAY, "ignore_eos": False}], ids=["free", "constrained"])
def test_a_job_cancelled_twice_while_it_decodes_ends_with_one_error(single: WorkerProcess, constraint: Event) -> None:
    """TV-116, TV-120, TV-121, TV-124, TV-277, TV-278, TV-279. Its constraint is free for the next job, too."""
    with Stream(single.url, request_of("decodes", **constraint)) as stream:
        events = stream.until("token")
        cancel(single, "decodes")
        cancel(single, "decodes")
        events += list(stream)
    check_order(events)
    assert events[-1] == CANCELLED
    assert text_of(events).startswith("[") or not constraint
    eventually(single.is_idle)
    check_order(single.run(prompt="Hello", max_tokens=3, **constraint))


def test_no_token_is_sent_after_the_202(single: WorkerProcess) -> None:
    """Data that arrived before the 202 may hold tokens; later data does not."""
    with single.connect() as sock:
        sock.sendall(post_json("/execute", request_of("silent")))
        read_until(sock, TOKEN)
        cancel(single, "silent")
        rest = arrived(sock)
        later = b"" if rest.endswith(b"0\r\n\r\n") else read_until(sock, b"0\r\n\r\n")
    assert TOKEN not in later
    assert b'"code":"CANCELLED"' in rest + later


def arrived(sock: socket.socket) -> bytes:
    """The data that is in the socket now."""
    received = b""
    sock.setblocking(False)
    with suppress(BlockingIOError):
        while data := sock.recv(65536):
            received += data
    sock.settimeout(PATIENCE_S)
    return received


@pytest.mark.parametrize(
    "job_id", ["plain", " ", "with space", "%41", "ünïcode 🌍", "a?b#c", "..", 'quo"te', "new\nline"]
)
def test_an_id_in_the_path_names_the_same_job(single: WorkerProcess, job_id: str) -> None:
    with Stream(single.url, request_of(job_id)) as stream, single.connect() as sock:
        stream.until("started")
        # A client library would resolve the dots.
        path = "/cancel/" + quote(job_id, safe="")
        sock.sendall(f"POST {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n".encode())
        answer, _, body = read_to_end(sock).partition(b"\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 202 ")
        assert json.loads(body) == {"status": "cancelling", "job_id": job_id}
        assert list(stream)[-1] == CANCELLED


# ── a client that leaves ─────────────────────────────────────────────────────────────────────────

Leave = Callable[[socket.socket], None]


def reset(sock: socket.socket) -> None:
    """The way of a client that is killed with unread data."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    sock.close()


def half_close(sock: socket.socket) -> None:
    """Shut down the sending side, like a client that still reads. This client then leaves."""
    sock.shutdown(socket.SHUT_WR)
    sock.close()


@pytest.mark.parametrize("leave", [socket.socket.close, reset, half_close])
def test_a_client_that_leaves_while_its_job_waits(single: WorkerProcess, leave: Leave) -> None:
    with Stream(single.url, request_of("runs")) as running:
        running.until("token")
        with single.connect() as sock:
            sock.sendall(post_json("/execute", request_of("waits")))
            read_until(sock, b"\r\n\r\n")
            assert single.health()["queue_depth"] == 1
            leave(sock)
            eventually(lambda: single.health()["queue_depth"] == 0)
        running.until("token")


def test_a_client_that_leaves_before_its_job_is_even_read(single: WorkerProcess) -> None:
    """The engine stands still, so nobody has said yet whether the prompt fits."""
    with standing_still(single):
        with single.connect() as sock:
            sock.sendall(post_json("/execute", request_of("undecided")))
            eventually(lambda: single.health()["queue_depth"] == 1)
        eventually(lambda: single.health()["queue_depth"] == 0)


@pytest.mark.parametrize("leave", [socket.socket.close, reset])
def test_a_client_that_leaves_during_prefill(single: WorkerProcess, leave: Leave) -> None:
    """The prompt is not computed to its end: no decode step follows."""
    before = decode_steps(single)
    with single.connect() as sock:
        sock.sendall(post_json("/execute", request_of("prefills", prompt=LONGER_PROMPT)))
        read_until(sock, STARTED)
        eventually(lambda: single.metrics()["worker_kv_cells_used"] > 0)
        leave(sock)
    eventually(single.is_idle)
    assert decode_steps(single) == before


@pytest.mark.parametrize("leave", [socket.socket.close, reset, half_close])
def test_a_client_that_leaves_while_its_job_decodes(single: WorkerProcess, leave: Leave) -> None:
    """TV-280."""
    cancelled = counted(single, "cancelled")
    with single.connect() as sock:
        sock.sendall(post_json("/execute", request_of("decodes")))
        read_until(sock, TOKEN)
        leave(sock)
    eventually(single.is_idle)
    assert counted(single, "cancelled") == cancelled + 1


def events_on(sock: socket.socket) -> list[str]:
    """The types of all events up to the end of the connection; whatever HTTP has around them is taken off."""
    with HTTPResponse(sock) as response:
        response.begin()
        assert response.status == 200
        kinds = [event["type"] for event in events_in(response.read().decode())]
    assert sock.recv(1) == b""
    return kinds


def test_a_client_that_sends_no_more_keeps_its_place_in_the_queue(single: WorkerProcess) -> None:
    """`nc -N` closes its sending side at once; a FIN is all that a client which left would send, too.

    The last chunk's size has a zero in front, by which the worker found out that there still is a client."""
    with Stream(single.url, request_of("runs")) as running, single.connect() as sock:
        running.until("token")
        sock.sendall(post_json("/execute", request_of("waits", max_tokens=2)))
        assert b"200 OK" in sock.recv(15, socket.MSG_PEEK | socket.MSG_WAITALL)
        eventually(lambda: single.health()["queue_depth"] == 1)
        sock.shutdown(socket.SHUT_WR)
        running.until("token")
        assert single.post("/cancel/runs").status_code == 202
        assert events_on(sock) == ["started", "token", "token", "end"]


def test_a_client_that_sends_no_more_after_several_requests_gets_all_answers(single: WorkerProcess) -> None:
    with single.connect() as sock:
        job = post_json("/execute", request_of("piped", max_tokens=2))
        sock.sendall(job + head("GET", "/livez") + job + head("GET", "/livez")[:-1])
        sock.shutdown(socket.SHUT_WR)
        received = read_to_end(sock)
    assert received.count(b"HTTP/1.1 200 OK") == 3
    assert received.count(b'"type":"end"') == 2


@pytest.mark.parametrize("leave", [socket.socket.close, reset])
def test_a_client_that_leaves_during_a_blocked_send(single: WorkerProcess, leave: Leave) -> None:
    """Its first event is larger than all buffers between the two, and it has read none of it."""
    cancelled, steps = counted(single, "cancelled"), decode_steps(single)
    with dribble(single) as sock:
        sock.sendall(post_json("/execute", request_of(HUGE_ID)))
        eventually(lambda: decode_steps(single) > steps + 3)
        leave(sock)
    eventually(single.is_idle)
    assert counted(single, "cancelled") == cancelled + 1


def test_a_client_that_does_not_read_holds_no_more_than_four_mebibytes(any_model: Path) -> None:
    """Its job ends then; when it reads again it learns why, after what was already on its way.

    `started` and two reports of `metrics` are too much. Reports come by the clock, so they come sooner here: a fast
    processor's job is over in two seconds.
    """
    frequent = altered(constants={"server.front.job.METRICS_EVERY_S": 0.1})
    with (
        serve_default(any_model, "--ctx-size", "4096", *UNHURRIED, command=frequent) as worker,
        dribble(worker.ready()) as sock,
    ):
        sock.sendall(post_json("/execute", request_of(HUGE_ID, max_tokens=2048)))
        eventually(lambda: counted(worker, "cancelled") == 1)
        eventually(worker.is_idle)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 * 1024 * 1024)
        received = read_until(sock, b"0\r\n\r\n")
    assert received.count(STARTED) == 1
    assert TOKEN not in received
    assert b'"code":"CANCELLED","message":"the client is more than 4194304 bytes behind"' in received


def test_a_send_without_progress_ends_the_job(any_model: Path) -> None:
    """The limit is 30 s, here half a second, which 2,048 tokens outlast. The client neither reads nor leaves."""
    impatient = altered(constants={"server.web.connection.READING_TIMEOUT_S": 0.5})
    with serve_default(any_model, "--ctx-size", "4096", *UNHURRIED, command=impatient) as worker:
        with dribble(worker.ready()) as sock:
            # Too little for the four mebibytes: only the time-out can end it before its last token.
            sock.sendall(post_json("/execute", request_of("j" * 400_000, max_tokens=2048)))
            eventually(lambda: counted(worker, "cancelled") == 1)
            eventually(worker.is_idle)
        assert counted(worker, "success") == 0
        check_order(worker.run(prompt="Hello", max_tokens=2))


def test_a_client_that_reads_slowly_keeps_its_job_and_gets_its_whole_answer(any_model: Path) -> None:
    """One send takes more than twice the time after which a client that takes nothing is dropped, and goes on.

    The pauses here are the subject: a client that is slow.
    """
    with serve_default(any_model, "--ctx-size", "2048", *UNHURRIED, command=altered(constants=IMPATIENCES)) as worker:
        with dribble(worker.ready()) as sock:
            # More than buffers hold and than is read meanwhile, in one event.
            sock.sendall(post_json("/execute", request_of("j" * 400_000, max_tokens=4)))
            received = read_until(sock, STARTED)
            end_s = time.monotonic() + 2.5 * IMPATIENCE_S
            while time.monotonic() < end_s:
                received += sock.recv(2048)
                time.sleep(0.05)
            received += read_until(sock, b"0\r\n\r\n")
        assert received.count(TOKEN) == 4
        assert b'"type":"end"' in received
        assert counted(worker, "success") == 1


def test_an_unread_answer_does_not_slow_other_jobs(single: WorkerProcess) -> None:
    """A short one fits the buffers: the job just ends."""
    done = counted(single, "success")
    with single.connect() as sock:
        sock.sendall(post_json("/execute", request_of("unread", max_tokens=4)))
        eventually(lambda: counted(single, "success") == done + 1)


def test_a_half_sent_body_opens_no_job(single: WorkerProcess) -> None:
    done = {outcome: counted(single, outcome) for outcome in ("success", "error", "cancelled")}
    for end in (20, -1):
        with single.connect() as sock:
            sock.sendall(post_json("/execute", request_of("half"))[:end])
    with suppress(httpx2.TransportError):
        single.post("/execute", content=iter(_breaks_off()), headers={"content-type": "application/json"})
    assert {outcome: counted(single, outcome) for outcome in done} == done
    assert (single.health()["slots_busy"], single.health()["queue_depth"]) == (0, 0)


def _breaks_off() -> Iterator[bytes]:
    yield b'{"job_id":'
    raise httpx2.WriteError("the client fails in the middle of its body")
