"""The descriptions of the routes of `/v1` and related ones in the OpenAPI document. The router has the paths.

Owns no field of any body: the fields are in the structs that are encoded and decoded. Refuses to know: HTTP frameworks,
settings. Pure.
"""

from collections.abc import Mapping
from typing import Annotated, Any, get_args, get_origin

import msgspec

from worker.errors import DeadlineExceeded, WorkerError
from worker.openai.chat import ChatRequest
from worker.openai.chat_message import ChatCompletion
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
from worker.openai.infill import Fill, InfillRequest
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
from worker.protocol.operations import JSON, NOT_NOW, TEXT, Answer, Content, Operation, ServerSentChunk, common_errors
from worker.wire.refusals import Overflow


def _api_error(description: str, *errors: WorkerError, headers: tuple[str, ...] = ()) -> Answer:
    """The answer of one status, with its errors as examples."""
    return _details(description, [error_detail(error) for error in errors], headers)


def _details(description: str, details: list[ErrorDetail], headers: tuple[str, ...] = ()) -> Answer:
    examples = {str(detail.code): msgspec.to_builtins(ApiErrorBody(error=detail)) for detail in details}
    return Answer(description, {JSON: Content(shapes=(ApiErrorBody,), examples=examples)}, headers)


def _json(description: str, shape: Any, headers: tuple[str, ...] = ()) -> Answer:
    return Answer(description, {JSON: Content(shapes=(shape,))}, headers)


_EVERYWHERE: dict[int, Answer] = {
    **common_errors(_api_error),
    405: _details(
        "The route does not support this method.",
        [
            ErrorDetail(
                message="GET is not allowed on /v1/completions: use POST",
                type="invalid_request_error",
                code="method_not_allowed",
            )
        ],
        ("Allow",),
    ),
}
_TOO_LONG = FieldError(
    field="messages",
    constraint="context_length(8192)",
    message="messages have 9000 tokens and need room for one more; the context is 8192",
)
_BODY: dict[int, Answer] = {
    400: _api_error(
        "The body is not a JSON object, or a field breaks a rule; `param` names the first such field.",
        NotAnObject("the body is not JSON"),
        FieldsRefused([_TOO_LONG], Overflow(9000, 8192)),
    ),
    404: _api_error(
        "With `--strict-model`: the request names another model.", UnknownModel("gpt-4", "smollm2-135m-instruct")
    ),
    413: _details("The body exceeds `--max-body-mb`, or 2 MiB without pictures and files (`--max-prompt-chars`).", []),
    415: _details("The content type is not application/json or application/*+json.", []),
}
_STATE: dict[int, Answer] = {
    503: _api_error("The worker takes no jobs now, or its queue is full.", *NOT_NOW, headers=("Retry-After",)),
}
_LATE: dict[int, Answer] = {
    504: _api_error("X-Deadline or `--inference-timeout-sec` has passed.", DeadlineExceeded("X-Deadline passed")),
}
_CANCELLED: dict[int, Answer] = {
    CANCELLED_STATUS: _details(
        "`POST /cancel` ended the job.",
        [ErrorDetail(message="Job cancelled by client request", type="invalid_request_error", code="cancelled")],
    )
}


ASKED_ERRORS = _EVERYWHERE | _BODY | _STATE | _LATE
"""The errors of routes that ask the engine."""
GENERATING_ERRORS = ASKED_ERRORS | _CANCELLED


def documented(shape: type[msgspec.Struct], **own: Any) -> type[msgspec.Struct]:
    """A generating request with the fields that it shares with `/execute`, all of which may be null. `own` are types
    with a more detailed schema than the types that are decoded."""
    fields = {field.name: (own.get(field.name, field.type), field.default) for field in msgspec.structs.fields(shape)}
    fields |= {name: (own.get(name, _or_null(kind)), None) for name, kind in SHARED.items()}
    fields |= {name: (kind, msgspec.NODEFAULT) for name, kind in own.items() if name in _NEEDED}
    return msgspec.defstruct(
        shape.__name__,
        [(name, kind, default) for name, (kind, default) in fields.items()],
        kw_only=True,
        namespace={"__doc__": shape.__doc__},
    )


_NEEDED = ("messages", "prompt", "input")
"""The fields that a request must have."""


def _or_null(kind: Any) -> Any:
    """The type or null. Bounds of the type itself stay with it, its description covers both."""
    if get_origin(kind) is not Annotated:
        return kind | None
    bare, *metas = get_args(kind)
    for meta in metas:
        if meta.description is None:
            bare = Annotated[bare, meta]
    return Annotated[(bare | None, *(meta for meta in metas if meta.description is not None))]


TOP_K = Annotated[
    int | None, doc("Keep this many of the most probable tokens; 0 and -1 are off.", minimum=-1, maximum=2**32 - 1)
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

CHAT_BODY = documented(ChatRequest, messages=_MESSAGES, stop=_STOP, top_k=TOP_K)
COMPLETION_BODY = documented(CompletionRequest, prompt=_PROMPT, stop=_STOP, top_k=TOP_K)

_QUESTION = {
    "model": "any",
    "messages": [{"role": "user", "content": "What is the capital of France?"}],
    "max_tokens": 2,
    "temperature": 0,
}
_TO_FILL = {"input_prefix": "def add(a, b):\n    ", "input_suffix": "\n\nprint(add(1, 2))\n", "n_predict": 16}
_TO_COMPLETE = {"model": "any", "prompt": "The capital of France is", "max_tokens": 2, "temperature": 0}

_ANSWER_HEADERS = ("X-Ignored-Fields",)


def _generating(
    summary: str,
    description: str,
    body: Any,
    example: Mapping[str, Any],
    shape: Any,
    *,
    has_tools: bool = False,
) -> Operation:
    return Operation(
        summary=summary,
        tag="openai",
        description=description,
        body=body,
        body_examples={"whole": example, "stream": {**example, "stream": True}},
        answers={
            200: Answer(
                "The answer; with `stream` its chunks.",
                {JSON: Content(shapes=(shape,)), SSE_TYPE: Content(shapes=(ServerSentChunk,))},
                (*_ANSWER_HEADERS, "X-Ignored-Tools") if has_tools else _ANSWER_HEADERS,
            ),
            **GENERATING_ERRORS,
        },
        takes_deadline=True,
    )


CHAT = _generating(
    "Answer a conversation",
    "The model's own chat template makes the prompt. The jobs end if the client disconnects. An error during a stream "
    'is sent as `data: {"error": …}`, and no `[DONE]` follows.',
    CHAT_BODY,
    _QUESTION,
    ChatCompletion,
    has_tools=True,
)
COMPLETIONS = _generating(
    "Continue one text or several",
    "Raw model input: special tokens are parsed, no template is applied.",
    COMPLETION_BODY,
    _TO_COMPLETE,
    Completion,
)

INFILL = _generating(
    "Fill a gap in a text",
    "llama-server's route for editors. It needs a model with fill-in-the-middle tokens.",
    documented(InfillRequest, stop=_STOP, top_k=TOP_K),
    _TO_FILL,
    Fill,
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
        answers={200: _json("The result.", answer, ("X-Ignored-Fields",)), **ASKED_ERRORS},
    )


def _is_given(name: str, kind: str) -> dict[str, Any]:
    """The rule that a field is present and not null."""
    return {"required": [name], "properties": {name: {"type": kind}}}


RENDER_CHAT = _asking("Show the tokens of a conversation's prompt", CHAT_BODY, _QUESTION, RenderedBody)
RENDER_COMPLETION = _asking("Show the tokens of each prompt", COMPLETION_BODY, _TO_COMPLETE, list[RenderedBody])
TOKENIZE = _asking(
    "Tokenize a text or a conversation",
    TokenizeRequest,
    {"prompt": "Hello"},
    TokensBody,
    {"oneOf": [_is_given("prompt", "string"), _is_given("content", "string"), _is_given("messages", "array")]},
)
DETOKENIZE = _asking(
    "Turn tokens into text", DetokenizeRequest, {"tokens": [1, 2]}, TextBody, {"allOf": [_is_given("tokens", "array")]}
)

MODELS = Operation(
    summary="List the served model",
    tag="openai",
    answers={200: _json("The list, which has one entry.", ModelList), **(_EVERYWHERE | _STATE)},
)
MODEL = Operation(
    summary="Describe the served model",
    tag="openai",
    answers={
        200: _json("The model.", ModelCard),
        404: _api_error("The model is not served here.", UnknownModel("gpt-4", "smollm2-135m-instruct")),
        **(_EVERYWHERE | _STATE),
    },
)
TOKENIZER_INFO = Operation(
    summary="Show the names of special tokens and the chat template",
    tag="openai",
    answers={200: _json("The names and the template.", TokenizerInfo), **(_EVERYWHERE | _STATE)},
)
VERSION = Operation(
    summary="Show the worker's version",
    tag="state",
    answers={200: _json("The version.", dict[str, str])},
)
PING = Operation(
    summary="Readiness probe, same as /readyz",
    tag="state",
    answers={
        200: Answer("The worker takes jobs.", {TEXT: Content(shapes=(str,))}),
        503: Answer("The worker takes no jobs now.", {TEXT: Content(shapes=(str,))}),
    },
)
