"""The body of `POST /v1/responses` and `/v1/responses/input_tokens`: a conversation, tools and fields.

Owns: the route's own fields, and which of them are refused because the worker keeps nothing between requests. Pure.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any

import msgspec

from worker.apis.core.answers import Choice, Heading
from worker.apis.core.bodies import Problems
from worker.apis.core.constraint_fields import FORMATS, read_format
from worker.apis.core.fields import GeneratingRequest, Length, Members, read_object, read_request, read_struct
from worker.apis.core.request import Request, Terms
from worker.apis.core.thinking import EFFORTS, read_thinking
from worker.apis.core.turns import Turns, read_turns
from worker.apis.responses.events import ResponseAnswer
from worker.apis.responses.items import read_input, tools_in
from worker.apis.responses.offered import read_tools
from worker.apis.responses.resource import EchoedReasoning, ResponseResource
from worker.wire.encoding import doc

ENCODED = "reasoning.encrypted_content"
_LOGPROBS = "message.output_text.logprobs"

_KEEPS_NOTHING = "this worker keeps nothing between requests"
_REFUSED: dict[str, tuple[tuple[Any, ...], str]] = {
    "store": ((False,), f"must be false, because {_KEEPS_NOTHING}"),
    "previous_response_id": (
        (),
        f"is not supported, because {_KEEPS_NOTHING}; send the whole conversation as input",
    ),
    "conversation": ((), f"is not supported, because {_KEEPS_NOTHING}; send the whole conversation as input"),
    "background": ((False,), f"must be false, because {_KEEPS_NOTHING}"),
    "prompt": ((), f"is not supported, because {_KEEPS_NOTHING}; send its text as instructions"),
    "truncation": (("disabled",), "must be disabled: a conversation that does not fit is refused"),
    "top_logprobs": ((0,), "is supported by /v1/chat/completions only; remove it"),
}
"""The fields that the worker does not support: the values that ask for nothing, and the error for all others."""

_WITHOUT_EFFECT = frozenset(
    {"user", "service_tier", "prompt_cache_key", "safety_identifier", "max_tool_calls", "stream_options"}
)

# ── requests ─────────────────────────────────────────────────────────────────────────────────────


class TextSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The form of the answer's text."""

    format: Annotated[
        dict[str, Any] | None, doc("`text`, `json_object`, or `json_schema` with `name` and `schema`.")
    ] = None


class ReasoningSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The amount of reasoning, and the form in which it is sent."""

    effort: Annotated[str | None, doc("How much the model reasons.", enum=[*EFFORTS, None])] = None
    summary: Annotated[
        str | None, doc("auto, concise or detailed: the reasoning is sent in the place of a summary.")
    ] = None


class ResponsesRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The body of `POST /v1/responses`. It may also have `seed` and the sampling fields of `/execute`. A field that is
    null counts as absent. Fields that have no effect are ignored and named in `x-ignored-fields`."""

    model: Annotated[str | None, doc("Any name is accepted, unless `--strict-model` is set.")] = None
    input: Annotated[Any, doc("A text, or the items of the conversation.")] = None
    instructions: Annotated[str | None, doc("A system message before the input.")] = None
    tools: Annotated[Any, doc("Functions, custom tools, and namespaces of these.")] = None
    tool_choice: Annotated[Any, doc("none, auto, required, a tool, or allowed_tools.")] = None
    parallel_tool_calls: Annotated[bool | None, doc("false: the answer has one call at most.")] = None
    text: TextSettings | None = None
    reasoning: ReasoningSettings | None = None
    max_output_tokens: Annotated[int | None, doc("Maximum tokens to generate.", minimum=1)] = None
    stream: Annotated[bool | None, doc("Stream the answer as server-sent events.")] = None
    seed: Annotated[int | None, doc("Makes the answer repeatable.")] = None
    include: Annotated[list[str] | None, doc(f"`{ENCODED}` is supported; others have no effect.")] = None
    metadata: Annotated[dict[str, Any] | None, doc("The answer has it, too.")] = None
    store: Annotated[bool | None, doc("Only false is supported.", enum=[False, None])] = None
    background: Annotated[bool | None, doc("Only false is supported.", enum=[False, None])] = None
    previous_response_id: Annotated[str | None, doc("Not supported.", const=None)] = None
    conversation: Annotated[Any, doc("Not supported.", const=None)] = None
    prompt: Annotated[Any, doc("Not supported.", const=None)] = None
    truncation: Annotated[str | None, doc("Only disabled is supported.", enum=["disabled", None])] = None
    top_logprobs: Annotated[int | None, doc("Only 0 is supported.", enum=[0, None])] = None
    max_tool_calls: Annotated[int | None, doc("No effect: it limits tools that OpenAI runs.")] = None
    user: Annotated[str | None, doc("No effect.")] = None
    service_tier: Annotated[str | None, doc("No effect.")] = None
    prompt_cache_key: Annotated[str | None, doc("No effect.")] = None
    safety_identifier: Annotated[str | None, doc("No effect.")] = None
    stream_options: Annotated[dict[str, Any] | None, doc("No effect.")] = None


def read_response(body: bytes | bytearray, terms: Terms) -> Request:
    """Raises: NotAnObject, UnknownModel, FieldsRefused."""
    members = read_object(body)
    request, problems = read_struct(members, ResponsesRequest)
    _check_kept(problems, members, request)
    turns = Turns(problems)
    if request.instructions:
        turns.say("system", request.instructions, "instructions")
    read_input(turns, request.input)
    offered = read_tools(
        problems,
        request.tools,
        request.tool_choice,
        tools_in(request.input),
        is_parallel=request.parallel_tool_calls is not False,
    )
    effort = None if request.reasoning is None else request.reasoning.effort
    wishes = [] if effort is None else ["reasoning.effort"]
    thinking = read_thinking(problems, "reasoning.effort", effort, terms, wishes=wishes)
    names = {"max_tokens": "max_output_tokens", "response_format": "text.format", "json_schema": "text.format"}
    names["messages"] = "input"
    prompt = read_turns(turns, thinking, offered, terms, names=names)
    included = set(request.include or ())
    read = read_request(
        problems,
        members,
        GeneratingRequest(
            model=request.model,
            seed=request.seed,
            stream=request.stream,
            response_format=read_format(
                problems, "text.format", None if request.text is None else request.text.format, FORMATS
            ),
        ),
        terms,
        prompts=[prompt],
        length=Length(request.max_output_tokens),
        names=names | {"prompt": "input"},
        sent=ResponsesRequest,
        offered=offered,
        thinking=thinking,
        unheeded=_WITHOUT_EFFECT | (set() if included <= {ENCODED} else {"include"}),
        further=turns.left_out,
    )
    summary = None if request.reasoning is None else request.reasoning.summary

    def answers(heading: Heading) -> list[Choice]:
        resource = _resource(request, read, offered.echoed, heading)
        answer = ResponseAnswer(
            resource,
            read.reading,
            in_summary=summary is not None,
            is_encoded=ENCODED in included,
            is_stream=read.is_stream,
        )
        return [answer]

    return replace(read, places=tuple(turns.places), answers=answers)


def _resource(
    request: ResponsesRequest, read: Request, tools: Sequence[dict[str, Any]], heading: Heading
) -> ResponseResource:
    """The answer before its first item. `tools`: those for its own member."""
    reasoning, params = request.reasoning or ReasoningSettings(), read.params
    form = (request.text.format if request.text is not None else None) or {"type": "text"}
    return ResponseResource(
        id=heading.id,
        created_at=heading.created,
        model=heading.model,
        instructions=request.instructions,
        tools=list(tools),
        tool_choice=request.tool_choice or "auto",
        parallel_tool_calls=request.parallel_tool_calls is not False,
        text={"format": form},
        top_p=params.top_p,
        presence_penalty=params.presence_penalty,
        frequency_penalty=params.frequency_penalty,
        temperature=params.temperature,
        reasoning=EchoedReasoning(effort=reasoning.effort, summary=reasoning.summary),
        max_output_tokens=request.max_output_tokens,
        max_tool_calls=request.max_tool_calls,
        metadata=request.metadata or {},
        safety_identifier=request.safety_identifier,
        prompt_cache_key=request.prompt_cache_key,
    )


def _check_kept(problems: Problems, members: Members, request: ResponsesRequest) -> None:
    for name, (idle, text) in _REFUSED.items():
        value = members.get(name)
        if value is not None and value not in idle:
            problems.add(name, "unsupported", text)
    if _LOGPROBS in (request.include or ()):
        text = f"must not have {_LOGPROBS}, which /v1/chat/completions only supports; remove it"
        problems.add("include", "unsupported", text)
