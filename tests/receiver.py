"""A receiver of ready callbacks on the loopback: `with Receiver("500,200") as receiver: ... receiver.url`.

This one answers the first POST with 500 and every later one with 200. Words of a script: a status, `hang` (no answer
while the client stays), `reset` (closes without an answer). A 3xx carries a Location on the receiver itself.
"""

import http.client
import json
import threading
import time
from dataclasses import dataclass
from typing import Self
from urllib.parse import urlsplit

from tests.loopback import HOST, LoopbackServer, QuietHandler

PATIENCE_S = 30.0
"""The longest that `requests(N)` waits for the Nth, and that a client waits for us."""


@dataclass(frozen=True)
class Received:
    """One callback as it arrived. Header names are in lower case; `at_s` is time.monotonic(), one clock per machine."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    at_s: float
    health_status: int | None = None
    """The answer of GET {uri}/health to a receiver that probes, 0 if there was none."""


class Receiver(LoopbackServer):
    """It listens while the `with` lasts. One that probes first asks GET {uri}/health, with the body's `uri`."""

    def __init__(self, script: str = "200", *, port: int = 0, wants_probe: bool = False) -> None:
        self.script, self.wants_probe = script.split(","), wants_probe
        self._port, self._received = port, list[Received]()
        self._has_news = threading.Condition()

    def __enter__(self) -> Self:
        super().__init__(type("Handler", (_Handler,), {"receiver": self}), self._port)
        self._port = super().port
        return super().__enter__()

    @property
    def port(self) -> int:
        return self._port

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}/v2/internal/workers/ready"

    def requests(self, at_least: int = 0) -> list[Received]:
        """Wait for `at_least` this number of callbacks; all that have come so far."""
        with self._has_news:
            assert self._has_news.wait_for(lambda: len(self._received) >= at_least, PATIENCE_S), self._received
            return list(self._received)

    def record(self, received: Received) -> str:
        """Keep it and return the word of the script that answers it."""
        with self._has_news:
            self._received.append(received)
            self._has_news.notify_all()
            return self.script[min(len(self._received), len(self.script)) - 1]


class _Handler(QuietHandler):
    receiver: Receiver

    def do_POST(self) -> None:
        at_s = time.monotonic()
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        headers = {name.lower(): value for name, value in self.headers.items()}
        health_status = _probe(body) if self.receiver.wants_probe else None
        word = self.receiver.record(Received(self.command, self.path, headers, body, at_s, health_status))
        if word == "hang":
            self.connection.recv(1)
        elif word != "reset":
            is_moved = 300 <= int(word) < 400
            self.answer(int(word), {"Location": f"http://{HOST}:{self.receiver.port}/elsewhere"} if is_moved else {})


def _probe(body: bytes) -> int:
    target = urlsplit(json.loads(body)["uri"] + "/health")
    connection = http.client.HTTPConnection(target.hostname or "", target.port or 80, timeout=PATIENCE_S)
    try:
        connection.request("GET", target.path)
        return connection.getresponse().status
    except OSError:
        return 0
    finally:
        connection.close()
