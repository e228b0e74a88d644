"""What the OpenAPI document says about each route of `/v1` and its kin. The router has the paths.

Owns no field of any body: those are the structs that are encoded and decoded. Refuses to know: HTTP frameworks,
settings. Pure.
"""

from collections.abc import Mapping
from typing import Annotated, Any, get_args, get_origin

import msgspec

from worker.errors import DeadlineExceeded, InternalError, Unauthorized, WorkerError
from worker.openai.chat import ChatCompletion, ChatRequest
from worker.openai.completions import Completion, CompletionRequest
from worker.openai.errors import (
    CANCELLED_STATUS,
    ApiErrorBody,
    ErrorDetail,
    NotAnObject,
    UnknownModel,
    error_detail,
)
from worker.openai.fields import MAX_STOPS, SHARED
from worker.openai.models import ModelCard, ModelList
from worker.openai.tokens import (
    DetokenizeRequest,
    RenderedBody,
    TextBody,
    TokenizeRequest,
    TokenizerInfo,
    TokensBody,
)
from worker.protocol.bodies import FieldError, FieldsRefused, doc
from worker.protocol.events import SSE_TYPE
from worker.protocol.operations import JSON, NOT_NOW, TEXT, Answer, Content, Operation, ServerSentChunk
from worker.wire.messages import Overflow


def _api_error(description: str, *errors: WorkerError, headers: tuple[str, ...] = ()) -> Answer:
    """Errors of one status, as they are encoded."""
    return _details(description, [error_detail(error) for error in errors], headers)


def _details(description: str, details: list[ErrorDetail], headers: tuple[str, ...] = ()) -> Answer:
    examples = {str(detail.code): msgspec.to_builtins(ApiErrorBody(error=detail)) for detail in details}
    return Answer(description, {JSON: Content(shapes=(ApiErrorBody,), examples=examples)}, headers)


def _json(description: str, shape: Any, headers: tuple[str, ...] = ()) -> Answer:
    return Answer(description, {JSON: Content(shapes=(shape,))}, headers)


_EVERYWHERE: dict[int, Answer] = {
    401: _api_error(
        "A token is set (`--api-key`), and the request does not carry it.",
        Unauthorized("this route needs the header 'Authorization: Bearer <token>' with the right token"),
        headers=("WWW-Authenticate",),
    ),
    405: _details(
        "Another method.",
        [
            ErrorDetail(
                message="GET is not allowed on /v1/completions: use POST",
                type="invalid_request_error",
                code="method_not_allowed",
            )
        ],
        ("Allow",),
    ),
    500: _api_error("A fault of the worker's own.", InternalError("the request could not be answered")),
}
_TOO_LONG = FieldError(
    field="messages",
    constraint="context_length(8192)",
    message="messages have 9000 tokens and need room for one more; the context is 8192",
)
_BODY: dict[int, Answer] = {
    400: _api_error(
        "Not a JSON object, or rules are broken; `param` names the first field.",
        NotAnObject("the body is not JSON"),
        FieldsRefused([_TOO_LONG], Overflow(9000, 8192)),
    ),
    404: _api_error("With `--strict-model`: another model.", UnknownModel("gpt-4", "smollm2-135m-instruct")),
    413: _details("A body over 2 MiB, or what a larger `--max-prompt-chars` makes of it.", []),
    415: _details("Not application/json or application/*+json.", []),
}
_STATE: dict[int, Answer] = {
    503: _api_error("Not now, by the state of the worker or of its queue.", *NOT_NOW, headers=("Retry-After",)),
}
_LATE: dict[int, Answer] = {
    504: _api_error("X-Deadline, or `--inference-timeout-sec`, passed.", DeadlineExceeded("X-Deadline passed")),
}
_CANCELLED: dict[int, Answer] = {
    CANCELLED_STATUS: _details(
        "`POST /cancel` ended it.",
        [ErrorDetail(message="Job cancelled by client request", type="invalid_request_error", code="cancelled")],
    )
}


def _documented(shape: type[msgspec.Struct], **own: Any) -> type[msgspec.Struct]:
    """A generating request with the fields that it shares with `/execute`, all of which may be null; `own` are types
    that say more than those which are read."""
    fields = {field.name: (own.get(field.name, field.type), field.default) for field in msgspec.structs.fields(shape)}
    fields |= {name: (own.get(name, _or_null(kind)), None) for name, kind in SHARED.items()}
    fields |= {name: (kind, msgspec.NODEFAULT) for name, kind in own.items() if name in ("messages", "prompt")}
    return msgspec.defstruct(
        shape.__name__,
        [(name, kind, default) for name, (kind, default) in fields.items()],
        kw_only=True,
        namespace={"__doc__": shape.__doc__},
    )


def _or_null(kind: Any) -> Any:
    """The type with null beside it. Bounds of the type itself stay with it, others go beside both."""
    if get_origin(kind) is not Annotated:
        return kind | None
    bare, *metas = get_args(kind)
    for meta in metas:
        if meta.description is None:
            bare = Annotated[bare, meta]
    return Annotated[(bare | None, *(meta for meta in metas if meta.description is not None))]


_TOP_K = Annotated[
    int | None, doc("Keep so many of the most probable tokens; 0 and -1 are off.", minimum=-1, maximum=2**32 - 1)
]
_STOP = Annotated[
    str | list[Annotated[str, doc("1 to 100 bytes of UTF-8.", minLength=1, maxLength=100)]] | None,
    doc("Texts that end the answer and are not shown.", maxItems=MAX_STOPS, minLength=1, maxLength=100),
]
_IDS = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}
_TEXTS = {"type": "string", "minLength": 1}
_PROMPT = Annotated[
    Any,
    doc(
        "A text, token ids, or a list of either: raw model input, no template is applied.",
        anyOf=[
            _TEXTS,
            _IDS,
            {"type": "array", "items": _TEXTS, "minItems": 1, "maxItems": 128},
            {"type": "array", "items": _IDS, "minItems": 1, "maxItems": 128},
        ],
    ),
]
_MESSAGES = Annotated[
    Any,
    doc("The conversation.", type="array", items={"$ref": "#/components/schemas/Message"}, minItems=1),
]

CHAT_BODY = _documented(ChatRequest, messages=_MESSAGES, stop=_STOP, top_k=_TOP_K)
COMPLETION_BODY = _documented(CompletionRequest, prompt=_PROMPT, stop=_STOP, top_k=_TOP_K)

_QUESTION = {
    "model": "any",
    "messages": [{"role": "user", "content": "What is the capital of France?"}],
    "max_tokens": 2,
    "temperature": 0,
}
_TO_COMPLETE = {"model": "any", "prompt": "The capital of France is", "max_tokens": 2, "temperature": 0}

_ANSWER_HEADERS = ("X-Ignored-Fields",)


def _generating(summary: str, description: str, body: Any, example: Mapping[str, Any], shape: Any) -> Operation:
    return Operation(
        summary=summary,
        tag="openai",
        description=description,
        body=body,
        body_examples={"whole": example, "stream": {**example, "stream": True}},
        answers={
            200: Answer(
                "The answer, or with `stream` its chunks.",
                {JSON: Content(shapes=(shape,)), SSE_TYPE: Content(shapes=(ServerSentChunk,))},
                _ANSWER_HEADERS,
            ),
            **(_EVERYWHERE | _BODY | _STATE | _LATE | _CANCELLED),
        },
        takes_deadline=True,
    )


CHAT = _generating(
    "Answer a conversation",
    "The model's own chat template makes the prompt. A client that leaves ends its jobs; an error in mid-stream is "
    '`data: {"error": …}` without `[DONE]`.',
    CHAT_BODY,
    _QUESTION,
    ChatCompletion,
)
COMPLETIONS = _generating(
    "Go on with a text, or several",
    "Raw model input: special tokens are parsed, no template is applied.",
    COMPLETION_BODY,
    _TO_COMPLETE,
    Completion,
)


def _asking(
    summary: str, body: Any, example: Mapping[str, Any], answer: Any, rules: Mapping[str, Any] | None = None
) -> Operation:
    return Operation(
        summary=summary,
        tag="openai",
        body=body,
        body_rules=rules or {},
        body_examples={"example": example},
        answers={200: _json("It.", answer, ("X-Ignored-Fields",)), **(_EVERYWHERE | _BODY | _STATE | _LATE)},
    )


def _is_given(name: str, kind: str) -> dict[str, Any]:
    """The rule that a field is there and not null."""
    return {"required": [name], "properties": {name: {"type": kind}}}


RENDER_CHAT = _asking("The tokens of a conversation's prompt", CHAT_BODY, _QUESTION, RenderedBody)
RENDER_COMPLETION = _asking("The tokens of each prompt", COMPLETION_BODY, _TO_COMPLETE, list[RenderedBody])
TOKENIZE = _asking(
    "The tokens of a text or a conversation",
    TokenizeRequest,
    {"prompt": "Hello"},
    TokensBody,
    {"oneOf": [_is_given("prompt", "string"), _is_given("content", "string"), _is_given("messages", "array")]},
)
DETOKENIZE = _asking(
    "The text of tokens", DetokenizeRequest, {"tokens": [1, 2]}, TextBody, {"allOf": [_is_given("tokens", "array")]}
)

MODELS = Operation(
    summary="The model that is served, in a list",
    tag="openai",
    answers={200: _json("It.", ModelList), **(_EVERYWHERE | _STATE)},
)
MODEL = Operation(
    summary="The model that is served",
    tag="openai",
    answers={
        200: _json("It.", ModelCard),
        404: _api_error("Another model.", UnknownModel("gpt-4", "smollm2-135m-instruct")),
        **(_EVERYWHERE | _STATE),
    },
)
TOKENIZER_INFO = Operation(
    summary="The names of special tokens, and the chat template",
    tag="openai",
    answers={200: _json("They.", TokenizerInfo), **(_EVERYWHERE | _STATE)},
)
VERSION = Operation(
    summary="The worker's version",
    tag="state",
    answers={200: _json("It.", dict[str, str])},
)
PING = Operation(
    summary="Readiness probe, as /readyz",
    tag="state",
    answers={
        200: Answer("Jobs are taken.", {TEXT: Content(shapes=(str,))}),
        503: Answer("None are taken now.", {TEXT: Content(shapes=(str,))}),
    },
)
