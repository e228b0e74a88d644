"""The pages for browsers: the chat with the model at `/` (docs/page.md), and `/docs` about the routes.

The files of the chat hold no data of this worker, so they need no token: the page asks for it, and all its data comes
from routes that require it. Paths are relative, because a proxy may serve the worker below a path.
"""

import secrets
from collections.abc import Callable
from functools import cache
from importlib.resources import files

import msgspec
from litestar import Response, get
from litestar.exceptions import NotFoundException
from litestar.handlers import HTTPRouteHandler

from worker import __version__
from worker.config.settings import Settings
from worker.server.web.bodies import AnyRequest
from worker.wire.encoding import encode_json

BROWSED_PATHS = frozenset({"/docs", "/docs/", "/docs/page.js", "/docs/redoc.standalone.js"})
"""Browsers ask for a password but never for a bearer token, so these pages accept the token as a password. No other
path does, because a browser also sends a password with requests that another site's page starts.
"""

_SCRIPT = "text/javascript"
_SCRIPTS = ("chat", "dom", "markdown", "panel", "parts", "probabilities", "request", "stream", "vitals")
_PARTS = {"chat.css": "text/css"} | {f"{name}.js": _SCRIPT for name in _SCRIPTS}
"""The files in the same directory as chat.html, with their types."""

PAGE_PATHS = frozenset({"/", *(f"/page/{name}" for name in _PARTS)})

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; "
    "trusted-types 'none'"
)
"""The policy of the chat allows nothing from other servers and nothing inline. A script that passes text to the browser
as HTML fails."""

_POLICY_OF_DOCS = (
    "default-src 'none'; script-src 'self'; style-src 'nonce-{nonce}' "
    "'sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=' 'sha256-QMIg+bpjm3JdElJ388KYke01izlUW0UoNOeKjpMxdgc='; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""The digests belong to a style element that the bundle creates before it knows the nonce: empty, then full. They
change with the bundle."""

_FRESH = {"cache-control": "no-cache"}
"""The browser must not mix the files of two versions."""


def plain_route(path: str | list[str], answer: Callable[[], Response[bytes]]) -> HTTPRouteHandler:
    """A route whose answer does not depend on the request."""

    @get(path, sync_to_thread=False)
    def answered() -> Response[bytes]:
        return answer()

    return answered


def page_routes() -> list[HTTPRouteHandler]:
    headers = {"content-security-policy": POLICY, **_FRESH}

    @get("/page/{name:str}", sync_to_thread=False)
    def part(name: str) -> Response[bytes]:
        if name not in _PARTS:
            raise NotFoundException
        return _browsed(_file(f"chat/{name}"), _PARTS[name], _FRESH)

    return [plain_route("/", lambda: _browsed(_file("chat/chat.html"), "text/html", headers)), part]


def document_of(settings: Settings) -> bytes:
    """The OpenAPI document of page/openapi.json, with what depends on the worker's settings."""
    document = msgspec.json.decode(_file("openapi.json"))
    document["info"]["version"] = __version__
    # Without a token the header has no effect, and clients may send it.
    document["security"] = [{"token": []}] if settings.api_key is not None else [{}, {"token": []}]
    fields = document["components"]["schemas"]["ExecuteRequest"]["properties"]
    fields["prompt"]["maxLength"] = settings.max_prompt_chars
    fields["max_tokens"]["maximum"] = fields["min_tokens"]["maximum"] = settings.execute_tokens_out
    return encode_json(document)


def document_routes(document: bytes) -> list[HTTPRouteHandler]:
    openapi = ["/openapi/openapi.json", "/openapi", "/openapi.json"]
    typed = {"content-type": "application/vnd.oai.openapi+json"}
    cached = {"cache-control": "private, max-age=3600"}

    @get("/docs", sync_to_thread=False)
    def page(request: AnyRequest) -> Response[bytes]:
        nonce = secrets.token_urlsafe(16)
        # In a script element only "<" can end the text, and in JSON it occurs only in strings.
        embedded = document.replace(b"<", rb"\u003c")
        prefix = b"" if request.scope["raw_path"].endswith(b"/") else b"docs/"
        head = _file("page.html").replace(b"{nonce}", nonce.encode()).replace(b"{prefix}", prefix)
        policy = {"content-security-policy": _POLICY_OF_DOCS.format(nonce=nonce)}
        return _browsed(head.replace(b"{document}", embedded), "text/html", policy)

    return [
        plain_route(openapi, lambda: Response(document, headers=typed)),
        page,
        plain_route("/docs/page.js", lambda: _browsed(_file("page.js"), _SCRIPT, {})),
        plain_route("/docs/redoc.standalone.js", lambda: _browsed(_file("redoc.standalone.js"), _SCRIPT, cached)),
    ]


def _browsed(body: bytes, media_type: str, headers: dict[str, str]) -> Response[bytes]:
    """A file, with headers that stop a browser from guessing its type and from sending referrers."""
    guards = {"x-content-type-options": "nosniff", "referrer-policy": "no-referrer"}
    return Response(body, media_type=media_type, headers=guards | headers)


@cache
def _file(name: str) -> bytes:
    return files(__package__).joinpath("page", name).read_bytes()
