"""The application: all routes of docs/protocol.md#http, and those of health, metrics, cancel and shutdown in full.

No rule of the worker is in this module: decode, call the front, encode.
"""

import re

from litestar import Litestar, Response, get, post
from litestar.handlers import HTTPRouteHandler

from worker import __version__
from worker.apis.core.bodies import CancelBody, shutdown_body
from worker.apis.pool.execute import parse_cancel
from worker.server.front.admission import Phase
from worker.server.front.state import Front
from worker.server.web.api import Api, agent_routes, api_routes
from worker.server.web.bodies import AnyRequest, Bodies
from worker.server.web.middleware import Middleware
from worker.server.web.pages import document_of, document_routes, page_routes, plain_route
from worker.server.web.refusals import json_answer, refusal_of, text_answer
from worker.server.web.streaming import execute_route
from worker.wire.encoding import encode_json


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
