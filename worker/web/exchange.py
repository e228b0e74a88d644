"""What the log and the counters are told of each HTTP exchange: what it asked for, how it ended, why it was refused.

Owns: the labels, which are closed sets whatever a client sends, and the `refused` and `access` lines.
Refuses to know: what a refusal looks like on the wire. On the front's event loop.
"""

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from http import HTTPStatus

from litestar import Litestar
from litestar.enums import ScopeType
from litestar.exceptions import HTTPException
from litestar.routes import HTTPRoute
from litestar.types import Message, Scope

from worker.config.settings import Settings
from worker.errors import InternalError, WorkerError
from worker.front.metrics import Metrics
from worker.logs.lines import get_logger
from worker.logs.redaction import Secrets

log = get_logger()

MAX_LOGGED_PATH = 256

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
OTHER = "other"
"""The label of a path or a method that nothing here has."""

CLIENT_LEFT = 499
"""The status of an exchange whose client left before it had an answer; nginx's word for it."""

_CODES = {404: "NOT_FOUND", 405: "METHOD_NOT_ALLOWED", 413: "BODY_TOO_LARGE", 415: "UNSUPPORTED_MEDIA_TYPE"}
"""For the refusals that are Litestar's own."""

_NOTED = "refusal"


@dataclass(frozen=True, slots=True)
class Refusal:
    status: int
    code: str
    reason: str
    """Never a value of the request."""


_NOT_HTTP = Refusal(400, "INVALID_REQUEST", "what was sent is not HTTP")


def note_refusal(scope: Scope, error: Exception) -> None:
    """For whoever turns an error into an answer: the exchange's end then tells of it."""
    scope["state"][_NOTED] = _refusal(error)


def _refusal(error: Exception) -> Refusal:
    match error:
        case WorkerError():
            return Refusal(error.http_status, error.code, error.reason)
        case HTTPException(status_code=status):
            return Refusal(status, _CODES.get(status, "INVALID_REQUEST"), HTTPStatus(status).phrase.lower())
        case _:
            return Refusal(InternalError.http_status, InternalError.code, type(error).__name__)


class Routes:
    """What an application offers, by the templates of its paths."""

    def __init__(self, app: Litestar) -> None:
        self._routes = [route for route in app.routes if isinstance(route, HTTPRoute)]
        paths = {route.path_format for route in self._routes}
        self._plain = {path for path in paths if "{" not in path}
        self._templates = {re.compile(re.sub(r"\{\w+\}", "[^/]+", path)): path for path in paths - self._plain}

    def label(self, path: str) -> str:
        """`/cancel/{job_id}` for `/cancel/7`."""
        bare = path.rstrip("/") or "/"
        if bare in self._plain:
            return bare
        return next((label for template, label in self._templates.items() if template.fullmatch(bare)), OTHER)

    def offered(self) -> Iterator[tuple[str, str, int]]:
        """(route, method, status of success) of everything; HEAD works where GET does."""
        for route in self._routes:
            for handler in route.route_handlers:
                for method in handler.http_methods - {"OPTIONS"}:
                    yield route.path_format, method, handler.status_code
                    if method == "GET":
                        yield route.path_format, "HEAD", handler.status_code


class Book:
    """Where exchanges are entered: `begin` one when its request is there."""

    def __init__(self, app: Litestar, settings: Settings, metrics: Metrics) -> None:
        self.routes = Routes(app)
        self.metrics = metrics
        self.secrets = Secrets(settings.api_key)
        self.has_access_log = settings.access_log
        metrics.routes(self.routes.offered())

    def begin(self, scope: Scope) -> "Exchange":
        return Exchange(self, scope)

    def malformed(self, n_bytes: int) -> None:
        """An exchange without a request: what came is no HTTP, and was answered with 400 and so many bytes."""
        self.enter(OTHER, OTHER, _NOT_HTTP.status, _NOT_HTTP, path="", n_bytes=n_bytes, seconds=0.0)

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
        """An exchange is over: count it, and tell of it."""
        self.metrics.answered(route=route, method=method, status=status)
        if refusal is not None:
            self._refused(method, route, refusal)
        if self.has_access_log:
            log.info(
                "access",
                method=method,
                # Without the query, and masked before it is cut: a job_id in it may be the API key.
                path=self.secrets.mask_known(path)[:MAX_LOGGED_PATH],
                status=status,
                bytes=n_bytes,
                ms=round(seconds * 1000, 1),
            )

    def _refused(self, method: str, route: str, refusal: Refusal) -> None:
        self.metrics.refused(refusal.code)
        if refusal.code == InternalError.code:
            return  # told where it was caught, with its traceback
        log.info(
            "refused",
            method=method,
            route=route,
            status=refusal.status,
            code=refusal.code,
            reason=refusal.reason,
        )


class Exchange:
    """Tell it what is sent, and its end."""

    def __init__(self, book: Book, scope: Scope) -> None:
        assert scope["type"] == ScopeType.HTTP
        self._book = book
        self._scope = scope
        self._method = scope["method"] if scope["method"] in METHODS else OTHER
        self._route = book.routes.label(scope["path"])
        self._status = CLIENT_LEFT
        self._n_bytes = 0
        self._began_s = time.monotonic()

    def sent(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._status = message["status"]
        elif message["type"] == "http.response.body" and self._method != "HEAD":
            self._n_bytes += len(message.get("body", b""))

    def end(self) -> None:
        self._book.enter(
            self._method,
            self._route,
            self._status,
            self._scope["state"].get(_NOTED),
            path=self._scope["path"],
            n_bytes=self._n_bytes,
            seconds=time.monotonic() - self._began_s,
        )
