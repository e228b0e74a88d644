"""The routes of docs/protocol.md#http: decode, call the front, encode; and the document and page that describe them.

No rule of the worker is in this module. The worker serves all files of the page itself, so that the page works without
other servers. Runs on the front's event loop, and waits for nothing but the client.
"""

import re
import secrets
from functools import partial

import msgspec
from litestar import Litestar, Response, get, post
from litestar.exceptions import HTTPException
from litestar.handlers import HTTPRouteHandler

from worker import __version__
from worker.config.settings import Settings
from worker.front.health import Phase
from worker.front.state import Front
from worker.protocol.bodies import CancelBody, shutdown_body
from worker.protocol.execute import parse_cancel
from worker.web.agents import agent_routes
from worker.web.bodies import AnyRequest, Bodies
from worker.web.browsed import browsed, page_file
from worker.web.chat_page import page_routes
from worker.web.edge import Edge
from worker.web.execute import execute_route
from worker.web.openai import Api, openai_routes
from worker.web.refusals import json_answer, note_refusal, refusal_of, text_answer
from worker.wire.encoding import encode_json

MEDIA_TYPE = "application/vnd.oai.openapi+json"
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'nonce-{nonce}' "
    "'sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=' 'sha256-QMIg+bpjm3JdElJ388KYke01izlUW0UoNOeKjpMxdgc='; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""The digests belong to a style element that the bundle creates before it knows the nonce: empty, then full. They
change with the bundle."""


def create_app(front: Front) -> Edge:
    """The whole HTTP side of the worker as one ASGI application."""
    handlers = described_routes(front)
    handlers += _document_routes(document_of(front.settings))
    handlers += [] if front.settings.no_page else page_routes()
    app = Litestar(
        route_handlers=handlers,
        exception_handlers={
            HTTPException: partial(_refused, route_list=_route_list(handlers)),
            Exception: _refused,
        },
        openapi_config=None,
        request_max_body_size=None,  # the routes have limits of their own (large_bodies.py)
        logging_config=None,
    )
    return Edge(app, front.settings, front.metrics)


# ── routes ───────────────────────────────────────────────────────────────────────────────────────


def described_routes(front: Front) -> list[HTTPRouteHandler]:
    """The routes that the document describes, which are all but those of the document and the pages."""
    bodies = Bodies(front.settings)
    handlers = [*_state_routes(front), execute_route(front, bodies), *_control_routes(front, bodies)]
    return [*handlers, *openai_routes(front, bodies), *agent_routes(Api(front, bodies))]


def _state_routes(front: Front) -> list[HTTPRouteHandler]:
    @get(["/health", "/v1/health"], sync_to_thread=False)
    def health() -> Response[bytes]:
        """The cached state, with status 503 only before the worker was ready for the first time."""
        return _json(front.health(), 503 if front.phase is Phase.STARTING else 200)

    @get("/v1/ready", sync_to_thread=False)
    def ready() -> Response[bytes]:
        return _json(front.readiness())

    @get("/readyz", sync_to_thread=False)
    def readyz() -> Response[bytes]:
        """200 if the worker takes jobs; the length of the queue does not matter."""
        return text_answer(
            "ready" if front.phase is Phase.READY else "not ready", 200 if front.phase is Phase.READY else 503
        )

    @get("/livez", sync_to_thread=False)
    def livez() -> Response[bytes]:
        """200 shows that the front's event loop runs. A worker that is about to exit is not alive."""
        is_live = front.phase is not Phase.FAILED
        return text_answer("alive" if is_live else "failed", 200 if is_live else 503)

    @get("/metrics", sync_to_thread=False)
    def metrics(request: AnyRequest) -> Response[bytes]:
        body, content_type = front.scrape(request.headers.get("accept"))
        return Response(body, headers={"content-type": content_type})

    return [health, ready, readyz, livez, metrics]


def _control_routes(front: Front, bodies: Bodies) -> list[HTTPRouteHandler]:
    @post("/cancel", status_code=202)
    async def cancel(request: AnyRequest) -> Response[bytes]:
        """End a job; idempotent, also for unknown ids."""
        return _cancel(front, (await bodies.decoded(request, parse_cancel)).job_id)

    @post("/cancel/{job_id:str}", status_code=202, sync_to_thread=False)
    def cancel_by_path(job_id: str) -> Response[bytes]:
        return _cancel(front, job_id)

    @post(
        ["/shutdown", "/v1/shutdown", "/v1/admin/shutdown"],
        status_code=202,
        sync_to_thread=False,
    )
    def shutdown() -> Response[bytes]:
        """Drain and exit, as SIGTERM does."""
        front.drain_requested.set()
        front.drain()
        return _json(shutdown_body(front.settings.shutdown_timeout_sec), 202)

    return [cancel, cancel_by_path, shutdown]


def _cancel(front: Front, job_id: str) -> Response[bytes]:
    front.cancel(job_id)
    return _json(CancelBody(job_id=job_id), 202)


def _route_list(handlers: list[HTTPRouteHandler]) -> str:
    """The answer to an unknown path, which lists all routes."""
    lines = [f"{method} {path}" for handler in handlers for method, path in places(handler)]
    return "\n".join(["There is no such route. This worker has:", *lines, ""])


def places(handler: HTTPRouteHandler) -> list[tuple[str, str]]:
    """The method and path of every route of a handler, parameters as {name}."""
    paths = sorted(re.sub(r":\w+}", "}", path) for path in handler.paths)
    return [(method, path) for path in paths for method in sorted(handler.http_methods)]


# ── the document and its page ────────────────────────────────────────────────────────────────────


def document_of(settings: Settings) -> bytes:
    """The OpenAPI document of page/openapi.json, with what depends on the worker's settings."""
    document = msgspec.json.decode(page_file("openapi.json"))
    document["info"]["version"] = __version__
    # Without a token the header has no effect, and clients may send it.
    document["security"] = [{"token": []}] if settings.api_key is not None else [{}, {"token": []}]
    fields = document["components"]["schemas"]["ExecuteRequest"]["properties"]
    fields["prompt"]["maxLength"] = settings.max_prompt_chars
    fields["max_tokens"]["maximum"] = fields["min_tokens"]["maximum"] = settings.execute_tokens_out
    return encode_json(document)


def _document_routes(document: bytes) -> list[HTTPRouteHandler]:
    """The routes of the document, the page, and the page's scripts."""

    @get(["/openapi/openapi.json", "/openapi", "/openapi.json"], sync_to_thread=False)
    def openapi() -> Response[bytes]:
        return Response(document, headers={"content-type": MEDIA_TYPE})

    @get("/docs", sync_to_thread=False)
    def page(request: AnyRequest) -> Response[bytes]:
        nonce = secrets.token_urlsafe(16)
        # In a script element only "<" can end the text, and in JSON it occurs only in strings.
        embedded = document.replace(b"<", rb"\u003c")
        # The path is relative, because a proxy may serve the worker below a path of its own.
        prefix = b"" if request.scope["raw_path"].endswith(b"/") else b"docs/"
        head = page_file("page.html").replace(b"{nonce}", nonce.encode()).replace(b"{prefix}", prefix)
        body = head.replace(b"{document}", embedded)
        return browsed(body, "text/html", {"content-security-policy": _POLICY.format(nonce=nonce)})

    @get("/docs/page.js", sync_to_thread=False)
    def script() -> Response[bytes]:
        return browsed(page_file("page.js"), "text/javascript", {})

    @get("/docs/redoc.standalone.js", sync_to_thread=False)
    def redoc() -> Response[bytes]:
        return browsed(page_file("redoc.standalone.js"), "text/javascript", {"cache-control": "private, max-age=3600"})

    return [openapi, page, script, redoc]


# ── answers ──────────────────────────────────────────────────────────────────────────────────────


def _refused(request: AnyRequest, error: Exception, route_list: str = "") -> Response[bytes]:
    """Litestar's exception handler, which notes the refusal for the log and the counters."""
    note_refusal(request.scope, error)
    return refusal_of(request, error, route_list)


def _json(body: msgspec.Struct, status: int = 200) -> Response[bytes]:
    return json_answer(encode_json(body), status)
