"""A real receiver of ready callbacks, in a process of its own.

    python -m tests.receiver --script 500,500,200 [--port N] [--probe]

answers the first POST with 500, the second with 500, every later one with 200, and prints its port when it listens.
Words of a script: a status, `hang` (no answer while the client stays), `reset` (closes without an answer).
A 3xx carries a Location on the receiver itself. `--probe`: before it answers, it asks GET {uri}/health for the `uri`
in the body. GET /requests?at_least=N returns what came, as JSON. It ends when its standard input closes.
"""

import argparse
import http.client
import json
import socketserver
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import parse_qs, urlsplit

import msgspec

from tests.loopback import QuietHandler

HOST = "127.0.0.1"
PATIENCE_S = 30.0
"""How long GET /requests?at_least=N waits for the Nth, and the longest a client waits for us."""


class Received(msgspec.Struct, frozen=True, kw_only=True):
    """One callback as it arrived. Header names are in lower case; `at_s` is time.monotonic(), one clock per machine."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    at_s: float
    health_status: int | None = None
    """With --probe: what GET {uri}/health answered, 0 where nobody did."""


class Receiver:
    """A receiver process as a context manager: `with Receiver("500,200") as receiver: ... receiver.url`."""

    def __init__(self, script: str = "200", *, port: int = 0, wants_probe: bool = False) -> None:
        flags = ["--script", script, "--port", str(port), *(["--probe"] if wants_probe else [])]
        self._command = [sys.executable, "-m", "tests.receiver", *flags]
        self.port = port

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            self._command, cwd=Path(__file__).parents[1], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.communicate(timeout=PATIENCE_S)

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}/v2/internal/workers/ready"

    def requests(self, at_least: int = 0) -> list[Received]:
        """What has come so far; first waits until there are `at_least` so many. Raises: TimeoutError."""
        status, body = _get(f"http://{HOST}:{self.port}/requests?at_least={at_least}")
        if status != 200:
            raise TimeoutError(f"fewer than {at_least} callbacks within {PATIENCE_S} s")
        return msgspec.json.decode(body, type=list[Received])


# ── the process ──────────────────────────────────────────────────────────────────────────────────


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True

    def __init__(self, port: int, script: list[str], *, wants_probe: bool) -> None:
        self.script, self.wants_probe = script, wants_probe
        self.received: list[Received] = []
        self.has_news = threading.Condition()
        super().__init__((HOST, port), _Handler)

    def record(self, received: Received) -> str:
        """Keeps it and returns the word of the script that answers it."""
        with self.has_news:
            self.received.append(received)
            self.has_news.notify_all()
            return self.script[min(len(self.received), len(self.script)) - 1]

    def wait_for(self, n: int) -> list[Received] | None:
        with self.has_news:
            if not self.has_news.wait_for(lambda: len(self.received) >= n, timeout=PATIENCE_S):
                return None
            return list(self.received)


class _Handler(QuietHandler):
    server: _Server

    def do_POST(self) -> None:
        at_s = time.monotonic()
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        received = Received(
            method=self.command,
            path=self.path,
            headers={name.lower(): value for name, value in self.headers.items()},
            body=body,
            at_s=at_s,
            health_status=_probe(body) if self.server.wants_probe else None,
        )
        self._play(self.server.record(received))

    def do_GET(self) -> None:
        target = urlsplit(self.path)
        if target.path != "/requests":
            return self._answer(404, b"")
        received = self.server.wait_for(int(parse_qs(target.query)["at_least"][0]))
        return self._answer(200 if received is not None else 504, msgspec.json.encode(received))

    def _play(self, word: str) -> None:
        if word == "hang":
            self.connection.recv(1)
        elif word != "reset":
            self._answer(int(word), b"")

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        if 300 <= status < 400:
            self.send_header("Location", f"http://{HOST}:{self.server.server_address[1]}/elsewhere")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def _probe(body: bytes) -> int:
    try:
        return _get(json.loads(body)["uri"] + "/health")[0]
    except OSError:
        return 0


def _get(url: str) -> tuple[int, bytes]:
    target = urlsplit(url)
    connection = http.client.HTTPConnection(target.hostname or "", target.port or 80, timeout=PATIENCE_S + 5)
    try:
        connection.request("GET", f"{target.path}?{target.query}")
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.receiver")
    parser.add_argument("--script", default="200")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--probe", action="store_true")
    flags = parser.parse_args()
    with _Server(flags.port, flags.script.split(","), wants_probe=flags.probe) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        sys.stdout.write(f"{server.server_address[1]}\n")
        sys.stdout.flush()
        sys.stdin.buffer.read()
        server.shutdown()


if __name__ == "__main__":
    main()
