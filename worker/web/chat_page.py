"""The page at `/`: a chat with the model, and the worker's state (docs/page.md).

Owns: the page's files and the policy for browsers. The files hold no data of this worker, so they need no token: the
page asks for the token, and all its data comes from routes that require it.
"""

from litestar import Response, get
from litestar.exceptions import NotFoundException
from litestar.handlers import HTTPRouteHandler

from worker.web.browsed import browsed, page_file

_SCRIPT = "text/javascript"
_PARTS = {
    "chat.css": "text/css",
    "chat.js": _SCRIPT,
    "dom.js": _SCRIPT,
    "markdown.js": _SCRIPT,
    "panel.js": _SCRIPT,
    "parts.js": _SCRIPT,
    "probabilities.js": _SCRIPT,
    "request.js": _SCRIPT,
    "stream.js": _SCRIPT,
    "vitals.js": _SCRIPT,
}
"""The files in the same directory as chat.html, with their types."""

PAGE_PATHS = frozenset({"/", *(f"/page/{name}" for name in _PARTS)})

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; "
    "trusted-types 'none'"
)
"""The policy allows nothing from other servers and nothing inline. A script that passes text to the browser as HTML
fails."""

_FRESH = {"cache-control": "no-cache"}
"""The browser must not mix the files of two versions."""


def page_routes() -> list[HTTPRouteHandler]:
    """The routes of the page and its files. Their paths are relative, because a proxy may serve the worker below a
    path."""

    @get("/", sync_to_thread=False)
    def page() -> Response[bytes]:
        return browsed(page_file("chat/chat.html"), "text/html", {"content-security-policy": POLICY, **_FRESH})

    @get("/page/{name:str}", sync_to_thread=False)
    def part(name: str) -> Response[bytes]:
        if name not in _PARTS:
            raise NotFoundException
        return browsed(page_file(f"chat/{name}"), _PARTS[name], _FRESH)

    return [page, part]
