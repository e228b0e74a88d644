"""The middleware around every route: the ids on each response; before anything is read the check of the bearer token,
or without one of the host and of the page that asks (docs/security.md#web-pages); and the log lines and counters of
each exchange: its request, its end, and a refusal's reason.

It is not one of Litestar's middlewares, because those do not see a request for an unknown path or method.
Owns: the labels, which are closed sets that no client can extend, and the `refused` and `access` lines.
"""

import asyncio
import base64
import binascii
import hashlib
import hmac
import re
import socket
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
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

from worker.apis.core.received import correlation_id, request_id, trace_context
from worker.config.option import shown
from worker.config.settings import Settings
from worker.errors import Forbidden, InternalError, Unauthorized, WorkerError, WrongHost
from worker.observe.log_lines import get_logger
from worker.observe.metrics import Metrics
from worker.observe.redaction import Secrets
from worker.server.front.state import Front
from worker.server.web.bodies import AnyRequest
from worker.server.web.pages import BROWSED_PATHS, PAGE_PATHS
from worker.server.web.refusals import NOT_HTTP, REFUSAL, Refusal, is_messages_path, send_refusal

log = get_logger()

OPEN_PATHS = frozenset({"/health", "/v1/health", "/v1/ready", "/livez", "/readyz", "/ping"})
"""All other paths need the token, including unknown ones. The page at `/` and its files are open if they are served."""

ANY_HOST_PATHS = frozenset({"/livez", "/readyz", "/ping"})

_ROUTED_AS: dict[str, Method] = {"HEAD": "GET", "OPTIONS": "TRACE"}
"""HEAD works on every route with GET; uvicorn omits its body. OPTIONS, which Litestar would answer, is not offered."""

MAX_LOGGED_PATH = 256

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
OTHER = "other"
"""The label of a path or a method that no route has."""

CLIENT_LEFT = 499
"""The status of an exchange whose client disconnected before its answer, as nginx logs it."""


@dataclass(slots=True)
class Exchange:
    """A request, and what was sent of its answer."""

    method: str
    route: str
    path: str
    status: int = CLIENT_LEFT
    n_bytes: int = 0
    began_s: float = field(default_factory=time.monotonic)


class Middleware:
    """The outermost ASGI application. Without an API key every route is open."""

    def __init__(self, app: Litestar, settings: Settings, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics
        self._key_digest = None if settings.api_key is None else _digest(settings.api_key.encode())
        self._open_paths = OPEN_PATHS if settings.no_page else OPEN_PATHS | PAGE_PATHS
        self._secrets = Secrets(settings.api_key)
        self._has_access_log = settings.access_log
        advertised = urlsplit(settings.advertise_url or "").hostname or ""
        own_names = [socket.gethostname(), settings.host, advertised, *settings.allowed_host]
        self.site = Site(own_names, settings.cors_origin)
        self._routes = Routes(app)
        metrics.routes(self._routes.offered())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == ScopeType.HTTP
        asked = Headers.from_scope(scope)
        correlation = scope["state"]["correlation_id"] = correlation_id(asked.get("x-correlation-id"))
        own_id = request_id(asked.get("x-request-id"))
        scope["state"]["method"] = scope["method"]  # for the text of a refusal
        method = scope["method"] if scope["method"] in METHODS else OTHER
        exchange = Exchange(method, self._routes.label(scope["path"]), scope["path"])

        async def send_with_ids(message: Message) -> None:
            if message["type"] == "http.response.start":
                exchange.status = message["status"]
                headers = MutableScopeHeaders(message)
                headers["X-Correlation-ID"] = correlation
                headers["X-Request-Id"] = own_id or headers.get("X-Request-Id") or correlation
                for name, value in self.site.headers(asked).items():
                    headers.add(name, value)
            elif message["type"] == "http.response.body" and method != "HEAD":
                exchange.n_bytes += len(message.get("body", b""))
            await send(message)

        named = {} if own_id is None else {"request_id": own_id}
        with structlog.contextvars.bound_contextvars(correlation_id=correlation):
            try:
                if (preflight := self.site.preflight(scope["method"], asked)) is not None:
                    await ASGIResponse(status_code=204, headers=preflight)(scope, receive, send_with_ids)
                elif (refusal := self._refusal(scope, asked)) is not None:
                    await send_refusal(scope, refusal, receive, send_with_ids)
                else:
                    routed = scope.copy()
                    routed["method"] = _ROUTED_AS.get(scope["method"], scope["method"])
                    await self._app(routed, receive, send_with_ids)
            finally:
                with structlog.contextvars.bound_contextvars(**named):
                    self._end(exchange, scope["state"].get(REFUSAL))

    def malformed(self, correlation: str, n_bytes: int) -> None:
        """Count and log an answer of `n_bytes` to bytes that are not HTTP."""
        with structlog.contextvars.bound_contextvars(correlation_id=correlation):
            self._end(Exchange(OTHER, OTHER, "", NOT_HTTP.status, n_bytes), NOT_HTTP)

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

    def _end(self, exchange: Exchange, refusal: Refusal | None) -> None:
        self._metrics.answered(route=exchange.route, method=exchange.method, status=exchange.status)
        if refusal is not None:
            self._metrics.refused(refusal.code)
        # An internal error was logged where it was caught, with its traceback.
        if refusal is not None and refusal.code != InternalError.code:
            log.info(
                "refused",
                method=exchange.method,
                route=exchange.route,
                status=refusal.status,
                code=refusal.code,
                reason=refusal.reason,
            )
        if self._has_access_log:
            log.info(
                "access",
                method=exchange.method,
                # The path has no query and is masked before it is cut: a job_id in it may be the API key.
                path=self._secrets.mask_known(exchange.path)[:MAX_LOGGED_PATH],
                status=exchange.status,
                bytes=exchange.n_bytes,
                ms=round((time.monotonic() - exchange.began_s) * 1000, 1),
            )


@contextmanager
def counted(front: Front, request: AnyRequest, operation: str | None = None) -> Iterator[None]:
    """Wrap job creation: a refusal before there is a job counts as a rejected request. `operation` is that of
    Front.refused."""
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


# ── the token ────────────────────────────────────────────────────────────────────────────────────


def _tokens(path: str, asked: Headers) -> Iterator[bytes]:
    """Yield the tokens that a request has, in the forms that its path accepts. Anthropic's clients send theirs in
    x-api-key."""
    scheme, _, value = asked.get("authorization", "").partition(" ")
    match scheme.lower():
        case "bearer":
            yield value.strip().encode("latin-1")
        case "basic" if path in BROWSED_PATHS:
            with suppress(binascii.Error, ValueError):  # RFC 7617; any user
                yield base64.b64decode(value.strip(), validate=True).partition(b":")[2]
    if is_messages_path(path) and "x-api-key" in asked:
        yield asked["x-api-key"].strip().encode("latin-1")


def _digest(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()


# ── the page that asks ───────────────────────────────────────────────────────────────────────────

_AUTHORITY = re.compile(r"(\[[0-9a-f:.]+(?:%[^\]\s]*)?\]|[^\[\]@:/\\?#,\s]*)(?::([0-9]{0,5}))?")
_ADDRESS = re.compile(r"\[.*\]|[0-9][0-9.]*")
"""No name looks like this: a host that ends in a number is an address (WHATWG URL, 3.5)."""
_LOCAL = (".localhost", ".local", ".internal", ".svc")
_PORTS = {"http": 80, "https": 443}

_EXPOSED = (
    "x-request-id, x-ignored-fields, x-ignored-tools, x-unenforced-tools, x-max-tokens-cut, x-correlation-id, "
    "retry-after"
)
"""The headers of an answer that a page may read."""


class Site:
    """The worker's own pages, and others. A page of an allowed origin may read answers. Litestar's own CORS is not
    used: it sends no Vary without an Origin, and answers every OPTIONS that has one.

    A worker without a token refuses what a browser sends for other pages. Any page can have a browser send requests,
    and any site can give its own name the address of this machine. So the host of a request must be known to be this
    worker, and the page that asks must be its own, or be allowed. Forwarded headers count for nothing, because any
    client can write them.
    """

    def __init__(self, names: Iterable[str], origins: Iterable[str]) -> None:
        """`names`: hosts besides addresses and local names; `*.NAME` is every host below NAME, and `*` any. `origins`:
        as browsers send them, except for upper and lower case (config/option.py)."""
        self._names = {name.lower().removesuffix(".") for name in names}
        self._suffixes = (*_LOCAL, *(name.removeprefix("*") for name in self._names if name.startswith("*")))
        self._origins = frozenset(origin.lower() for origin in origins)

    async def add_full_name(self, host: str) -> None:
        """Add the name that this machine, called `host`, has in its domain. No request waits for the lookup."""
        with suppress(OSError, UnicodeError):
            found = await asyncio.get_running_loop().getaddrinfo(host, None, flags=socket.AI_CANONNAME)
            self._names.add(found[0][3].lower().removesuffix("."))

    def headers(self, asked: Headers) -> dict[str, str]:
        """The headers of the answer to this request. Caches must distinguish origins, also those that are not
        allowed."""
        if not self._origins:
            return {}
        if (origin := self.allowed(asked)) is None:
            return {"vary": "origin"}
        return {"vary": "origin", "access-control-allow-origin": origin, "access-control-expose-headers": _EXPOSED}

    def preflight(self, method: str, asked: Headers) -> dict[str, str] | None:
        """The headers of the answer to a preflight request, which has no token; None if this request is not one."""
        if method != "OPTIONS" or "access-control-request-method" not in asked or self.allowed(asked) is None:
            return None
        return {
            "access-control-allow-methods": "GET, HEAD, POST",
            # The page may send any header: clients have their own, and the page is trusted.
            "access-control-allow-headers": asked.get("access-control-request-headers", ""),
            "access-control-max-age": "600",
        }

    def allowed(self, asked: Headers) -> str | None:
        """The request's origin, unchanged, if it is allowed; browsers compare bytes."""
        origin = asked.get("origin")
        return origin if origin is not None and origin.lower() in self._origins else None

    def refusal(self, method: str, path: str, asked: Headers) -> WrongHost | Forbidden | None:
        """The reason to refuse a request, if there is one. Its headers have the host of its target."""
        hosts = asked.getall("host", [])
        wrong = next((host for host in hosts if not self._is_own(host)), None)
        if wrong is not None and path not in ANY_HOST_PATHS:
            return WrongHost(shown(wrong))
        if self.allowed(asked) is not None or not _is_of_another_page(method, asked, hosts):
            return None
        return Forbidden(" ".join(map(shown, asked.getall("origin", []))) or "not named")

    def _is_own(self, host: str) -> bool:
        name = (_place(host, 0) or ("?.", 0))[0]  # no host has a question mark, but `*` is any
        is_local = "." not in name or _ADDRESS.fullmatch(name) is not None
        return is_local or name in self._names or name.endswith(self._suffixes)


def _is_of_another_page(method: str, asked: Headers, hosts: list[str]) -> bool:
    """True if a page of another origin sent the request, and it is not a link that was followed. Browsers send
    Sec-Fetch-Site only to https and to this machine, and no page can change it (W3C Fetch Metadata, 2)."""
    sites = set(asked.getall("sec-fetch-site", []))
    if sites & {"cross-site", "same-site"}:
        way = asked.getall("sec-fetch-mode", []) + asked.getall("sec-fetch-dest", [])
        return method not in ("GET", "HEAD") or way != ["navigate", "document"]
    origins = asked.getall("origin", [])
    return not (sites & {"same-origin", "none"} or all(_is_origin_of(hosts, origin) for origin in origins))


def _is_origin_of(hosts: list[str], origin: str) -> bool:
    """True if pages of the origin come from these hosts, which are one. A host without a port has that of the origin's
    scheme, because TLS may end in front of the worker."""
    scheme, _, authority = origin.lower().partition("://")
    place = _place(authority, _PORTS.get(scheme, 0))
    return scheme in _PORTS and place is not None and {place} == {_place(host, _PORTS[scheme]) for host in hosts}


def _place(authority: str, port: int) -> tuple[str, int] | None:
    """The host as browsers write it, and its port or this one; None for other text."""
    found = _AUTHORITY.fullmatch(authority.lower())
    return found and (found[1].removesuffix("."), int(found[2] or port))
