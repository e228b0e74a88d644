"""The descriptions of `/v1/responses` and `/v1/responses/input_tokens` in the OpenAPI document.

Owns no field of any body: the fields are in the structs that are encoded and decoded. Refuses to know: HTTP frameworks,
settings. Pure.
"""

from typing import Annotated, Any

from worker.openai.operations import ASKED_ERRORS, GENERATING_ERRORS, TOP_K, documented
from worker.openai.responses.items import InputItem
from worker.openai.responses.offered import ResponseTool
from worker.openai.responses.request import ResponsesRequest
from worker.openai.responses.resource import InputTokens, ResponseResource
from worker.protocol.bodies import doc
from worker.protocol.events import SSE_TYPE
from worker.protocol.operations import JSON, Answer, Content, Operation, ServerSentChunk

_BODY = documented(
    ResponsesRequest,
    input=Annotated[str | list[InputItem], doc("A text, or the items of the conversation.")],
    top_k=TOP_K,
    tools=Annotated[list[ResponseTool] | None, doc("Functions, custom tools, and namespaces of these.")],
)
_EXAMPLE: dict[str, Any] = {
    "model": "any",
    "input": "What is the capital of France?",
    "max_output_tokens": 16,
    "temperature": 0,
}
_HEADERS = ("X-Ignored-Fields", "X-Ignored-Tools")

RESPONSES = Operation(
    summary="Answer a conversation in OpenAI's Responses form",
    tag="openai",
    description="Nothing is kept between requests: `store: true`, `previous_response_id` and `background` are refused. "
    "A failure during a stream is the event `response.failed`.",
    body=_BODY,
    body_examples={"whole": _EXAMPLE, "stream": {**_EXAMPLE, "stream": True}},
    answers={
        200: Answer(
            "The answer; with `stream` its events.",
            {JSON: Content(shapes=(ResponseResource,)), SSE_TYPE: Content(shapes=(ServerSentChunk,))},
            _HEADERS,
        ),
        **GENERATING_ERRORS,
    },
    takes_deadline=True,
)
INPUT_TOKENS = Operation(
    summary="Count the tokens of a Responses request's prompt",
    tag="openai",
    body=_BODY,
    body_examples={"example": _EXAMPLE},
    answers={200: Answer("The count.", {JSON: Content(shapes=(InputTokens,))}, _HEADERS), **ASKED_ERRORS},
)
