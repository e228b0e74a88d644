"""The means of a site that attacks: its pages, its name that comes to mean another machine, and a browser for it."""

import socket
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import ip_address
from pathlib import Path

import psutil

from tests.chromium import Browser, Tab, chromium
from tests.worker_process import PATIENCE_S

EVIL, LAN, PUBLIC = "evil.example", "gpu.local", "llm.example.org"
"""The attacker's name; a worker's in its network, to which browsers send no Sec-Fetch-Site; and one behind TLS."""


def own_addresses() -> list[str]:
    """The addresses of this machine that others could reach, and one of the loopback beside the usual one."""
    found = [one.address for named in psutil.net_if_addrs().values() for one in named if one.family == socket.AF_INET]
    return ["127.0.0.2", *(one for one in found if not ip_address(one).is_loopback)]


@contextmanager
def browsing(profile: Path) -> Iterator[Browser]:
    """A browser for which all names of this module and the machine's own are this machine."""
    here = [EVIL, LAN, PUBLIC, "*.example.net", "localhost", socket.gethostname()]
    rules = [f"MAP {name} 127.0.0.1" for name in here]
    rules += [
        "MAP * ~NOTFOUND",
        "EXCLUDE 127.0.0.1",
        "EXCLUDE ::1",
        *(f"EXCLUDE {address}" for address in own_addresses()),
    ]
    flags = (f"--host-resolver-rules={','.join(rules)}", "--ignore-certificate-errors")
    with Browser(chromium(), profile, *flags) as browser:
        yield browser


def check_page_works(tab: Tab) -> None:
    """The worker's page shows its state, and a question is answered."""
    tab.until("document.querySelector('#state')?.textContent === 'ready'")
    tab.fill("#prompt", "Hello")
    tab.press("Enter")
    tab.until("document.querySelector('.turn.assistant .usage')?.innerText.includes('tokens')")


@contextmanager
def serving_pages() -> Iterator[int]:
    """The port of a site whose every page is empty. It has no icon."""

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = b"<!doctype html><link rel=icon href=data:,><title>evil</title><body><p>Hello</p></body>"
            self.send_response(200)
            self.send_header("content-type", "text/html")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Page) as server, _serving(server):
        yield server.server_port


class Rebound(socketserver.ThreadingTCPServer):
    """An address behind which the machine changes, as it does when a name comes to have another address."""

    daemon_threads = True

    def __init__(self, target: int) -> None:
        super().__init__(("127.0.0.1", 0), _Forwarding)
        self.target = target
        """The port to which the next connections go."""


class _Forwarding(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        assert isinstance(self.server, Rebound)
        with socket.create_connection(("127.0.0.1", self.server.target), PATIENCE_S) as target:
            back = threading.Thread(target=_copied, args=(target, self.connection))
            back.start()
            _copied(self.connection, target)
            back.join(PATIENCE_S)


def _copied(source: socket.socket, target: socket.socket) -> None:
    """Copy to the end, which is then the other's end, too."""
    try:
        while data := source.recv(65536):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        pass  # one of the two has left


@contextmanager
def rebinding(target: int) -> Iterator[Rebound]:
    with Rebound(target) as server, _serving(server):
        yield server


@contextmanager
def _serving(server: socketserver.BaseServer) -> Iterator[None]:
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join(PATIENCE_S)
