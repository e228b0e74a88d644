"""HTTP by hand: exchanges no client library would make, or would tidy up before they leave."""

import http.client
import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import psutil

from tests.worker_process import PATIENCE_S, Event, WorkerProcess

JSON = "application/json"

COUNT = "The numbers are 1 2 3 4 5"
"""Greedy decoding goes on counting for longer than any test waits."""

CANCELLED = {
    "type": "error",
    "code": "CANCELLED",
    "message": "Job cancelled by client request",
    "retriable": False,
}
"""The end of a cancelled job's stream."""

LONG_PROMPT = " hello" * 2000
"""2,000 tokens: more than a hundred prefill steps of the smallest chunk."""
LONGER_PROMPT = " hello" * 5000
"""Takes a fast processor's one thread some seconds."""


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes


def head(method: str, path: str, **headers: object) -> bytes:
    """Request line and headers; `content_length=5` becomes `content-length: 5`."""
    lines = [f"{method} {path} HTTP/1.1", "host: worker"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def post_json(path: str, value: object, **headers: object) -> bytes:
    body = json.dumps(value).encode()
    return head("POST", path, content_type=JSON, content_length=len(body), **headers) + body


def read_answer(sock: socket.socket) -> Answer:
    """The next answer, whole. One per socket: what follows it may be lost in the reader's buffer."""
    response = http.client.HTTPResponse(sock)
    response.begin()
    return Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())


def exchange(worker: WorkerProcess, request: bytes) -> Answer:
    with worker.connect() as sock:
        sock.sendall(request)
        return read_answer(sock)


def read_to_end(sock: socket.socket) -> bytes:
    """All bytes until the worker closes; a reset counts as the end."""
    received = b""
    try:
        while data := sock.recv(65536):
            received += data
    except ConnectionResetError:
        pass
    return received


def read_until(sock: socket.socket, wanted: bytes) -> bytes:
    """Bytes up to and with the first arrival of `wanted`."""
    received = b""
    while wanted not in received:
        data = sock.recv(65536)
        assert data, f"the worker closed before {wanted!r}: {received[-500:]!r}"
        received += data
    return received


def events_in(text: str) -> list[Event]:
    """The events of a whole stream of server-sent events. On a busy machine it may have comments, too."""
    frames = [frame for frame in text.split("\n\n") if frame and not frame.startswith(":")]
    return [json.loads(frame.removeprefix("data: ")) for frame in frames]


def dribble(worker: WorkerProcess, *, segment_bytes: int = 500) -> socket.socket:
    """A connection whose client end takes a few kilobytes and no more until it is read."""
    sock = socket.socket()
    sock.settimeout(PATIENCE_S)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    # The sender's buffer is sized by the segments the receiver takes; those of the loopback are 64 KiB.
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, segment_bytes)
    sock.connect(("127.0.0.1", worker.port))
    return sock


@contextmanager
def standing_still(worker: WorkerProcess) -> Iterator[psutil.Process]:
    """The engine, which does nothing until the end or until it is resumed."""
    engine = worker.engine
    engine.suspend()
    try:
        yield engine
    finally:
        if engine.is_running():
            engine.resume()


IMPATIENCE_S = 2.0
IMPATIENCES = {f"server.web.connection.{what}_TIMEOUT_S": IMPATIENCE_S for what in ("HEADERS", "BODY", "READING")}
"""The constants of a worker that gives up on its clients sooner."""

UNHURRIED = ("--threads", "1", "--prompt-lookup", "off")
"""Flags for a worker whose jobs are to last: what such a one repeats is else guessed, several tokens a step."""


def request_of(job_id: str, **fields: object) -> Event:
    """A greedy job that would go on for many seconds."""
    return {"job_id": job_id, "prompt": COUNT, "max_tokens": 1500, "temperature": 0.0, **fields}
