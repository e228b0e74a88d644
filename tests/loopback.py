"""An HTTP server on a thread of the test's own process, for as long as a `with` lasts."""

import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

_POLL_S = 0.01
"""How often the server looks whether it is to end; the library's half a second is what every test would wait."""


class QuietHandler(BaseHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """The test's output is not for its lines."""


class LoopbackServer:
    """Once the `with` has ended, so have the server's thread and all that it was answering."""

    def __init__(self, handler: type[BaseHTTPRequestHandler]) -> None:
        self._server = _Server(("127.0.0.1", 0), handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(_POLL_S,))

    @property
    def port(self) -> int:
        return self._server.server_port

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = False  # server_close waits for them

    def handle_error(self, request: Any, client_address: Any) -> None:
        # A client that went away is what many tests are about.
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)
