"""A small HTTP relay in front of a real worker that may change requests and answers.

A thread of the test's own process on the loopback; stopped by the context manager.
"""

import json
from collections.abc import Callable
from typing import Any

import httpx2

from client.sse import data_in
from tests.loopback import LoopbackServer, QuietHandler

PATIENCE_S = 120.0

Event = dict[str, Any]
Ask = Callable[[Event], Event]
Change = Callable[[Event, Event], Event]
Reply = Callable[[str, Event], Event]


class Relay(LoopbackServer):
    """`with Relay(url, ask=…, event=…) as relay: relay.url`.

    `ask` changes the body of a job; `event` changes each event of its stream, given the body before `ask` changed it;
    `reply` changes the answers of all other routes, by path.
    """

    def __init__(
        self,
        url: str,
        *,
        ask: Ask = lambda body: body,
        event: Change = lambda event, _: event,
        reply: Reply = lambda _, body: body,
    ) -> None:
        class Handler(QuietHandler):
            def do_GET(self) -> None:
                answer = httpx2.get(f"{url}{self.path}", timeout=PATIENCE_S, trust_env=False)
                self._begin(answer.status_code)
                self.wfile.write(answer.content)

            def do_POST(self) -> None:
                asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
                body = ask(dict(asked)) if self.path == "/execute" else asked
                with (
                    httpx2.Client(timeout=PATIENCE_S, trust_env=False) as client,
                    client.stream("POST", f"{url}{self.path}", json=body) as answer,
                ):
                    self._begin(answer.status_code)
                    if self.path == "/execute" and answer.status_code == httpx2.codes.OK:
                        self._pass_on(answer, asked)
                    else:
                        self.wfile.write(json.dumps(reply(self.path, json.loads(answer.read()))).encode())

            def _begin(self, status: int) -> None:
                self.send_response(status)
                self.end_headers()

            def _pass_on(self, answer: httpx2.Response, asked: Event) -> None:
                """Events pass one by one. A client that has left ends the exchange, and so the job."""
                for data in data_in(answer.iter_bytes()):
                    changed = event(json.loads(data), asked)
                    self.wfile.write(b"data: " + json.dumps(changed).encode() + b"\n\n")

        super().__init__(Handler)
