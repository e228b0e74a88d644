"""Requests whose end two readers could see in different places: each is refused, or read in one way only.

A proxy in front may read such bytes in another way than the worker. If the worker answered a request that the proxy
took for a part of a body, a client would get the answer of another one. So every shape has a law: whoever is in doubt
gets a 400, nothing after it on the connection is read, and the request that hides in it is never carried out.
"""

import pytest

from tests.server.web.wire import read_to_end
from tests.worker_process import WorkerProcess

pytestmark = pytest.mark.process

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


def test_after_a_request_with_one_end_the_next_one_is_answered(toy: WorkerProcess) -> None:
    body = b'{"job_id":"nobody"}'
    with toy.connect() as sock:
        sock.sendall(post(b"content-length: %d" % len(body), body=body + HIDDEN))
        received = read_to_end(sock)
    assert [status[:3] for status in received.split(b"HTTP/1.1 ")[1:]] == [b"202", b"404"]
