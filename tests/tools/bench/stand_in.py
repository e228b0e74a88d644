"""A small loopback server that speaks both dialects as its manner says: whole answers, cut ones, refusals, bad bytes.

In this process (`stand_in`), or as a program that takes a server's flags (`PROGRAM`).
"""

import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import ThreadingHTTPServer
from typing import Any

from tests.loopback import QuietHandler
from tools.bench.dialects import Dialect, LlamaServer, Ours
from tools.bench.exchange import Address
from tools.bench.load import Server

PROGRAM = (sys.executable, "-m", "tests.tools.bench.stand_in")

Event = dict[str, Any]

_ENDLESS_TOKENS, _ENDLESS_PAUSE_S = 1000, 0.01
"""A job of more tokens is in no hurry: it lasts until its client leaves."""


@dataclass
class Manner:
    """The way the stand-in answers."""

    status: int = 200
    """The status of every job's answer."""
    n_places: int | None = None
    """More jobs at once than this are refused with 503."""
    n_fewer: int = 0
    """An answer is this many tokens shorter than was asked for."""
    cut_after: int | None = None
    """The connection is closed after this many token events."""
    piece_bytes: int | None = None
    """The stream is sent in pieces of this many bytes, whatever they cut."""
    is_no_http: bool = False
    is_ready: bool = True
    idle_s: float | None = None
    """A connection is closed when no request has come for this long."""
    hold: threading.Event | None = None
    """Jobs wait for it before their last token."""


@dataclass
class Heard:
    """The requests that have come."""

    jobs: list[Event] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    n_at_once: int = 0
    most_at_once: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)


class StandIn(ThreadingHTTPServer):
    """`manner` may be changed between requests; `heard` grows."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, manner: Manner, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.manner = manner
        self.heard = Heard()
        self.pause = threading.Event()

    @property
    def address(self) -> Address:
        return Address("127.0.0.1", self.server_address[1])

    def as_server(self, dialect: Dialect | None = None) -> Server:
        return Server("stand-in", self.address, dialect or LlamaServer())

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that leaves early is no error here."""


@contextmanager
def stand_in(**manner: Any) -> Iterator[StandIn]:
    with StandIn(Manner(**manner)) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


class _Handler(QuietHandler):
    server: StandIn
    protocol_version = "HTTP/1.1"

    def setup(self) -> None:
        super().setup()
        self.connection.settimeout(self.server.manner.idle_s)

    def do_GET(self) -> None:
        if self.server.manner.is_no_http:
            self.wfile.write(b"SMTP here\r\n\r\n")
            self.close_connection = True
            return
        said = {"build_info": "b1-stand-in"} if self.path == "/props" else {}
        self._plain(200 if self.server.manner.is_ready else 503, json.dumps(said).encode())

    def do_POST(self) -> None:
        job = json.loads(self.rfile.read(int(self.headers["content-length"])))
        heard, manner = self.server.heard, self.server.manner
        with heard.lock:
            heard.jobs.append(job)
            heard.headers.append(dict(self.headers))
            is_taken = manner.n_places is None or heard.n_at_once < manner.n_places
            heard.n_at_once += is_taken
            heard.most_at_once = max(heard.most_at_once, heard.n_at_once)
        if not is_taken:
            self._plain(503, b'{"code":"WORKER_BUSY"}')
            return
        try:
            self._answer(job, manner)
        finally:
            with heard.lock:
                heard.n_at_once -= 1

    def _answer(self, job: Event, manner: Manner) -> None:
        if manner.status != 200:
            self._plain(manner.status, b'{"code":"TEAPOT"}')
        elif manner.is_no_http:
            self.wfile.write(b"\x00\x01\x02 no http\r\n\r\n")
            self.close_connection = True
        else:
            self._stream(job, manner)

    def _stream(self, job: Event, manner: Manner) -> None:
        self.send_response(200)
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        is_ours = "job_id" in job
        n_tokens = job["max_tokens" if is_ours else "n_predict"] - manner.n_fewer
        n_prompt = len(job["prompt"].split())
        if is_ours:
            self._send([{"type": "started", "job_id": job["job_id"], "seed": 1, "prompt_tokens": n_prompt}])
        for number in range(n_tokens):
            if number == manner.cut_after:
                self.close_connection = True
                return
            if n_tokens > _ENDLESS_TOKENS:
                self.server.pause.wait(_ENDLESS_PAUSE_S)
            if number == n_tokens - 1 and manner.hold is not None:
                manner.hold.wait(60)
            self._send(_token(number, is_ours=is_ours, text=f" w{number}"))
        self._send([_end(n_prompt, n_tokens, is_ours=is_ours)])
        self.wfile.write(b"0\r\n\r\n")

    def _send(self, events: list[Event]) -> None:
        data = b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events)
        size = self.server.manner.piece_bytes or max(1, len(data))
        for start in range(0, len(data), size):
            piece = data[start : start + size]
            self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            self.wfile.flush()

    def _plain(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def _token(number: int, *, is_ours: bool, text: str) -> list[Event]:
    if is_ours:
        return [{"type": "token", "t": text, "i": number}]
    return [{"index": 0, "content": text, "tokens": [number], "stop": False}]


def _end(n_prompt: int, n_tokens: int, *, is_ours: bool) -> Event:
    if is_ours:
        return {"type": "end", "tokens_out": n_tokens, "stop_reason": "MAX_TOKENS", "tokens_sampled": n_tokens}
    timings = {"predicted_n": n_tokens, "predicted_ms": 1.5}
    return {"content": "", "stop": True, "tokens_evaluated": n_prompt, "timings": timings}


OURS = Ours("test")
DIALECTS: list[Dialect] = [OURS, LlamaServer()]


def _value(flag: str, default: int) -> int:
    return int(sys.argv[sys.argv.index(flag) + 1]) if flag in sys.argv else default


if __name__ == "__main__":
    n_places = _value("--parallel", 1000) + _value("--max-queue", 1000)
    with StandIn(Manner(n_places=n_places), _value("--port", 0)) as program:
        program.serve_forever()
