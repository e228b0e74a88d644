"""The form of a refusal on the wire: the texts of docs/protocol.md#http, OpenAI's shape on the routes of `/v1`, or
Anthropic's on `/v1/messages`; and a refusal as the log and the counters name it.

Owns: the choice between the forms by path.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus

from litestar import Response
from litestar.exceptions import HTTPException, MethodNotAllowedException
from litestar.types import Scope, Send

from worker.anthropic import errors as anthropic
from worker.errors import InternalError, Unauthorized, WorkerBusy, WorkerError, WorkerLoading
from worker.observe.log_lines import get_logger
from worker.openai.answers import failure_body
from worker.openai.errors import ErrorDetail, ErrorType, error_body, error_detail
from worker.protocol.bodies import FieldsRefused, encode_error, encode_violations
from worker.protocol.events import ErrorEvent
from worker.protocol.execute import BodyRejected
from worker.web.bodies import AnyRequest, EncodedBody
from worker.web.browsed import BROWSED_PATHS

log = get_logger()

_TEXT = "text/plain"
_JSON = "application/json"

_API = "/v1/"
_OTHER_API_PATHS = frozenset({"/v1", "/infill", "/tokenize", "/detokenize", "/tokenizer_info"})
_MESSAGES = "/v1/messages"

_POOL_MANAGER_PATHS = re.compile(
    "/v1/(health|ready|shutdown|admin/shutdown|(inference|infer|jobs|loading/progress)(/.*)?)/*", re.DOTALL
)
"""The pool manager's paths under `/v1` (docs/protocol.md#http): the old paths, supported or not."""

HTTP_ERRORS = {
    404: ("unknown_url", "no route {method} {path}: /docs lists the routes of this worker"),
    405: ("method_not_allowed", "{method} is not allowed on {path}: use {allow}"),
    413: ("body_too_large", "{detail}"),
    415: ("unsupported_media_type", "send a JSON body with content-type: application/json"),
}
"""The codes and texts of Litestar's own refusals."""

_MAX_PATH_CHARS = 100
"""A message shows this many characters of a path."""


def is_api_path(path: str) -> bool:
    """True if the path belongs to the API of OpenAI, vLLM or llama-server, also if no such route exists."""
    is_api = path.startswith(_API) or path.rstrip("/") in _OTHER_API_PATHS
    return is_api and not _POOL_MANAGER_PATHS.fullmatch(path)


def is_messages_path(path: str) -> bool:
    """True if the path belongs to Anthropic's API, also if no such route exists."""
    return path == _MESSAGES or path.startswith(f"{_MESSAGES}/")


def refusal_of(request: AnyRequest, error: Exception, route_list: str = "") -> Response[bytes]:
    """The answer to a refused request; an unknown path gets `route_list`."""
    path = request.scope["path"]
    if not is_api_path(path):
        return _http_error(error, route_list) if isinstance(error, HTTPException) else render_error(error)
    errors = ANTHROPIC_ERRORS if is_messages_path(path) else OPENAI_ERRORS
    return _api_http_error(request, error, errors) if isinstance(error, HTTPException) else errors.render(error)


async def send_refusal(scope: Scope, error: WorkerError, send: Send) -> None:
    note_refusal(scope, error)
    path = scope["path"]
    errors = ANTHROPIC_ERRORS if is_messages_path(path) else OPENAI_ERRORS
    body = errors.refusal(error) if is_api_path(path) else encode_error(error)
    headers = [(b"content-type", _JSON.encode()), (b"content-length", str(len(body)).encode())]
    if isinstance(error, Unauthorized):
        headers.append((b"www-authenticate", b"Bearer"))
        if path in BROWSED_PATHS:
            headers.append((b"www-authenticate", b'Basic realm="llorch-worker", charset="UTF-8"'))
    await send_whole(send, error.http_status, headers, body)


async def send_whole(send: Send, status: int, headers: list[tuple[bytes, bytes]], body: bytes = b"") -> None:
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})


_CODES = {404: "NOT_FOUND", 405: "METHOD_NOT_ALLOWED", 413: "BODY_TOO_LARGE", 415: "UNSUPPORTED_MEDIA_TYPE"}
"""The codes of Litestar's own refusals."""
REFUSAL = "refusal"


@dataclass(frozen=True, slots=True)
class Refusal:
    status: int
    code: str
    reason: str
    """A text of the worker, never a value of the request."""


NOT_HTTP = Refusal(400, "INVALID_REQUEST", "the bytes are not an HTTP request")


def note_refusal(scope: Scope, error: Exception) -> None:
    """Note the error that is answered, so that the end of the exchange reports it."""
    match error:
        case WorkerError():
            noted = Refusal(error.http_status, error.code, error.reason)
        case HTTPException(status_code=status):
            noted = Refusal(status, _CODES.get(status, "INVALID_REQUEST"), HTTPStatus(status).phrase.lower())
        case _:
            noted = Refusal(InternalError.http_status, InternalError.code, type(error).__name__)
    scope["state"][REFUSAL] = noted


# ── the pool manager's ───────────────────────────────────────────────────────────────────────────


def render_error(error: Exception) -> Response[bytes]:
    """An error as docs/protocol.md#http words it."""
    match error:
        case BodyRejected():
            return text_answer(str(error), error.http_status)
        case FieldsRefused(errors=errors):
            return json_answer(encode_violations(errors), error.http_status)
        case WorkerError():
            return json_answer(encode_error(error), error.http_status, _retry_after(error))
        case _:
            return json_answer(encode_error(_unexpected(error)), InternalError.http_status)


def _http_error(error: HTTPException, route_list: str) -> Response[bytes]:
    """The answer to Litestar's own refusals: unknown paths and methods, and bodies that are too large."""
    match error:
        case MethodNotAllowedException():
            return Response(b"", status_code=405, media_type=_TEXT, headers=_allow(error))
        case HTTPException(status_code=413):
            return text_answer("Failed to buffer the request body: length limit exceeded", 413)
        case HTTPException(status_code=404):
            return text_answer(route_list, 404)
        case EncodedBody():
            return Response(error.detail.encode(), status_code=415, media_type=_TEXT, headers=error.headers)
        case _:
            return text_answer(error.detail, error.status_code)


# ── OpenAI's and Anthropic's ─────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Errors:
    """The shape of an API's errors."""

    refusal: Callable[[WorkerError], bytes]
    http_error: Callable[[int, str, str], bytes]
    """The body for (status, code, message)."""
    failure: Callable[[ErrorEvent], bytes]

    def render(self, error: Exception) -> Response[bytes]:
        """The answer to an error before the first byte of an answer."""
        known = error if isinstance(error, WorkerError) else _unexpected(error)
        return json_answer(self.refusal(known), known.http_status, _retry_after(known))


def _openai_http_error(status: int, code: str, message: str) -> bytes:
    kind: ErrorType = "not_found_error" if status == HTTPStatus.NOT_FOUND else "invalid_request_error"
    return error_body(ErrorDetail(message=message, type=kind, code=code))


def _anthropic_http_error(status: int, code: str, message: str) -> bytes:  # noqa: ARG001 - this API has no codes
    return anthropic.error_body(anthropic.MessagesError(type=anthropic.type_of(status), message=message))


OPENAI_ERRORS = Errors(
    refusal=lambda error: error_body(error_detail(error)),
    http_error=_openai_http_error,
    failure=failure_body,
)
ANTHROPIC_ERRORS = Errors(
    refusal=lambda error: anthropic.error_body(anthropic.error_detail(error)),
    http_error=_anthropic_http_error,
    failure=lambda event: anthropic.error_body(anthropic.failure_detail(event)),
)


def _api_http_error(request: AnyRequest, error: HTTPException, errors: Errors) -> Response[bytes]:
    status = error.status_code
    code, words = HTTP_ERRORS.get(status, ("invalid_request", HTTPStatus(status).phrase.lower()))
    headers = _allow(error) if isinstance(error, MethodNotAllowedException) else None
    message = words.format(
        method=request.scope["state"]["method"],
        path=ascii(request.scope["path"][:_MAX_PATH_CHARS])[1:-1],
        allow=(headers or {}).get("allow", "").replace(",", " or "),
        detail=error.detail,
    )
    if isinstance(error, EncodedBody):
        message, headers = error.detail, error.headers
    return json_answer(errors.http_error(status, code, message), status, headers)


# ── all ─────────────────────────────────────────────────────────────────────────────────────────


def json_answer(body: bytes, status: int = 200, headers: dict[str, str] | None = None) -> Response[bytes]:
    return Response(body, status_code=status, media_type=_JSON, headers=headers)


def text_answer(body: str, status: int) -> Response[bytes]:
    return Response(body.encode(), status_code=status, media_type=_TEXT)


def _allow(error: MethodNotAllowedException) -> dict[str, str]:
    offered = (error.headers or {}).get("allow", "").split(", ")
    return {"allow": "GET,HEAD" if "GET" in offered else "POST"}


def _retry_after(error: WorkerError) -> dict[str, str] | None:
    return {"retry-after": str(error.retry_after_s)} if isinstance(error, WorkerBusy | WorkerLoading) else None


def _unexpected(error: Exception) -> InternalError:
    log.error("error", code=InternalError.code, exc_info=error)
    return InternalError("the request could not be answered; the log has the cause")
