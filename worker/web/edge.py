"""The edge of every route: the ids on each response, the check of the bearer token, or without one of host and origin,
before anything is read, and the log lines and counters of each exchange: its request, its end, and a refusal's reason.

Owns: the labels, which are closed sets that no client can extend, and the `refused` and `access` lines.
"""

import base64
import binascii
import hashlib
import hmac
import re
import socket
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import structlog
from litestar import Litestar
from litestar.datastructures import MutableScopeHeaders
from litestar.enums import ScopeType
from litestar.exceptions import HTTPException
from litestar.routes import HTTPRoute
from litestar.types import HTTPScope, Message, Method, Receive, Scope, Send

from worker.config.settings import Settings
from worker.errors import InternalError, Unauthorized, WorkerError
from worker.front.state import Front
from worker.observe.counters import Counters
from worker.observe.log_lines import get_logger
from worker.observe.redaction import Secrets
from worker.protocol.headers import correlation_id, request_id, trace_context
from worker.web.bodies import AnyRequest
from worker.web.browsed import BROWSED_PATHS
from worker.web.chat_page import PAGE_PATHS
from worker.web.cors import Cors
from worker.web.refusals import NOT_HTTP, REFUSAL, Refusal, is_messages_path, send_refusal, send_whole
from worker.web.site import Site

log = get_logger()

CORRELATION_HEADER = b"x-correlation-id"
REQUEST_ID_HEADER = b"x-request-id"
API_KEY_HEADER = b"x-api-key"
"""Anthropic's clients send their token in it."""

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


class Edge:
    """The outermost ASGI application. Without an API key every route is open."""

    def __init__(self, app: Litestar, settings: Settings, metrics: Counters) -> None:
        self._app = app
        self._key_digest = None if settings.api_key is None else _digest(settings.api_key.encode())
        self._open_paths = OPEN_PATHS if settings.no_page else OPEN_PATHS | PAGE_PATHS
        self._exchange_log = ExchangeLog(app, settings, metrics)
        self._cors = Cors(settings.cors_origin)
        advertised = urlsplit(settings.advertise_url or "").hostname or ""
        self.site = Site([socket.gethostname(), settings.host, advertised, *settings.allowed_host], self._cors)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == ScopeType.HTTP
        correlation = correlation_id(_header(scope["headers"], CORRELATION_HEADER))
        scope["state"]["correlation_id"] = correlation
        own_id = request_id(_header(scope["headers"], REQUEST_ID_HEADER))
        exchange = self._exchange_log.begin(scope)
        cors_headers = self._cors.headers(scope["headers"])

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableScopeHeaders(message)
                headers["X-Correlation-ID"] = correlation
                headers["X-Request-Id"] = own_id or headers.get("X-Request-Id") or correlation
                message["headers"] = [*message["headers"], *cors_headers]
            exchange.sent(message)
            await send(message)

        named = {} if own_id is None else {"request_id": own_id}
        with structlog.contextvars.bound_contextvars(correlation_id=correlation):
            try:
                if (preflight := self._cors.preflight(scope["method"], scope["headers"])) is not None:
                    await send_whole(send_with_id, 204, preflight)
                elif (refusal := self._refusal(scope)) is not None:
                    await send_refusal(scope, refusal, send_with_id)
                else:
                    await self._app(_as_routed(scope), receive, send_with_id)
            finally:
                with structlog.contextvars.bound_contextvars(**named):
                    exchange.end()

    def malformed(self, correlation: str, n_bytes: int) -> None:
        """Count and log an answer of `n_bytes` to bytes that are not HTTP."""
        with structlog.contextvars.bound_contextvars(correlation_id=correlation):
            self._exchange_log.malformed(n_bytes)

    def _refusal(self, scope: HTTPScope) -> WorkerError | None:
        if self._key_digest is None:
            return self.site.refusal(scope["method"], scope["path"], list(scope["headers"]))
        # All digests have the same length, so the comparison does not reveal the token's length.
        is_known = any(hmac.compare_digest(_digest(token), self._key_digest) for token in _tokens(scope))
        if is_known or scope["path"] in self._open_paths:
            return None
        or_key = " or 'x-api-key: <token>'" if is_messages_path(scope["path"]) else ""
        return Unauthorized(f"this route needs the header 'Authorization: Bearer <token>'{or_key} with the right token")


def _tokens(scope: Scope) -> Iterator[bytes]:
    """Yield the tokens that a request has, in the forms that its path accepts."""
    scheme, _, value = (_header(scope["headers"], b"authorization") or "").partition(" ")
    match scheme.lower():
        case "bearer":
            yield value.strip().encode("latin-1")
        case "basic" if scope["path"] in BROWSED_PATHS:
            yield _password(value)
    if is_messages_path(scope["path"]) and (key := _header(scope["headers"], API_KEY_HEADER)) is not None:
        yield key.strip().encode("latin-1")


def _as_routed(scope: Scope) -> Scope:
    assert scope["type"] == ScopeType.HTTP
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


def _header(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> str | None:
    return next((value.decode("latin-1") for key, value in headers if key == name), None)


# ── the log and the counters ─────────────────────────────────────────────────────────────────────


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


class Routes:
    """The routes of an application by the templates of their paths."""

    def __init__(self, app: Litestar) -> None:
        self._routes = [route for route in app.routes if isinstance(route, HTTPRoute)]
        paths = {route.path_format for route in self._routes}
        self._plain = {path for path in paths if "{" not in path}
        self._templates = {re.compile(re.sub(r"\{\w+\}", "[^/]+", path)): path for path in paths - self._plain}

    def label(self, path: str) -> str:
        """The template of the path's route: `/cancel/{job_id}` for `/cancel/7`."""
        bare = path.rstrip("/") or "/"
        if bare in self._plain:
            return bare
        return next((label for template, label in self._templates.items() if template.fullmatch(bare)), OTHER)

    def offered(self) -> Iterator[tuple[str, str, int]]:
        """Yield the route, method and success status of every handler; HEAD works on every route with GET."""
        for route in self._routes:
            for handler in route.route_handlers:
                for method in handler.http_methods - {"OPTIONS"}:
                    yield route.path_format, method, handler.status_code
                    if method == "GET":
                        yield route.path_format, "HEAD", handler.status_code


class ExchangeLog:
    """Count and log exchanges; `begin` one when its request has arrived."""

    def __init__(self, app: Litestar, settings: Settings, metrics: Counters) -> None:
        self.routes = Routes(app)
        self.metrics = metrics
        self.secrets = Secrets(settings.api_key)
        self.has_access_log = settings.access_log
        metrics.routes(self.routes.offered())

    def begin(self, scope: Scope) -> "Exchange":
        return Exchange(self, scope)

    def malformed(self, n_bytes: int) -> None:
        """Count and log an exchange without a request: the bytes were not HTTP, and the 400 had `n_bytes`."""
        self.enter(OTHER, OTHER, NOT_HTTP.status, NOT_HTTP, path="", n_bytes=n_bytes, seconds=0.0)

    def enter(
        self,
        method: str,
        route: str,
        status: int,
        refusal: Refusal | None,
        *,
        path: str,
        n_bytes: int,
        seconds: float,
    ) -> None:
        """Count and log an exchange that is over."""
        self.metrics.answered(route=route, method=method, status=status)
        if refusal is not None:
            self._refused(method, route, refusal)
        if self.has_access_log:
            log.info(
                "access",
                method=method,
                # The path has no query and is masked before it is cut: a job_id in it may be the API key.
                path=self.secrets.mask_known(path)[:MAX_LOGGED_PATH],
                status=status,
                bytes=n_bytes,
                ms=round(seconds * 1000, 1),
            )

    def _refused(self, method: str, route: str, refusal: Refusal) -> None:
        self.metrics.refused(refusal.code)
        if refusal.code == InternalError.code:
            return  # it was logged where it was caught, with its traceback
        log.info(
            "refused",
            method=method,
            route=route,
            status=refusal.status,
            code=refusal.code,
            reason=refusal.reason,
        )


class Exchange:
    """One exchange. Call `sent` for every message that is sent, and `end` at its end."""

    def __init__(self, exchange_log: ExchangeLog, scope: Scope) -> None:
        assert scope["type"] == ScopeType.HTTP
        self._exchange_log = exchange_log
        self._scope = scope
        self._method = scope["method"] if scope["method"] in METHODS else OTHER
        self._route = exchange_log.routes.label(scope["path"])
        self._status = CLIENT_LEFT
        self._n_bytes = 0
        self._began_s = time.monotonic()

    def sent(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._status = message["status"]
        elif message["type"] == "http.response.body" and self._method != "HEAD":
            self._n_bytes += len(message.get("body", b""))

    def end(self) -> None:
        self._exchange_log.enter(
            self._method,
            self._route,
            self._status,
            self._scope["state"].get(REFUSAL),
            path=self._scope["path"],
            n_bytes=self._n_bytes,
            seconds=time.monotonic() - self._began_s,
        )
