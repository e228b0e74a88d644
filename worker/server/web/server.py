"""The listening socket and uvicorn on it, each for as long as a `with` lasts. serve.py owns signals and exit codes."""

import errno
import ipaddress
import os
import resource
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any, cast

import uvicorn

from worker.errors import BindFailed, StartupError
from worker.server.front.admission import Phase
from worker.server.front.state import Front
from worker.server.front.supervision import running, supervised
from worker.server.web.app import create_app
from worker.server.web.connection import BoundedConnection
from worker.server.web.connection_limits import ConnectionLimits, affordable_connections

WANTED_OPEN_FILES = 4096
"""1,024 connections, the engine and the log need more than the usual soft limit of 1,024."""

MIN_OPEN_FILES = 64
"""The engine, the log and the connections reserved for health need about 40. libuv aborts if it gets none itself."""

UNUSED_TIMEOUT_S = 620
"""A connection may stay unused between two requests for this long.

A request is lost if the worker closes the connection while it is sent, so the client is to close first. httpx gives up
an unused connection after 5 s, as long as uvicorn's default, nginx after 60, Go and reqwest after 90, Google's load
balancers after 600. If there are too many connections, unused ones make room (connection_limits.py).
"""


@contextmanager
def bound_socket(host: str, port: int) -> Iterator[socket.socket]:
    """A listening socket; requests wait in its backlog until uvicorn takes them. `::` means every address, including
    IPv4 if the system supports it. Raises: BindFailed."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        is_every = family == socket.AF_INET6 and ipaddress.ip_address(address[0]).is_unspecified
        is_dual = is_every and socket.has_dualstack_ipv6()
        sock = socket.create_server(address[:2], family=family, backlog=2048, dualstack_ipv6=is_dual)
    except (OSError, UnicodeError) as error:
        place = _authority(host, port)
        raise BindFailed(f"Failed to bind to {place}: {_reason(error)}; {_way_out(error)}") from error
    with sock:
        yield sock


class _Server(uvicorn.Server):
    is_wanted = True

    def __init__(self, config: uvicorn.Config, limits: ConnectionLimits, front: Front) -> None:
        super().__init__(config)
        self.server_state = limits
        self._front = front

    async def on_tick(self, counter: int) -> bool:
        """Let a draining worker's answers close their connections, before its end closes them without a word."""
        if self._front.phase is Phase.DRAINING and not self.config.encoded_headers:
            self.config.encoded_headers = [(b"connection", b"close")]
            counter = 0  # uvicorn makes the headers of all answers anew
        return await super().on_tick(counter)

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Raises: RuntimeError if uvicorn ends by itself, because clients can no longer reach the worker."""
        await super().serve(sockets)
        if self.is_wanted:
            raise RuntimeError("uvicorn has stopped serving")

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to serve.py: uvicorn would close the listener, but a draining worker still answers."""
        yield


@asynccontextmanager
async def served(front: Front, sock: socket.socket) -> AsyncIterator[None]:
    """Serve HTTP on the socket until the block ends. If the server ends earlier, the front gets the error."""
    app = create_app(front)
    # A client that sends somewhat more than what is accepted is to learn why it is refused.
    max_dropped_bytes = 2 * max(front.settings.max_body_bytes, front.settings.max_whole_bytes)
    config = uvicorn.Config(
        cast(Any, app),  # it has Litestar's types, and uvicorn expects its own
        http=partial(BoundedConnection, app.malformed, max_dropped_bytes),  # type: ignore[arg-type] # it is only ever called
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=UNUSED_TIMEOUT_S,
        timeout_graceful_shutdown=1,
    )
    n_open_files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    limits = ConnectionLimits(affordable_connections(n_open_files), front.settings.max_connections_per_address)
    server = _Server(config, limits, front)
    serving = supervised(server.serve([sock]), front.on_fatal, "the web server")
    try:
        async with running(app.site.add_full_name(socket.gethostname())):
            yield
    finally:
        server.is_wanted = False
        server.should_exit = True
        await serving


def allow_open_files(n_files: int = WANTED_OPEN_FILES) -> None:
    """Raise the soft limit as far as the hard limit allows; a lower limit only means fewer connections. Raises:
    StartupError if it is too low to start."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    goal = n_files if hard == resource.RLIM_INFINITY else min(n_files, hard)
    if soft != resource.RLIM_INFINITY and soft < goal:
        resource.setrlimit(resource.RLIMIT_NOFILE, (goal, hard))
    if hard != resource.RLIM_INFINITY and hard < MIN_OPEN_FILES:
        raise StartupError(
            f"the limit on open files is {hard}, and the worker needs at least {MIN_OPEN_FILES}: raise `ulimit -n`"
        )


def url_of(sock: socket.socket) -> str:
    host, port = sock.getsockname()[:2]
    return f"http://{_authority(host, port)}"


def _authority(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _way_out(error: OSError | UnicodeError) -> str:
    match error:
        case OSError(errno=errno.EADDRINUSE):
            return "stop the process that listens there, or choose another --port (0 picks a free one)"
        case OSError(errno=errno.EACCES):
            return "choose a --port above 1023"
    return "choose another --host: an address of this machine, or 0.0.0.0 for all of them"


def _reason(error: OSError | UnicodeError) -> str:
    match error:
        case socket.gaierror():
            return str(error.strerror)
        case OSError(errno=int(code)):
            return os.strerror(code)  # create_server's text names the address once more
    return str(error)
