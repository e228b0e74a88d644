"""Clients that know less than HTTP/1.1, or offer to go on in more: they get what all others get."""

import socket

import pytest

from tests.server.web.wire import JSON, events_in, exchange, head, post_json, read_to_end
from tests.worker_process import WorkerProcess, check_order

pytestmark = pytest.mark.process

JOB = {"job_id": "j", "prompt": "abc", "max_tokens": 3}
CHAT = {"messages": [{"role": "user", "content": "abc"}], "max_tokens": 3}

OFFERS = ("h2c", "websocket", "TLS/1.0", "h2c, IRC/6.9")
WORKING = {
    "/execute": JOB,
    "/cancel": {"job_id": "nobody"},
    "/tokenize": {"prompt": "abc"},
    "/v1/completions": {"prompt": "abc", "max_tokens": 2},
    "/v1/chat/completions": CHAT,
    "/v1/chat/completions/render": CHAT,
}
"""Routes that read a body, with one that they take."""


def offering(offer: str) -> dict[str, object]:
    settings = "AAMAAABkAAQBAAAAAAIAAAAA"
    return {"connection": "Upgrade, HTTP2-Settings", "upgrade": offer, "http2_settings": settings}


# ── an offer is ignored ──────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("offer", OFFERS)
@pytest.mark.parametrize("path", WORKING)
def test_a_body_is_read_with_any_offered_protocol(toy: WorkerProcess, path: str, offer: str) -> None:
    plain = exchange(toy, post_json(path, WORKING[path]))
    offered = exchange(toy, post_json(path, WORKING[path], **offering(offer)))
    assert offered.status == plain.status in {200, 202}
    assert len(offered.body) > 0


@pytest.mark.parametrize("offer", OFFERS)
@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS"])
@pytest.mark.parametrize("path", ["/health", "/execute", "/v1/models", "/nope", "/v1/nope"])
def test_an_offer_changes_no_status(toy: WorkerProcess, path: str, method: str, offer: str) -> None:
    if method == "HEAD":
        plain, offered = (_status_of_head(toy, path, headers) for headers in ({}, offering(offer)))
        assert offered == plain
    else:
        plain_answer = exchange(toy, head(method, path, content_length=0))
        offered_answer = exchange(toy, head(method, path, content_length=0, **offering(offer)))
        assert offered_answer.status == plain_answer.status
        assert "upgrade" not in offered_answer.headers


def _status_of_head(toy: WorkerProcess, path: str, headers: dict[str, object]) -> bytes:
    with toy.connect() as sock:
        sock.sendall(head("HEAD", path, **headers))
        return sock.recv(15, socket.MSG_WAITALL)


def test_a_connection_goes_on_after_an_offer(toy: WorkerProcess) -> None:
    job = post_json("/execute", JOB, **offering("h2c"))
    chunked = head("POST", "/cancel", content_type=JSON, transfer_encoding="chunked", **offering("h2c"))
    chunked += b'10\r\n{"job_id": "no"}\r\n0\r\n\r\n'
    with toy.connect() as sock:
        sock.sendall(job + chunked + job + head("GET", "/livez", connection="close"))
        received = read_to_end(sock)
    assert received.count(b"HTTP/1.1 200 OK") == 3
    assert received.count(b"HTTP/1.1 202 Accepted") == 1
    assert received.count(b'"type":"end"') == 2


# ── HTTP/1.0 ─────────────────────────────────────────────────────────────────────────────────────


def as_old(request: bytes) -> bytes:
    return request.replace(b" HTTP/1.1\r\n", b" HTTP/1.0\r\n", 1)


def halves(toy: WorkerProcess, request: bytes) -> tuple[bytes, bytes]:
    """The head and the body of the answer, which ends with the connection."""
    with toy.connect() as sock:
        sock.sendall(request)
        begun, _, body = read_to_end(sock).partition(b"\r\n\r\n")
    return begun.lower(), body


@pytest.mark.parametrize("more", [{}, {"connection": "keep-alive"}, {"expect": "100-continue"}, offering("h2c")])
def test_a_stream_reaches_an_old_client_without_chunks(toy: WorkerProcess, more: dict[str, object]) -> None:
    begun, body = halves(toy, as_old(post_json("/execute", JOB, **more)))
    assert begun.startswith(b"http/1.1 200 ")
    assert b"transfer-encoding" not in begun
    assert b"\r\nconnection: close" in begun
    check_order(events_in(body.decode()))


def test_an_openai_stream_reaches_an_old_client_without_chunks(toy: WorkerProcess) -> None:
    begun, body = halves(toy, as_old(post_json("/v1/chat/completions", {**CHAT, "stream": True})))
    assert b"transfer-encoding" not in begun
    frames = body.split(b"\n\n")
    assert frames[-2:] == [b"data: [DONE]", b""]
    assert all(frame.startswith(b"data: ") for frame in frames[:-1])


@pytest.mark.parametrize(
    "request_bytes",
    [head("GET", "/health"), post_json("/v1/chat/completions", CHAT), head("GET", "/nope"), head("HEAD", "/health")],
)
def test_an_answer_of_known_length_has_its_length(toy: WorkerProcess, request_bytes: bytes) -> None:
    begun, body = halves(toy, as_old(request_bytes))
    assert b"transfer-encoding" not in begun
    length = int(begun.partition(b"content-length: ")[2].split(b"\r\n")[0])
    assert len(body) == (0 if request_bytes.startswith(b"HEAD") else length)


def test_an_old_client_that_leaves_ends_its_job(toy: WorkerProcess) -> None:
    with toy.connect() as sock:
        sock.sendall(as_old(post_json("/execute", {**JOB, "job_id": "left", "max_tokens": 2000})))
        assert sock.recv(15, socket.MSG_WAITALL) == b"HTTP/1.1 200 OK"
    toy.wait_for("execute_end", job_id="left")
