"""`POST /cancel` at every stage of a job (docs/protocol.md#http and #life-of-a-job; vectors B.10)."""

import json
import socket
from urllib.parse import quote

import httpx2
import pytest

from tests.server.web.wire import (
    CANCELLED,
    COUNT,
    JSON,
    LONGER_PROMPT,
    UNHURRIED,
    post_json,
    read_to_end,
    read_until,
    request_of,
)
from tests.worker_process import (
    ONE_SLOT,
    PATIENCE_S,
    Stream,
    WorkerProcess,
    check_order,
    eventually,
    serving,
    text_of,
)

pytestmark = [pytest.mark.process, pytest.mark.model]


single = serving("any_model", *ONE_SLOT, "--ctx-size", "8192", *UNHURRIED)


def cancel(worker: WorkerProcess, job_id: str) -> None:
    response = worker.post("/cancel", json={"job_id": job_id})
    assert response.status_code == 202
    assert response.content == json.dumps({"status": "cancelling", "job_id": job_id}, separators=(",", ":")).encode()


def decode_steps(worker: WorkerProcess) -> float:
    return worker.metrics()['worker_steps_total{kind="decode"}']


# ── stages ───────────────────────────────────────────────────────────────────────────────────────


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
    eventually(single.is_idle)


def test_a_job_cancelled_in_prefill_never_decodes(single: WorkerProcess) -> None:
    """Its cells are free for the next at once."""
    eventually(single.is_idle)
    before = decode_steps(single)
    with Stream(single.url, request_of("prefills", prompt=LONGER_PROMPT)) as stream:
        stream.until("started")
        eventually(lambda: single.metrics()["worker_kv_cells_used"] > 0)
        cancel(single, "prefills")
        assert list(stream) == [CANCELLED]
    eventually(single.is_idle)
    assert decode_steps(single) == before


def test_a_job_cancelled_while_it_decodes_ends_with_one_error(single: WorkerProcess) -> None:
    """TV-116, TV-120, TV-121, TV-124, TV-277, TV-279."""
    eventually(single.is_idle)
    with Stream(single.url, request_of("decodes")) as stream:
        events = stream.until("token")
        cancel(single, "decodes")
        events += list(stream)
    check_order(events)
    assert events[-1] == CANCELLED
    eventually(single.is_idle)
    check_order(single.run(prompt="Hello", max_tokens=3))


def test_a_cancelled_job_with_a_constraint_ends_and_frees_its_slot(single: WorkerProcess) -> None:
    eventually(single.is_idle)
    schema = {"type": "array", "items": {"type": "integer"}, "minItems": 1000}
    with Stream(single.url, request_of("constrained", json_schema=schema, ignore_eos=False)) as stream:
        events = stream.until("token")
        cancel(single, "constrained")
        events += list(stream)
    check_order(events)
    assert events[-1] == CANCELLED
    assert text_of(events).startswith("[")
    eventually(single.is_idle)
    check_order(single.run(prompt="Hello", max_tokens=3, json_schema=schema))


def test_no_token_is_sent_after_the_202(single: WorkerProcess) -> None:
    """Data that arrived before the 202 may hold tokens; later data does not."""
    with single.connect() as sock:
        sock.sendall(post_json("/execute", request_of("silent")))
        read_until(sock, b'"type":"token"')
        cancel(single, "silent")
        rest = arrived(sock)
        later = b"" if rest.endswith(b"0\r\n\r\n") else read_until(sock, b"0\r\n\r\n")
    assert b'"type":"token"' not in later
    assert b'"code":"CANCELLED"' in rest + later


def arrived(sock: socket.socket) -> bytes:
    """The data that is in the socket now."""
    received = b""
    sock.setblocking(False)
    try:
        while data := sock.recv(65536):
            received += data
    except BlockingIOError:
        pass
    sock.settimeout(PATIENCE_S)
    return received


def test_a_job_next_to_a_cancelled_one_completes(worker: WorkerProcess) -> None:
    with Stream(worker.url, request_of("neighbour")) as neighbour, worker.stream(prompt=COUNT, max_tokens=24) as stream:
        events = stream.until("token")
        neighbour.until("token")
        cancel(worker, "neighbour")
        events += list(stream)
    check_order(events)
    assert (events[-1]["stop_reason"], events[-1]["tokens_sampled"]) == ("MAX_TOKENS", 24)


def test_an_id_is_free_again_with_its_terminal_event(worker: WorkerProcess) -> None:
    for _ in range(3):
        with Stream(worker.url, request_of("again")) as stream:
            events = stream.until("started")
            cancel(worker, "again")
            assert [*events, *stream][-1] == CANCELLED


def test_cancelling_twice_is_answered_twice_and_ends_the_job_once(worker: WorkerProcess) -> None:
    """TV-278."""
    with Stream(worker.url, request_of("twice")) as stream:
        stream.until("token")
        cancel(worker, "twice")
        cancel(worker, "twice")
        assert [event["type"] for event in stream if event["type"] != "token"] == ["error"]


# ── ids ──────────────────────────────────────────────────────────────────────────────────────────


def test_unknown_ids_are_harmless(worker: WorkerProcess) -> None:
    """TV-276."""
    for number in range(3):
        cancel(worker, f"nonexistent-{number}")
        assert worker.post(f"/cancel/nonexistent-{number}").status_code == 202
    events = worker.run(job_id="test-after-cancel", prompt="Count to three", max_tokens=10)
    check_order(events)
    assert text_of(events)


@pytest.mark.parametrize(
    "job_id", ["plain", " ", "with space", "%41", "ünïcode 🌍", "a?b#c", "..", 'quo"te', "new\nline"]
)
def test_an_id_in_the_path_names_the_same_job(worker: WorkerProcess, job_id: str) -> None:
    with Stream(worker.url, request_of(job_id)) as stream, worker.connect() as sock:
        stream.until("started")
        # A client library would resolve the dots.
        path = "/cancel/" + quote(job_id, safe="")
        sock.sendall(f"POST {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n".encode())
        head, _, body = read_to_end(sock).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 202 ")
        assert json.loads(body) == {"status": "cancelling", "job_id": job_id}
        assert list(stream)[-1] == CANCELLED


def test_an_id_with_a_slash_is_cancelled_by_the_body(worker: WorkerProcess) -> None:
    with Stream(worker.url, request_of("pool/7/job")) as stream:
        stream.until("started")
        worker.post("/cancel", json={"job_id": "pool/7/job", "reason": "unknown fields are ignored"})
        assert list(stream)[-1] == CANCELLED


# ── bodies ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("body", "content_type", "status", "prefix"),
    [
        (b"{}", JSON, 422, "Failed to deserialize the JSON body into the target type: missing field `job_id`"),
        (b'{"job_id":7}', JSON, 422, "Failed to deserialize the JSON body into the target type: job_id"),
        (b'{"job_id":null}', JSON, 422, "Failed to deserialize the JSON body into the target type: job_id"),
        (b"[]", JSON, 422, "Failed to deserialize the JSON body into the target type: "),
        (b"", JSON, 400, "Failed to parse the request body as JSON: "),
        (b"{job_id}", JSON, 400, "Failed to parse the request body as JSON: "),
        (b'{"job_id":"a"}', "text/plain", 415, "Expected request with `Content-Type: application/json`"),
    ],
)
def test_a_bad_cancel_is_refused_like_a_bad_execute(
    client: httpx2.Client, body: bytes, content_type: str, status: int, prefix: str
) -> None:
    response = client.post("/cancel", content=body, headers={"content-type": content_type})
    assert (response.status_code, response.headers["content-type"]) == (status, "text/plain; charset=utf-8")
    assert response.text.startswith(prefix)
