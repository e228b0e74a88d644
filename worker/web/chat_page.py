"""The page at `/`: a chat with the model, and what the worker is doing (docs/page.md).

Owns: its files and what a browser may do with them. They hold nothing of this worker's, so that they are open: the page
asks for the token, and all it shows comes from routes that want it. Runs on the front's event loop.
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
    "probabilities.js": _SCRIPT,
    "request.js": _SCRIPT,
    "stream.js": _SCRIPT,
    "vitals.js": _SCRIPT,
}
"""The files beside chat.html, with their types."""

PAGE_PATHS = frozenset({"/", *(f"/page/{name}" for name in _PARTS)})

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; "
    "trusted-types 'none'"
)
"""Nothing from elsewhere, nothing inline; and text that a script would have the browser parse as HTML is an error."""

_FRESH = {"cache-control": "no-cache"}
"""The files of two versions do not go together."""


def page_routes() -> list[HTTPRouteHandler]:
    """The page, and the files that it loads from beside it: a proxy may serve the worker below a path of its own."""

    @get("/", sync_to_thread=False)
    def page() -> Response[bytes]:
        return browsed(page_file("chat/chat.html"), "text/html", {"content-security-policy": POLICY, **_FRESH})

    @get("/page/{name:str}", sync_to_thread=False)
    def part(name: str) -> Response[bytes]:
        if name not in _PARTS:
            raise NotFoundException
        return browsed(page_file(f"chat/{name}"), _PARTS[name], _FRESH)

    return [page, part]
