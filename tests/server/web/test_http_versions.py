"""Clients that know less than HTTP/1.1, or offer to go on in more, get what all others get.

An offer of another protocol changes nothing about a request: any offer, any request, cut anywhere. And a request whose
end two readers could see in different places is refused, or read in one way only.

A proxy in front may read such bytes in another way than the worker. If the worker answered a request that the proxy
took for a part of a body, a client would get the answer of another one. So every shape has a law: whoever is in doubt
gets a 400, nothing after it on the connection is read, and the request that hides in it is never carried out.
"""

import socket
from collections.abc import Collection
from dataclasses import dataclass, field
from itertools import pairwise
from typing import cast

import pytest
from httptools import HttpParserError
from hypothesis import given
from hypothesis import strategies as st
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from tests.server.web.wire import JSON, events_in, exchange, head, post_json, read_to_end
from tests.worker_process import WorkerProcess, check_order
from worker.server.web.connection import RequestParser


@dataclass
class Heard:
    """The requests that were parsed: method, URL, version, headers and body of each."""

    whole: list[tuple[bytes, bytes, str, tuple[tuple[bytes, bytes], ...], bytes]] = field(default_factory=list)
    n_heads: int = 0

    def __post_init__(self) -> None:
        self.parser = RequestParser(cast(HttpToolsProtocol, self))

    def on_message_begin(self) -> None:
        self.url = self.body = b""
        self.headers: list[tuple[bytes, bytes]] = []

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        self.n_heads += 1

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        method, version = self.parser.get_method(), self.parser.get_http_version()
        self.whole.append((method, self.url, version, tuple(self.headers), self.body))


def heard_of(data: bytes, cuts: Collection[int] = ()) -> Heard:
    heard = Heard()
    edges = [0, *sorted(cut for cut in cuts if cut < len(data)), len(data)]
    for begin, end in pairwise(edges):
        heard.parser.feed_data(data[begin:end])
    return heard


OFFERS = (
    b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQBAAAAAAIAAAAA\r\n",
    b"connection: upgrade\r\nUPGRADE: websocket\r\nSec-WebSocket-Version: 13\r\n",
    b"Upgrade: TLS/1.0, HTTP/1.1\r\nUpgrade: IRC/6.9\r\nConnection: keep-alive\r\nConnection: Upgrade\r\n",
    b"Connection: close, upgrade\r\nUpgrade: foo\r\n",
)
LINES = (*OFFERS, b"Connection: upgrade\r\nUpgrade:\r\n", b"Upgrade: h2c\r\n", b"")
"""The last three offer nothing."""

BODY = b'{"job_id":"j"}'
FRAMED = {
    b"": b"",
    BODY: b"Content-Length: %d\r\n\r\n%b" % (len(BODY), BODY),
    BODY * 2: b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n%x;x=y\r\n%b\r\n0\r\nT: u\r\n\r\n"
    % (len(BODY), BODY, len(BODY), BODY),
}
"""The framings of a body, after the other headers."""


@st.composite
def requests(draw: st.DrawFn) -> tuple[bytes, bytes]:
    """A request and its body."""
    method = draw(st.sampled_from([b"GET", b"POST", b"HEAD", b"OPTIONS", b"DELETE", b"PROPFIND"]))
    path = draw(st.sampled_from([b"/execute", b"/v1/chat/completions", b"/health?x=%20", b"/nope", b"*"]))
    version = draw(st.sampled_from([b"1.1", b"1.0"]))
    body = draw(st.sampled_from(list(FRAMED))) if version == b"1.1" else b""
    head = b"%b %b HTTP/%b\r\nHost: a\r\nX-Empty:\r\nX-High: \xff\r\n" % (method, path, version)
    return head + draw(st.sampled_from(LINES)) + (FRAMED[body] or b"\r\n"), body


def without_offers(data: bytes) -> bytes:
    for offer in OFFERS:
        lines = offer.split(b"\r\n")
        data = data.replace(offer, b"\r\n".join(line for line in lines if not line.lower().startswith(b"upgrade:")))
    return data


@given(st.lists(requests(), min_size=1, max_size=4), st.sets(st.integers(1, 2000), max_size=12))
def test_requests_arrive_as_if_nothing_had_been_offered(sent: list[tuple[bytes, bytes]], cuts: set[int]) -> None:
    """Bodies too, and what is pipelined behind them."""
    data = b"".join(request for request, _ in sent)
    heard = heard_of(data, cuts)
    assert heard.whole == heard_of(without_offers(data)).whole
    assert heard.n_heads == len(heard.whole) >= 1
    assert all(body == got for (_, body), (*_, got) in zip(sent, heard.whole, strict=False))


@pytest.mark.parametrize("offer", [offer for offer in OFFERS if b"close" not in offer])
def test_bytes_that_are_not_http_after_an_offer_are_refused(offer: bytes) -> None:
    heard = Heard()
    with pytest.raises(HttpParserError):
        heard.parser.feed_data(b"POST / HTTP/1.1\r\nContent-Length: 2\r\n" + offer + b"\r\n{}\x00 garbage\r\n\r\n")
    assert heard.n_heads == 1


def test_a_tunnel_is_answered_and_its_bytes_are_not_a_request() -> None:
    heard = heard_of(b"CONNECT a:80 HTTP/1.1\r\nHost: a\r\n\r\nGET /health HTTP/1.1\r\n\r\n")
    assert [method for method, *_ in heard.whole] == [b"CONNECT"]


@given(
    st.sampled_from([b"", b"a", b"a b", b"a\tb", b"\xff"]),
    st.text(" \t").map(str.encode),
    st.text(" \t").map(str.encode),
)
def test_spaces_around_a_value_are_not_part_of_it(value: bytes, before: bytes, behind: bytes) -> None:
    ((_, _, _, headers, _),) = heard_of(b"GET / HTTP/1.1\r\nX: %b%b%b\r\n\r\n" % (before, value, behind)).whole
    assert headers == ((b"X", value),)


# ── a worker ─────────────────────────────────────────────────────────────────────────────────────

JOB = {"job_id": "j", "prompt": "abc", "max_tokens": 3}
CHAT = {"messages": [{"role": "user", "content": "abc"}], "max_tokens": 3}

OFFERED = ("h2c", "websocket", "TLS/1.0", "h2c, IRC/6.9")
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


@pytest.mark.parametrize("offer", OFFERED)
@pytest.mark.parametrize("path", WORKING)
@pytest.mark.process
def test_a_body_is_read_with_any_offered_protocol(toy: WorkerProcess, path: str, offer: str) -> None:
    plain = exchange(toy, post_json(path, WORKING[path]))
    offered = exchange(toy, post_json(path, WORKING[path], **offering(offer)))
    assert offered.status == plain.status in {200, 202}
    assert len(offered.body) > 0
    assert "upgrade" not in offered.headers


@pytest.mark.process
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
@pytest.mark.process
def test_a_stream_reaches_an_old_client_without_chunks(toy: WorkerProcess, more: dict[str, object]) -> None:
    begun, body = halves(toy, as_old(post_json("/execute", JOB, **more)))
    assert begun.startswith(b"http/1.1 200 ")
    assert b"transfer-encoding" not in begun
    assert b"\r\nconnection: close" in begun
    check_order(events_in(body.decode()))
    begun, body = halves(toy, as_old(post_json("/v1/chat/completions", {**CHAT, "stream": True}, **more)))
    assert b"transfer-encoding" not in begun
    *frames, last, rest = body.split(b"\n\n")
    assert (last, rest) == (b"data: [DONE]", b"")
    assert all(frame.startswith(b"data: ") for frame in frames)


@pytest.mark.parametrize(
    "request_bytes",
    [head("GET", "/health"), post_json("/v1/chat/completions", CHAT), head("GET", "/nope"), head("HEAD", "/health")],
)
@pytest.mark.process
def test_an_answer_of_known_length_has_its_length(toy: WorkerProcess, request_bytes: bytes) -> None:
    begun, body = halves(toy, as_old(request_bytes))
    assert b"transfer-encoding" not in begun
    length = int(begun.partition(b"content-length: ")[2].split(b"\r\n")[0])
    assert len(body) == (0 if request_bytes.startswith(b"HEAD") else length)


@pytest.mark.process
def test_an_old_client_that_leaves_ends_its_job(toy: WorkerProcess) -> None:
    with toy.connect() as sock:
        sock.sendall(as_old(post_json("/execute", {**JOB, "job_id": "left", "max_tokens": 2000})))
        assert sock.recv(15, socket.MSG_WAITALL) == b"HTTP/1.1 200 OK"
    toy.wait_for("execute_end", job_id="left")


# ── bytes that are no HTTP, or are HTTP in two ways ──────────────────────────────────────────────

HIDDEN = b"GET /hidden HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n"
"""A request for a path that does not exist; its 404 names no other."""


def post(*lines: bytes, body: bytes = b"", version: bytes = b"1.1", end: bytes = b"\r\n") -> bytes:
    """A cancel with these header lines."""
    first = (b"POST /cancel HTTP/%b" % version, b"host: a", b"content-type: application/json")
    return end.join((*first, *lines, b"", body))


def chunked(size: bytes, *, line: bytes = b"transfer-encoding: chunked") -> bytes:
    return post(line, body=size + b"\r\n" + b'{"a":' + b"\r\n0\r\n\r\n" + HIDDEN)


N = b"%d" % len(HIDDEN)
REFUSED = {
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "two words": b"GET / garbage\r\n\r\n",
    "an unknown method": b"FETCH /health HTTP/1.1\r\n\r\n",
    "bytes that are no ASCII": b"GET /\xff\xfe HTTP/1.1\r\nhost: a\r\n\r\n",
    "a line without a colon": b"GET /health HTTP/1.1\r\nno colon here\r\n\r\n",
    "a version to come": b"GET /health HTTP/9.9\r\n\r\n",
    "no chunk": post(b"transfer-encoding: chunked", body=b"xyz\r\n"),
    "two lengths": post(b"content-length: 0", b"content-length: " + N, body=HIDDEN),
    "two equal lengths": post(b"content-length: 0", b"content-length: 0", body=HIDDEN),
    "a list of lengths": post(b"content-length: 0, " + N, body=HIDDEN),
    "a length with a sign": post(b"content-length: +0", body=HIDDEN),
    "a negative length": post(b"content-length: -1", body=HIDDEN),
    "a hexadecimal length": post(b"content-length: 0x0", body=HIDDEN),
    "a length with a space inside": post(b"content-length: 1 0", body=HIDDEN),
    "a length beyond 64 bits": post(b"content-length: 18446744073709551616", body=HIDDEN),
    "an empty length": post(b"content-length: ", body=HIDDEN),
    "a length in other digits": post("content-length: \u0660".encode(), body=HIDDEN),
    "a length and chunks": post(b"content-length: " + N, b"transfer-encoding: chunked", body=b"0\r\n\r\n" + HIDDEN),
    "chunks and a length": post(b"transfer-encoding: chunked", b"content-length: " + N, body=b"0\r\n\r\n" + HIDDEN),
    "a space before the colon": post(b"transfer-encoding : chunked", body=b"0\r\n\r\n" + HIDDEN),
    "a space before the colon of a length": post(b"content-length : 0", body=HIDDEN),
    "a name that is no token": post(b"content(length): 0", body=HIDDEN),
    "a coding that is not known": post(b"transfer-encoding: xchunked", body=b"0\r\n\r\n" + HIDDEN),
    "chunks and then a coding": post(b"transfer-encoding: chunked, identity", body=b"0\r\n\r\n" + HIDDEN),
    "a coding in quotes": post(b'transfer-encoding: "chunked"', body=b"0\r\n\r\n" + HIDDEN),
    "a control character in a coding": post(b"transfer-encoding: \x0bchunked", body=b"0\r\n\r\n" + HIDDEN),
    "a folded header": post(b"x: y\r\n content-length: " + N, b"content-length: 0", body=HIDDEN),
    "a NUL in a header": post(b"x: a\0b", b"content-length: 0", body=HIDDEN),
    "a carriage return in a header": post(b"x: a\rcontent-length: " + N, b"content-length: 0", body=HIDDEN),
    "lines without carriage returns": post(b"content-length: 0", end=b"\n", body=HIDDEN),
    "a chunk size with a prefix": chunked(b"0x5"),
    "a negative chunk size": chunked(b"-5"),
    "a chunk size with a plus": chunked(b"+5"),
    "a chunk size beyond 64 bits": chunked(b"fffffffffffffffff"),
    "a chunk size that wraps to five": chunked(b"10000000000000005"),
    "an empty chunk size": chunked(b""),
    "a chunk longer than it says": chunked(b"3"),
    "a chunk ended by a line feed": post(b"transfer-encoding: chunked", body=b'5\r\n{"a":\n0\r\n\r\n' + HIDDEN),
    "a line feed in a chunk extension": post(b"transfer-encoding: chunked", body=b'5;a\n{"a":\r\n0\r\n\r\n' + HIDDEN),
}


@pytest.mark.process
@pytest.mark.parametrize("shape", REFUSED)
def test_a_request_whose_end_is_in_doubt_is_refused_and_nothing_after_it_is_read(
    toy: WorkerProcess, shape: str
) -> None:
    with toy.connect() as sock:
        sock.sendall(REFUSED[shape])
        received = read_to_end(sock)
    assert received.startswith(b"HTTP/1.1 400 ")
    assert received.count(b"HTTP/1.1 ") == 1
    assert b"hidden" not in received
    assert b"\r\nx-correlation-id: " in received
    assert toy.get("/health").status_code == 200


@pytest.mark.process
def test_after_a_request_with_one_end_the_next_one_is_answered(toy: WorkerProcess) -> None:
    body = b'{"job_id":"nobody"}'
    with toy.connect() as sock:
        sock.sendall(post(b"content-length: %d" % len(body), body=body + HIDDEN))
        received = read_to_end(sock)
    assert [status[:3] for status in received.split(b"HTTP/1.1 ")[1:]] == [b"202", b"404"]
