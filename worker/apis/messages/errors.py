"""Refusals and failures in Anthropic's shape: `{"type":"error","error":{"type","message"}}`.

Owns: the types. Pure.
"""

from typing import Annotated, Literal

import msgspec

from worker.apis.core.bodies import FieldsRefused
from worker.apis.core.errors import failure_status
from worker.apis.core.events import ErrorEvent
from worker.errors import WorkerError
from worker.wire.encoding import doc, encode_json
from worker.wire.messages import Overflow

ErrorType = Literal[
    "invalid_request_error",
    "authentication_error",
    "permission_error",
    "not_found_error",
    "request_too_large",
    "rate_limit_error",
    "api_error",
    "timeout_error",
    "overloaded_error",
]

_BY_STATUS: dict[int, ErrorType] = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
_MIN_SERVER_STATUS = 500


class MessagesError(msgspec.Struct, frozen=True, kw_only=True):
    """The error: a type for programs and a message for people."""

    type: ErrorType
    message: Annotated[str, doc("Text for people; the wording may change.")]


class MessagesErrorBody(msgspec.Struct, frozen=True, kw_only=True):
    """A refusal or a failure."""

    type: Literal["error"] = "error"
    error: MessagesError


def type_of(status: int) -> ErrorType:
    """The type of an error by the status that it has outside a stream."""
    return _BY_STATUS.get(status, "invalid_request_error" if status < _MIN_SERVER_STATUS else "api_error")


def error_detail(error: WorkerError) -> MessagesError:
    """A refusal in Anthropic's words."""
    match error:
        case FieldsRefused(overflow=Overflow() as overflow):
            others = (other.message for other in error.errors[1:])
            return MessagesError(type="invalid_request_error", message="; ".join([_too_long(overflow), *others]))
        case _:
            return MessagesError(type=type_of(error.http_status), message=str(error))


def _too_long(overflow: Overflow) -> str:
    """The error in Anthropic's own words, and nothing else: agents compare the whole message."""
    # A prompt must leave room for one token of the answer.
    most = overflow.most if overflow.n_tokens > overflow.most else overflow.n_tokens - 1
    return f"prompt is too long: {overflow.n_tokens} tokens > {most} maximum"


def refusal_body(error: WorkerError) -> bytes:
    return encode_json(MessagesErrorBody(error=error_detail(error)))


def http_body(status: int, _code: str, message: str) -> bytes:
    """The body of a refusal without a WorkerError."""
    return encode_json(MessagesErrorBody(error=MessagesError(type=type_of(status), message=message)))


def failure_body(event: ErrorEvent) -> bytes:
    """The body of a job that failed."""
    return http_body(failure_status(event), "", event.message)
