"""The middleware around every route: the ids on each response, the check of the bearer token, or without one of host
and origin, before anything is read, and the log lines and counters of each exchange: its request, its end, and a
refusal's reason.

It is not one of Litestar's middlewares, because those do not see a request for an unknown path or method.
Owns: the labels, which are closed sets that no client can extend, and the `refused` and `access` lines.
"""

import base64
import binascii
import hashlib
import hmac
import re
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import structlog
from litestar import Litestar
from litestar.datastructures import Headers, MutableScopeHeaders
from litestar.enums import ScopeType
from litestar.exceptions import HTTPException
from litestar.response.base import ASGIResponse
from litestar.routes import HTTPRoute
from litestar.types import HTTPScope, Message, Method, Receive, Scope, Send

from worker.apis.core.headers import correlation_id, request_id, trace_context
from worker.config.settings import Settings
from worker.errors import InternalError, Unauthorized, WorkerError
from worker.observe.counters import Counters
from worker.observe.log_lines import get_logger
from worker.observe.redaction import Secrets
from worker.server.front.state import Front
from worker.server.web.bodies import AnyRequest
from worker.server.web.pages import BROWSED_PATHS, PAGE_PATHS
from worker.server.web.refusals import NOT_HTTP, REFUSAL, Refusal, is_messages_path, send_refusal
from worker.server.web.site import Cors, Site

log = get_logger()

OPEN_PATHS = frozenset({"/health", "/v1/health", "/v1/ready", "/livez", "/readyz", "/ping"})
"""All other paths need the token, including unknown ones. The page at `/` and its files are open if they are served."""

_ROUTED_AS: dict[str, Method] = {"HEAD": "GET", "OPTIONS": "TRACE"}
"""HEAD works on every route with GET; uvicorn omits its body. OPTIONS, which Litestar would answer, is not offered."""

MAX_LOGGED_PATH = 256

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
OTHER = "other"
"""The label of a path or a method that no route has."""

CLIENT_LEFT = 499
"""The status of an exchange whose client disconnected before its answer, as nginx logs it."""


class Middleware:
    """The outermost ASGI application. Without an API key every route is open."""

    def __init__(self, app: Litestar, settings: Settings, metrics: Counters) -> None:
        self._app = app
        self._key_digest = None if settings.api_key is None else _digest(settings.api_key.encode())
        self._open_paths = OPEN_PATHS if settings.no_page else OPEN_PATHS | PAGE_PATHS
        self._exchanges = ExchangeLog(app, settings, metrics)
        self._cors = Cors(settings.cors_origin)
        advertised = urlsplit(settings.advertise_url or "").hostname or ""
        self.site = Site([socket.gethostname(), settings.host, advertised, *settings.allowed_host], self._cors)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == ScopeType.HTTP
        asked = Headers.from_scope(scope)
        correlation = scope["state"]["correlation_id"] = correlation_id(asked.get("x-correlation-id"))
        own_id = request_id(asked.get("x-request-id"))
        exchange = self._exchanges.begin(scope)

        async def send_with_ids(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableScopeHeaders(message)
                headers["X-Correlation-ID"] = correlation
                headers["X-Request-Id"] = own_id or headers.get("X-Request-Id") or correlation
                for name, value in self._cors.headers(asked).items():
                    headers.add(name, value)
            exchange.sent(message)
            await send(message)

        named = {} if own_id is None else {"request_id": own_id}
        with structlog.contextvars.bound_contextvars(correlation_id=correlation):
            try:
                if (preflight := self._cors.preflight(scope["method"], asked)) is not None:
                    await ASGIResponse(status_code=204, headers=preflight)(scope, receive, send_with_ids)
                elif (refusal := self._refusal(scope, asked)) is not None:
                    await send_refusal(scope, refusal, receive, send_with_ids)
                else:
                    await self._app(_as_routed(scope), receive, send_with_ids)
            finally:
                with structlog.contextvars.bound_contextvars(**named):
                    self._exchanges.end(exchange, scope["state"].get(REFUSAL))

    def malformed(self, correlation: str, n_bytes: int) -> None:
        """Count and log an answer of `n_bytes` to bytes that are not HTTP."""
        with structlog.contextvars.bound_contextvars(correlation_id=correlation):
            self._exchanges.end(Exchange(OTHER, OTHER, "", NOT_HTTP.status, n_bytes), NOT_HTTP)

    def _refusal(self, scope: HTTPScope, asked: Headers) -> WorkerError | None:
        path = scope["path"]
        if self._key_digest is None:
            return self.site.refusal(scope["method"], path, asked)
        # All digests have the same length, so the comparison does not reveal the token's length.
        is_known = any(hmac.compare_digest(_digest(token), self._key_digest) for token in _tokens(path, asked))
        if is_known or path in self._open_paths:
            return None
        or_key = " or 'x-api-key: <token>'" if is_messages_path(path) else ""
        return Unauthorized(f"this route needs the header 'Authorization: Bearer <token>'{or_key} with the right token")


def _tokens(path: str, asked: Headers) -> Iterator[bytes]:
    """Yield the tokens that a request has, in the forms that its path accepts. Anthropic's clients send theirs in
    x-api-key."""
    scheme, _, value = asked.get("authorization", "").partition(" ")
    match scheme.lower():
        case "bearer":
            yield value.strip().encode("latin-1")
        case "basic" if path in BROWSED_PATHS:
            yield _password(value)
    if is_messages_path(path) and "x-api-key" in asked:
        yield asked["x-api-key"].strip().encode("latin-1")


def _as_routed(scope: HTTPScope) -> HTTPScope:
    routed = scope.copy()
    scope["state"]["method"] = scope["method"]  # for the text of a refusal
    routed["method"] = _ROUTED_AS.get(scope["method"], scope["method"])
    return routed


def _password(credentials: str) -> bytes:
    """The password of RFC 7617 credentials of any user. It is empty, which no token is, if they are malformed."""
    try:
        return base64.b64decode(credentials.strip(), validate=True).partition(b":")[2]
    except (binascii.Error, ValueError):
        return b""


def _digest(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()


@contextmanager
def counted(front: Front, request: AnyRequest, operation: str | None = None) -> Iterator[None]:
    """Wrap job creation: a refusal before there is a job counts as a rejected request. `operation` is that of
    Traces.refused."""
    began_s = time.monotonic()
    try:
        yield
    except (WorkerError, HTTPException) as error:
        code = error.code if isinstance(error, WorkerError) else str(error.status_code)
        scope = request.scope
        front.refused(trace_context(scope["headers"]), scope["state"]["correlation_id"], began_s, code, operation)
        raise


# ── the log and the counters ─────────────────────────────────────────────────────────────────────


@dataclass(slots=True)
class Exchange:
    """A request, and what was sent of its answer."""

    method: str
    route: str
    path: str
    status: int = CLIENT_LEFT
    n_bytes: int = 0
    began_s: float = field(default_factory=time.monotonic)

    def sent(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
        elif message["type"] == "http.response.body" and self.method != "HEAD":
            self.n_bytes += len(message.get("body", b""))


class ExchangeLog:
    """Counts and logs exchanges."""

    def __init__(self, app: Litestar, settings: Settings, metrics: Counters) -> None:
        self._routes = Routes(app)
        self._metrics = metrics
        self._secrets = Secrets(settings.api_key)
        self._has_access_log = settings.access_log
        metrics.routes(self._routes.offered())

    def begin(self, scope: HTTPScope) -> Exchange:
        method = scope["method"] if scope["method"] in METHODS else OTHER
        return Exchange(method, self._routes.label(scope["path"]), scope["path"])

    def end(self, exchange: Exchange, refusal: Refusal | None) -> None:
        """Count and log an exchange that is over."""
        method, route = exchange.method, exchange.route
        self._metrics.answered(route=route, method=method, status=exchange.status)
        if refusal is not None:
            self._metrics.refused(refusal.code)
        # An internal error was logged where it was caught, with its traceback.
        if refusal is not None and refusal.code != InternalError.code:
            log.info(
                "refused",
                method=method,
                route=route,
                status=refusal.status,
                code=refusal.code,
                reason=refusal.reason,
            )
        if self._has_access_log:
            log.info(
                "access",
                method=method,
                # The path has no query and is masked before it is cut: a job_id in it may be the API key.
                path=self._secrets.mask_known(exchange.path)[:MAX_LOGGED_PATH],
                status=exchange.status,
                bytes=exchange.n_bytes,
                ms=round((time.monotonic() - exchange.began_s) * 1000, 1),
            )


class Routes:
    """The routes of an application by the templates of their paths."""

    def __init__(self, app: Litestar) -> None:
        self._routes = {route.path_format: route for route in app.routes if isinstance(route, HTTPRoute)}
        self._templates = {re.compile(re.sub(r"\{\w+\}", "[^/]+", path)): path for path in self._routes if "{" in path}

    def label(self, path: str) -> str:
        """The template of the path's route: `/cancel/{job_id}` for `/cancel/7`."""
        bare = path.rstrip("/") or "/"
        if bare in self._routes:
            return bare
        return next((label for template, label in self._templates.items() if template.fullmatch(bare)), OTHER)

    def offered(self) -> Iterator[tuple[str, str, int]]:
        """Yield the route, method and success status of every handler; HEAD works on every route with GET."""
        for path, route in self._routes.items():
            for handler in route.route_handlers:
                for method in handler.http_methods - {"OPTIONS"}:
                    yield path, method, handler.status_code
                    if method == "GET":
                        yield path, "HEAD", handler.status_code
