"""What surrounds every route: the correlation id on each response, the bearer token before anything is read, and the
end of the exchange, which is told whatever ended it.
"""

import base64
import binascii
import hashlib
import hmac
from collections.abc import Iterable

import structlog
from litestar import Litestar
from litestar.datastructures import MutableScopeHeaders
from litestar.enums import ScopeType
from litestar.types import Message, Method, Receive, Scope, Send

from worker.config.settings import Settings
from worker.errors import Unauthorized
from worker.front.metrics import Metrics
from worker.protocol.bodies import encode_error
from worker.protocol.headers import correlation_id
from worker.web.exchange import Book, note_refusal

CORRELATION_HEADER = b"x-correlation-id"

OPEN_PATHS = frozenset({"/health", "/v1/health", "/v1/ready", "/livez", "/readyz"})
"""Everything else needs the token, unknown paths included."""

BROWSED_PATHS = frozenset({"/docs", "/docs/", "/docs/page.js", "/docs/redoc.standalone.js"})
"""Pages for browsers, which ask for a password but never for a bearer token: here the token may be one. Nowhere else,
because a browser also sends a password along when another site's page makes it ask.
"""


_ROUTED_AS: dict[str, Method] = {"HEAD": "GET", "OPTIONS": "TRACE"}
"""HEAD works where GET does, uvicorn leaves its body out. OPTIONS, which Litestar would answer, is not offered."""


class Edge:
    """Outermost ASGI application. Without an API key every route is open."""

    def __init__(self, app: Litestar, settings: Settings, metrics: Metrics) -> None:
        self._app = app
        self._key_digest = None if settings.api_key is None else _digest(settings.api_key.encode())
        self._book = Book(app, settings, metrics)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        correlation = correlation_id(_header(scope["headers"], CORRELATION_HEADER))
        scope["state"]["correlation_id"] = correlation
        exchange = self._book.begin(scope)

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableScopeHeaders(message)["X-Correlation-ID"] = correlation
            exchange.sent(message)
            await send(message)

        with structlog.contextvars.bound_contextvars(correlation_id=correlation):
            try:
                if self._is_allowed(scope):
                    await self._app(_as_routed(scope), receive, send_with_id)
                else:
                    await _send_unauthorized(scope, send_with_id)
            finally:
                exchange.end()

    def malformed(self, correlation: str, n_bytes: int) -> None:
        """Bytes that are no HTTP were answered, with so many, before there was anything to route."""
        with structlog.contextvars.bound_contextvars(correlation_id=correlation):
            self._book.malformed(n_bytes)

    def _is_allowed(self, scope: Scope) -> bool:
        if self._key_digest is None or scope["path"] in OPEN_PATHS:
            return True
        scheme, _, value = (_header(scope["headers"], b"authorization") or "").partition(" ")
        match scheme.lower():
            case "bearer":
                token = value.strip().encode("latin-1")
            case "basic" if scope["path"] in BROWSED_PATHS:
                token = _password(value)
            case _:
                return False
        # Digests have one length, so the comparison tells nothing about the token's.
        return hmac.compare_digest(_digest(token), self._key_digest)


def _as_routed(scope: Scope) -> Scope:
    assert scope["type"] == ScopeType.HTTP
    routed = scope.copy()
    routed["method"] = _ROUTED_AS.get(scope["method"], scope["method"])
    return routed


def _password(credentials: str) -> bytes:
    """RFC 7617's, whoever the user is; empty, which no token is, for what cannot be read."""
    try:
        return base64.b64decode(credentials.strip(), validate=True).partition(b":")[2]
    except (binascii.Error, ValueError):
        return b""


def _digest(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()


def _header(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> str | None:
    return next((value.decode("latin-1") for key, value in headers if key == name), None)


async def _send_unauthorized(scope: Scope, send: Send) -> None:
    error = Unauthorized("this route needs the header 'Authorization: Bearer <token>' with the right token")
    note_refusal(scope, error)
    body = encode_error(error)
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"www-authenticate", b"Bearer"),
    ]
    if scope["path"] in BROWSED_PATHS:
        headers.append((b"www-authenticate", b'Basic realm="llorch-worker", charset="UTF-8"'))
    await send({"type": "http.response.start", "status": Unauthorized.http_status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})
