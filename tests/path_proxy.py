"""A proxy that serves a worker below a path of its own, as those in front of several workers do."""

import re
import socket
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tests.worker_process import PATIENCE_S


@contextmanager
def below_a_path(path: str, port: int) -> Iterator[str]:
    """The address at which the proxy listens. `path` is taken off the requests that begin with it."""
    begins = re.compile(rb"^([A-Z]+) " + re.escape(path.encode()) + rb"(?=/)")

    class Exchange(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            with socket.create_connection(("127.0.0.1", port), PATIENCE_S) as worker:
                back = threading.Thread(target=_copy, args=(worker, self.connection))
                back.start()
                # A browser sends the head of a request in one piece, after it has read the answer to the one before.
                while data := self.connection.recv(65536):
                    worker.sendall(begins.sub(rb"\1 ", data))
                worker.shutdown(socket.SHUT_WR)
                back.join(PATIENCE_S)

    class Proxy(socketserver.ThreadingTCPServer):
        daemon_threads = True

    with Proxy(("127.0.0.1", 0), Exchange) as proxy:
        serving = threading.Thread(target=proxy.serve_forever)
        serving.start()
        try:
            yield f"http://127.0.0.1:{proxy.server_address[1]}"
        finally:
            proxy.shutdown()
            serving.join(PATIENCE_S)


def _copy(source: socket.socket, target: socket.socket) -> None:
    try:
        while data := source.recv(65536):
            target.sendall(data)
    except OSError:
        pass  # whoever has left has left
