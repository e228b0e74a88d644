"""An HTTP server on a thread of the test's own process, for as long as a `with` lasts."""

import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

HOST = "127.0.0.1"
_POLL_S = 0.01
"""The interval at which the server looks whether it is to end; the library's half a second would delay every test."""


class QuietHandler(BaseHTTPRequestHandler):
    def answer(self, status: int, headers: Mapping[str, str] | None = None, body: bytes = b"") -> None:
        """Send the head, and the body unless HEAD was asked for."""
        self.send_response(status)
        for name, value in {**(headers or {}), "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """The test's output is not for its lines."""


class LoopbackServer:
    """The server's thread and all that it was answering end with the `with`."""

    def __init__(self, handler: type[BaseHTTPRequestHandler], port: int = 0) -> None:
        self._server = _Server((HOST, port), handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(_POLL_S,))

    @property
    def port(self) -> int:
        return self._server.server_port

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

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


@contextmanager
def reserved_port() -> Iterator[tuple[int, Callable[[], None]]]:
    """A port that refuses connections because it is bound and nobody listens, and a way to let go of it."""
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind((HOST, 0))
        yield holder.getsockname()[1], holder.close
