"""The descriptions of `/v1/messages`, `/v1/messages/count_tokens` and `/api/hello` in the OpenAPI document.

Owns no field of any body: the fields are in the structs that are encoded and decoded. Refuses to know: HTTP frameworks,
settings. Pure.
"""

from typing import Annotated, Any

import msgspec

from worker.anthropic.answer import AnswerMessage, TokenCount
from worker.anthropic.blocks import Block, GivenMessage
from worker.anthropic.errors import MessagesError, MessagesErrorBody, error_detail
from worker.anthropic.offered import MessageTool
from worker.anthropic.request import MessagesRequest
from worker.errors import DeadlineExceeded, WorkerError
from worker.openai.errors import CANCELLED_STATUS, NotAnObject, UnknownModel
from worker.openai.operations import TOP_K, documented
from worker.protocol.bodies import FieldError, FieldsRefused, doc
from worker.protocol.events import SSE_TYPE
from worker.protocol.operations import JSON, NOT_NOW, TEXT, Answer, Content, Operation, ServerSentChunk, common_errors
from worker.wire.refusals import Overflow

_BODY = documented(
    MessagesRequest,
    messages=Annotated[list[GivenMessage], doc("The conversation.")],
    system=Annotated[str | list[Block] | None, doc("A text, or text blocks.")],
    top_k=TOP_K,
    tools=Annotated[list[MessageTool] | None, doc("Tools of the client.")],
)
_EXAMPLE: dict[str, Any] = {
    "model": "any",
    "max_tokens": 16,
    "messages": [{"role": "user", "content": "What is the capital of France?"}],
}
_HEADERS = ("X-Ignored-Fields", "X-Ignored-Tools")


def _details(description: str, details: list[MessagesError], headers: tuple[str, ...] = ()) -> Answer:
    examples = {str(detail.type): msgspec.to_builtins(MessagesErrorBody(error=detail)) for detail in details}
    return Answer(description, {JSON: Content(shapes=(MessagesErrorBody,), examples=examples)}, headers)


def _errors(description: str, *errors: WorkerError, headers: tuple[str, ...] = ()) -> Answer:
    return _details(description, [error_detail(error) for error in errors], headers)


_TOO_LONG = FieldError(field="messages", constraint="context_length(8192)", message="")
_ASKED: dict[int, Answer] = {
    400: _errors(
        "The body is not a JSON object, or a field breaks a rule.",
        NotAnObject("the body is not JSON"),
        FieldsRefused([_TOO_LONG], Overflow(9000, 8192)),
    ),
    **common_errors(_errors),
    404: _errors(
        "With `--strict-model`: the request names another model.", UnknownModel("claude", "smollm2-135m-instruct")
    ),
    405: _details(
        "The route does not support this method.",
        [MessagesError(type="invalid_request_error", message="GET is not allowed on /v1/messages: use POST")],
        ("Allow",),
    ),
    413: _details("The body exceeds `--max-body-mb`, or 2 MiB without pictures and files (`--max-prompt-chars`).", []),
    415: _details("The content type is not application/json or application/*+json.", []),
    503: _errors("The worker takes no jobs now, or its queue is full.", *NOT_NOW, headers=("Retry-After",)),
    504: _errors("X-Deadline or `--inference-timeout-sec` has passed.", DeadlineExceeded("X-Deadline passed")),
}
_GENERATING: dict[int, Answer] = {
    CANCELLED_STATUS: _details(
        "`POST /cancel` ended the job.",
        [MessagesError(type="invalid_request_error", message="Job cancelled by client request")],
    )
}

MESSAGES = Operation(
    summary="Answer a conversation in Anthropic's form",
    tag="openai",
    description="Events come in Anthropic's order. An error during a stream is the event `error`. The token may be in "
    "`x-api-key`, too.",
    body=_BODY,
    body_examples={"whole": _EXAMPLE, "stream": {**_EXAMPLE, "stream": True}},
    answers={
        200: Answer(
            "The answer; with `stream` its events.",
            {JSON: Content(shapes=(AnswerMessage,)), SSE_TYPE: Content(shapes=(ServerSentChunk,))},
            _HEADERS,
        ),
        **(_ASKED | _GENERATING),
    },
    takes_deadline=True,
)
COUNT_TOKENS = Operation(
    summary="Count the tokens of a Messages request's prompt",
    tag="openai",
    body=_BODY,
    body_examples={"example": _EXAMPLE},
    answers={200: Answer("The count.", {JSON: Content(shapes=(TokenCount,))}, _HEADERS), **_ASKED},
)
HELLO = Operation(
    summary="Probe of Claude Code",
    tag="state",
    answers={200: Answer("The worker answers.", {TEXT: Content(shapes=(str,))})},
)
