"""The form of a refusal on the wire, chosen by path: the texts of docs/protocol.md#http, OpenAI's shape at `/v1`, or
Anthropic's at `/v1/messages`; and a refusal as the log and the counters name it."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import NamedTuple

from litestar import Response
from litestar.exceptions import HTTPException, MethodNotAllowedException
from litestar.types import Receive, Scope, Send

from worker.apis.core import errors as openai
from worker.apis.core.bodies import FieldsRefused, encode_error, encode_violations
from worker.apis.messages import errors as anthropic
from worker.apis.pool.execute import BodyRejected
from worker.errors import InternalError, RetryLater, Unauthorized, WorkerError
from worker.observe.log_lines import get_logger
from worker.server.web.bodies import AnyRequest, EncodedBody
from worker.server.web.pages import BROWSED_PATHS

log = get_logger()

_OTHER_API_PATHS = frozenset({"/v1", "/infill", "/tokenize", "/detokenize", "/tokenizer_info"})
_MESSAGES = "/v1/messages"

_POOL_MANAGER_PATHS = re.compile(
    "/v1/(health|ready|shutdown|admin/shutdown|(inference|infer|jobs|loading/progress)(/.*)?)/*", re.DOTALL
)
"""The pool manager's paths under `/v1` (docs/protocol.md#http): the old paths, supported or not."""

HTTP_ERRORS = {
    404: ("NOT_FOUND", "unknown_url", "no route {method} {path}: /docs lists the routes of this worker"),
    405: ("METHOD_NOT_ALLOWED", "method_not_allowed", "{method} is not allowed on {path}: use {allow}"),
    413: ("BODY_TOO_LARGE", "body_too_large", "{detail}"),
    415: ("UNSUPPORTED_MEDIA_TYPE", "unsupported_media_type", "send a JSON body with content-type: application/json"),
}
"""Litestar's own refusals by their status: the code in the log, and the code and the text on `/v1`."""

_TEXTS = {405: "", 413: "Failed to buffer the request body: length limit exceeded"}
"""Litestar's own refusals on the pool manager's paths, where the others have its details."""

_MAX_PATH_CHARS = 100
"""A message shows this many characters of a path."""

REFUSAL = "refusal"
"""The key of an exchange's Refusal in the state of its scope."""


@dataclass(frozen=True, slots=True)
class Refusal:
    status: int
    code: str
    reason: str
    """A text of the worker, never a value of the request."""


NOT_HTTP = Refusal(400, "INVALID_REQUEST", "the bytes are not an HTTP request")


class Errors(NamedTuple):
    """The shape of an API's errors."""

    refusal: Callable[[WorkerError], bytes]
    http_error: Callable[[int, str, str], bytes]
    """The body for (status, code, message)."""


OPENAI_ERRORS = Errors(openai.refusal_body, openai.http_body)
ANTHROPIC_ERRORS = Errors(anthropic.refusal_body, anthropic.http_body)


def is_messages_path(path: str) -> bool:
    """True if the path belongs to Anthropic's API, also if no such route exists."""
    return path == _MESSAGES or path.startswith(f"{_MESSAGES}/")


def errors_of(path: str) -> Errors | None:
    """The shape of errors on a path of OpenAI's, vLLM's, llama-server's or Anthropic's API, also if no such route
    exists; None on the pool manager's and all other paths."""
    is_api = path.startswith("/v1/") or path.rstrip("/") in _OTHER_API_PATHS
    if not is_api or _POOL_MANAGER_PATHS.fullmatch(path):
        return None
    return ANTHROPIC_ERRORS if is_messages_path(path) else OPENAI_ERRORS


def refusal_of(scope: Scope, error: Exception, route_list: str = "") -> Response[bytes]:
    """Note the refusal for the log, and return its answer; an unknown path gets `route_list`."""
    scope["state"][REFUSAL] = _noted(error)
    errors = errors_of(scope["path"])
    if not isinstance(error, HTTPException):
        return _pool_refusal(error) if errors is None else _refusal(errors.refusal, error)
    status, headers = error.status_code, error.headers
    if isinstance(error, MethodNotAllowedException):
        headers = {"allow": "GET,HEAD" if "GET" in (headers or {}).get("allow", "").split(", ") else "POST"}
    if errors is None:
        return text_answer(route_list if status == 404 else _TEXTS.get(status, error.detail), status, headers)
    _, code, words = HTTP_ERRORS.get(status, ("", "invalid_request", HTTPStatus(status).phrase.lower()))
    message = words.format(
        method=scope["state"]["method"],
        path=ascii(scope["path"][:_MAX_PATH_CHARS])[1:-1],
        allow=(headers or {}).get("allow", "").replace(",", " or "),
        detail=error.detail,
    )
    if isinstance(error, EncodedBody):
        message = error.detail
    return json_answer(errors.http_error(status, code, message), status, headers)


async def send_refusal(scope: Scope, error: WorkerError, receive: Receive, send: Send) -> None:
    answer = refusal_of(scope, error).to_asgi_response(app=None, request=AnyRequest(scope))
    if isinstance(error, Unauthorized):
        answer.headers.add("www-authenticate", "Bearer")
        if scope["path"] in BROWSED_PATHS:
            answer.headers.add("www-authenticate", 'Basic realm="llorch-worker", charset="UTF-8"')
    await answer(scope, receive, send)


def _noted(error: Exception) -> Refusal:
    match error:
        case WorkerError():
            return Refusal(error.http_status, error.code, error.reason)
        case HTTPException(status_code=status):
            code, _, _ = HTTP_ERRORS.get(status, ("INVALID_REQUEST", "", ""))
            return Refusal(status, code, HTTPStatus(status).phrase.lower())
    return Refusal(InternalError.http_status, InternalError.code, type(error).__name__)


def _pool_refusal(error: Exception) -> Response[bytes]:
    """An error as docs/protocol.md#http words it."""
    match error:
        case BodyRejected():
            return text_answer(str(error), error.http_status)
        case FieldsRefused(errors=errors):
            return json_answer(encode_violations(errors), error.http_status)
    return _refusal(encode_error, error)


def _refusal(body: Callable[[WorkerError], bytes], error: Exception) -> Response[bytes]:
    if not isinstance(error, WorkerError):
        log.error("error", code=InternalError.code, exc_info=error)
        error = InternalError("the request could not be answered; the log has the cause")
    headers = {"retry-after": str(error.retry_after_s)} if isinstance(error, RetryLater) else None
    return json_answer(body(error), error.http_status, headers)


def json_answer(body: bytes, status: int = 200, headers: dict[str, str] | None = None) -> Response[bytes]:
    return Response(body, status_code=status, media_type="application/json", headers=headers)


def text_answer(body: str, status: int, headers: dict[str, str] | None = None) -> Response[bytes]:
    return Response(body.encode(), status_code=status, media_type="text/plain", headers=headers)
