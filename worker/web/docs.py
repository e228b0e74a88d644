"""The OpenAPI document and the page that shows it, all from this worker: it works where nothing else can be reached.

The page holds the document, and its policy lets the browser load the two scripts beside it and nothing more.
"""

import secrets
from functools import cache
from importlib.resources import files
from typing import Any

import msgspec
from litestar import Request, Response, get
from litestar.handlers import HTTPRouteHandler

from worker import __version__
from worker.config.settings import Settings
from worker.protocol.openapi import MEDIA_TYPE, Limits, Route, openapi_document
from worker.protocol.operations import Operation
from worker.web.edge import OPEN_PATHS

_OPERATION = "operation"

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'nonce-{nonce}' "
    "'sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=' 'sha256-QMIg+bpjm3JdElJ388KYke01izlUW0UoNOeKjpMxdgc='; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""The digests are those of an element that the bundle makes as it loads, before it is told the nonce: empty, then full.
They change with the bundle."""


def told(operation: Operation) -> dict[str, Operation]:
    """The `opt` of a handler whose route the document describes."""
    return {_OPERATION: operation}


def places(handler: HTTPRouteHandler) -> list[tuple[str, str]]:
    """(method, path) of every route of a handler, parameters as {name}."""
    paths = sorted(path.replace(":str}", "}") for path in handler.paths)
    return [(method, path) for path in paths for method in sorted(handler.http_methods)]


def document_of(handlers: list[HTTPRouteHandler], settings: Settings) -> bytes:
    """The document; every handler must have been `told` its operation."""
    routes = [
        Route(path, method, handler.opt[_OPERATION], is_open=path in OPEN_PATHS)
        for handler in handlers
        for method, path in places(handler)
    ]
    limits = Limits(max_prompt_chars=settings.max_prompt_chars, max_tokens_out=settings.max_tokens_out)
    return msgspec.json.encode(openapi_document(__version__, routes, limits, has_token=settings.api_key is not None))


def document_routes(document: bytes) -> list[HTTPRouteHandler]:
    """The document as it is, the page, and the page's scripts."""

    @get(["/openapi/openapi.json", "/openapi"], sync_to_thread=False)
    def openapi() -> Response[bytes]:
        return Response(document, headers={"content-type": MEDIA_TYPE})

    @get("/docs", sync_to_thread=False)
    def page(request: Request[Any, Any, Any]) -> Response[bytes]:
        nonce = secrets.token_urlsafe(16)
        # In a script element only "<" can end the text, and in JSON it stands in strings only.
        held = document.replace(b"<", rb"\u003c")
        # Relative, for a proxy that serves the worker below a path of its own.
        beside = b"" if request.scope["raw_path"].endswith(b"/") else b"docs/"
        head = _file("page.html").replace(b"{nonce}", nonce.encode()).replace(b"{beside}", beside)
        body = head.replace(b"{document}", held)
        return _browsed(body, "text/html", {"content-security-policy": _POLICY.format(nonce=nonce)})

    @get("/docs/page.js", sync_to_thread=False)
    def script() -> Response[bytes]:
        return _browsed(_file("page.js"), "text/javascript", {})

    @get("/docs/redoc.standalone.js", sync_to_thread=False)
    def redoc() -> Response[bytes]:
        return _browsed(_file("redoc.standalone.js"), "text/javascript", {"cache-control": "private, max-age=3600"})

    return [openapi, page, script, redoc]


def _browsed(body: bytes, media_type: str, headers: dict[str, str]) -> Response[bytes]:
    guards = {"x-content-type-options": "nosniff", "referrer-policy": "no-referrer"}
    return Response(body, media_type=media_type, headers=guards | headers)


@cache
def _file(name: str) -> bytes:
    return (files(__package__) / "page" / name).read_bytes()
