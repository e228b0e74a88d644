"""The listening socket and uvicorn on it, each for as long as a `with` lasts; and the application with all its routes.

No rule of the worker is in this module: decode, call the front, encode. serve.py owns signals and exit codes.
"""

import errno
import ipaddress
import os
import re
import resource
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any, cast

import uvicorn
from litestar import Litestar, Response, get, post
from litestar.handlers import HTTPRouteHandler

from worker import __version__
from worker.apis.core.bodies import CancelBody, shutdown_body
from worker.apis.pool.execute import parse_cancel
from worker.errors import BindFailed, StartupError
from worker.server.front.admission import Phase
from worker.server.front.state import Front
from worker.server.front.supervision import running, supervised
from worker.server.web.api import Api, agent_routes, api_routes
from worker.server.web.bodies import AnyRequest, Bodies
from worker.server.web.connection import BoundedConnection
from worker.server.web.connection_limits import ConnectionLimits, affordable_connections
from worker.server.web.middleware import Middleware
from worker.server.web.pages import document_of, document_routes, page_routes, plain_route
from worker.server.web.refusals import json_answer, refusal_of, text_answer
from worker.server.web.streaming import execute_route
from worker.wire.encoding import encode_json

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


def create_app(front: Front) -> Middleware:
    handlers = described_routes(front)
    handlers += document_routes(document_of(front.settings))
    handlers += [] if front.settings.no_page else page_routes()
    route_list = _route_list(handlers)

    def refused(request: AnyRequest, error: Exception) -> Response[bytes]:
        return refusal_of(request.scope, error, route_list)

    app = Litestar(
        route_handlers=handlers,
        exception_handlers={Exception: refused},
        openapi_config=None,
        request_max_body_size=None,  # the routes have limits of their own (large_bodies.py)
        logging_config=None,
    )
    return Middleware(app, front.settings, front.metrics)


def described_routes(front: Front) -> list[HTTPRouteHandler]:
    """The routes that the document describes, which are all but those of the document and the pages."""
    bodies = Bodies(front.settings)
    handlers = [*_state_routes(front), execute_route(front, bodies), *_control_routes(front, bodies)]
    api = Api(front, bodies)
    probes = [plain_route("/version", lambda: _json({"version": __version__})), _ready_route(front, "/ping", "pong")]
    return [*handlers, *api_routes(api), *probes, *agent_routes(api)]


def _state_routes(front: Front) -> list[HTTPRouteHandler]:
    @get("/metrics", sync_to_thread=False)
    def metrics(request: AnyRequest) -> Response[bytes]:
        body, content_type = front.scrape(request.headers.get("accept"))
        return Response(body, headers={"content-type": content_type})

    return [
        # The cached state, with status 503 only before the worker was ready for the first time.
        plain_route(
            ["/health", "/v1/health"], lambda: _json(front.health(), 503 if front.phase is Phase.STARTING else 200)
        ),
        plain_route("/v1/ready", lambda: _json(front.readiness())),
        _ready_route(front, "/readyz", "ready"),
        # 200 shows that the front's event loop runs. A worker that is about to exit is not alive.
        plain_route("/livez", lambda: _probe(is_ok=front.phase is not Phase.FAILED, yes="alive", no="failed")),
        metrics,
    ]


def _ready_route(front: Front, path: str, word: str) -> HTTPRouteHandler:
    """200 if the worker takes jobs; the length of the queue does not matter."""
    return plain_route(path, lambda: _probe(is_ok=front.phase is Phase.READY, yes=word, no="not ready"))


def _control_routes(front: Front, bodies: Bodies) -> list[HTTPRouteHandler]:
    @post("/cancel", status_code=202)
    async def cancel(request: AnyRequest) -> Response[bytes]:
        """End a job; idempotent, also for unknown ids."""
        return cancelled((await bodies.decoded(request, parse_cancel)).job_id)

    @post("/cancel/{job_id:str}", status_code=202, sync_to_thread=False)
    def cancel_by_path(job_id: str) -> Response[bytes]:
        return cancelled(job_id)

    def cancelled(job_id: str) -> Response[bytes]:
        front.cancel(job_id)
        return _json(CancelBody(job_id=job_id), 202)

    @post(["/shutdown", "/v1/shutdown", "/v1/admin/shutdown"], status_code=202, sync_to_thread=False)
    def shutdown() -> Response[bytes]:
        """Drain and exit, as SIGTERM does."""
        front.drain_requested.set()
        front.drain()
        return _json(shutdown_body(front.settings.shutdown_timeout_sec), 202)

    return [cancel, cancel_by_path, shutdown]


def _route_list(handlers: list[HTTPRouteHandler]) -> str:
    """The answer to an unknown path, which lists all routes."""
    lines = [f"{method} {path}" for handler in handlers for method, path in places(handler)]
    return "\n".join(["There is no such route. This worker has:", *lines, ""])


def places(handler: HTTPRouteHandler) -> list[tuple[str, str]]:
    """The method and path of every route of a handler, parameters as {name}."""
    paths = sorted(re.sub(r":\w+}", "}", path) for path in handler.paths)
    return [(method, path) for path in paths for method in sorted(handler.http_methods)]


def _probe(*, is_ok: bool, yes: str, no: str) -> Response[bytes]:
    return text_answer(yes if is_ok else no, 200 if is_ok else 503)


def _json(body: object, status: int = 200) -> Response[bytes]:
    return json_answer(encode_json(body), status)
