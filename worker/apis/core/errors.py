"""Refusals and failures in OpenAI's shape: `{"error":{"message","type","param","code"}}`."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Literal

import msgspec

from worker.apis.core.bodies import FieldError, FieldsRefused
from worker.apis.core.events import ErrorEvent, StreamCode
from worker.errors import InvalidRequest, Unauthorized, WorkerBusy, WorkerError
from worker.wire.encoding import doc, encode_json
from worker.wire.messages import Overflow

ErrorType = Literal[
    "invalid_request_error", "authentication_error", "not_found_error", "rate_limit_error", "server_error"
]  # fmt: skip

CANCELLED_STATUS = 499
"""nginx's status for a request that its client has ended, here by `POST /cancel`. Clients retry a request after 409 or
5xx, but a cancelled request must not be retried."""

_MAX_QUOTED_CHARS = 100
"""A message shows this many characters of a name."""


class ErrorDetail(msgspec.Struct, frozen=True, kw_only=True):
    """The error: a message for people, and a type, a field and a code for programs."""

    message: Annotated[str, doc("Text for people; the wording may change.")]
    type: ErrorType
    param: Annotated[str | None, doc("The field, spelled as in the request.")] = None
    code: str | None = None


class ApiErrorBody(msgspec.Struct, frozen=True, kw_only=True):
    """A refusal or a failure."""

    error: ErrorDetail


class NotAnObject(InvalidRequest):
    """The body is not a JSON object, so it holds no request."""

    wording, unquoted = "{}", "the body is not a JSON object"


class UnknownModel(WorkerError):
    """The request names another model than the one that is served."""

    code, http_status, retriable = "NOT_FOUND", 404, False
    unquoted = "another model"

    def __init__(self, asked: str, served: str) -> None:
        texts = (repr(asked), repr(served))
        quoted = [text if len(text) <= _MAX_QUOTED_CHARS else f"{text[:_MAX_QUOTED_CHARS]}…" for text in texts]
        super().__init__(f"model {quoted[0]} not found; this worker serves {quoted[1]}")


CODES: dict[str, str] = {
    "context_length": "context_length_exceeded",
    "max_tokens_in": "context_length_exceeded",
    "no_chat_template": "no_chat_template",
    "required": "missing_required_parameter",
    "type": "invalid_type",
    "unsupported": "unsupported_parameter",
}
"""The codes of rules by the rule's name."""

OTHER_CODE = "invalid_value"
"""The code of all other rules."""


_MIN_SERVER_STATUS = 500

_FAILURES: dict[StreamCode, int] = {
    "CANCELLED": CANCELLED_STATUS,
    "TIMEOUT": 504,
    "VRAM_OOM": 500,
    "INVALID_REQUEST": 400,
    "INFERENCE_FAILED": 500,
    "ENGINE_RESTARTED": 503,
}


def error_detail(error: WorkerError) -> ErrorDetail:
    """A refusal in OpenAI's words."""
    match error:
        case FieldsRefused(errors=errors):
            first = errors[0]
            code = CODES.get(first.constraint.partition("(")[0], OTHER_CODE)
            message = str(error)
            if error.overflow is not None:
                message = "; ".join([_overflow(first, error.overflow), *(other.message for other in errors[1:])])
            return ErrorDetail(message=message, type="invalid_request_error", param=first.field, code=code)
        case UnknownModel():
            return ErrorDetail(message=str(error), type="not_found_error", param="model", code="model_not_found")
        case Unauthorized():
            return ErrorDetail(message=str(error), type="authentication_error", code="invalid_api_key")
        case WorkerBusy():
            return ErrorDetail(message=str(error), type="rate_limit_error", code=error.code.lower())
        case _:
            return ErrorDetail(message=str(error), type=status_type(error.http_status), code=error.code.lower())


_PLACE = re.compile(r"(messages|tools)\[(\d{1,9})\]")


def _overflow(error: FieldError, overflow: Overflow) -> str:
    """The error in OpenAI's own words. Agents search for them to learn that they must shorten the conversation."""
    n_tokens, limit = overflow.n_tokens, overflow.most
    text = (
        f"This model's maximum context length is {limit} tokens. "
        f"However, your {error.field} resulted in {n_tokens} tokens"
    )
    if error.constraint.partition("(")[0] == "max_tokens_in":
        text += f"; this worker accepts no longer prompt (--max-tokens-in {limit})"
    elif n_tokens <= limit:
        text += ", and an answer needs room for one more"
    return f"{text}. Please reduce the length of the {error.field}."


def status_type(status: int) -> ErrorType:
    return "invalid_request_error" if status < _MIN_SERVER_STATUS else "server_error"


def failure_status(event: ErrorEvent) -> int:
    """The status of a job that failed, outside a stream. If it is cancelled and retriable, the worker exits."""
    return 503 if event.code == "CANCELLED" and event.retriable else _FAILURES[event.code]


def refusal_body(error: WorkerError) -> bytes:
    return encode_json(ApiErrorBody(error=error_detail(error)))


def http_body(status: int, code: str, message: str) -> bytes:
    """The body of a refusal without a WorkerError."""
    kind: ErrorType = "not_found_error" if status == 404 else "invalid_request_error"
    return encode_json(ApiErrorBody(error=ErrorDetail(message=message, type=kind, code=code)))


def failure_body(event: ErrorEvent) -> bytes:
    """The body of a job that failed."""
    detail = ErrorDetail(message=event.message, type=status_type(failure_status(event)), code=event.code.lower())
    return encode_json(ApiErrorBody(error=detail))


def refused_as_spelled(
    refused: FieldsRefused, names: Mapping[str, str], messages: Sequence[str] = (), tools: Sequence[str] = ()
) -> FieldsRefused:
    """The same refusal with the client's names of the fields. `messages` and `tools`: the places of these in the
    request, if it has them in another form."""
    return FieldsRefused(respelled(replaced(refused.errors, messages, tools), names), refused.overflow)


def replaced(errors: Iterable[FieldError], messages: Sequence[str], tools: Sequence[str] = ()) -> Iterator[FieldError]:
    """Yield the same errors with the places of messages and tools in the request."""

    def place(found: re.Match[str]) -> str:
        places, at = tools if found[1] == "tools" else messages, int(found[2])
        return places[at] if at < len(places) else found[0]

    for error in errors:
        field, message = (_PLACE.sub(place, text, count=1) for text in (error.field, error.message))
        yield msgspec.structs.replace(error, field=field, message=message)


def respelled(errors: Iterable[FieldError], names: Mapping[str, str]) -> list[FieldError]:
    """The same errors with the client's names of the fields; `names` maps our names to the client's."""
    made = []
    for error in errors:
        name, constraint = names.get(error.field, error.field), error.constraint
        message = name + error.message[len(error.field) :] if error.message.startswith(error.field) else error.message
        other = constraint.removeprefix("exclusive(").removesuffix(")")
        if other in names and other != constraint:
            message = message.replace(f"cannot go with {other}", f"cannot go with {names[other]}")
            constraint = f"exclusive({names[other]})"
        made.append(msgspec.structs.replace(error, field=name, constraint=constraint, message=message))
    return made
