"""The body of `POST /v1/responses` and `/v1/responses/input_tokens`: a conversation, tools and fields.

Owns: the route's own fields, and which of them are refused because the worker keeps nothing between requests. Pure.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

import msgspec

from worker.apis.core.answers import Choice, Heading
from worker.apis.core.bodies import Problems
from worker.apis.core.constraint_fields import NamedSchema, ResponseFormat
from worker.apis.core.fields import (
    SHARED,
    GeneratingRequest,
    Generation,
    Members,
    Terms,
    conversing,
    ignored_fields,
    read_foreign,
    read_object,
    read_struct,
)
from worker.apis.core.thinking import EFFORTS, thinking_of, with_idle_named
from worker.apis.core.turns import Turns, read_turns
from worker.apis.responses.events import ResponseAnswer
from worker.apis.responses.items import read_input, tools_in
from worker.apis.responses.offered import read_tools
from worker.apis.responses.resource import EchoedReasoning, InputTokens, ResponseResource
from worker.wire.encoding import doc
from worker.wire.jobs import MarkUse
from worker.wire.prompts import Conversation
from worker.wire.questions import Tokenized

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


@dataclass(frozen=True, slots=True)
class ResponseAsked:
    """A request that has passed every check which does not need its tokens."""

    prompt: Conversation
    generation: Generation
    request: ResponsesRequest
    tools: Sequence[dict[str, Any]]
    """The tools for the answer's own member."""
    marks: ClassVar[MarkUse] = "split"

    def choices(self, heading: Heading) -> list[Choice]:
        """The one answer."""
        reasoning = self.request.reasoning or ReasoningSettings()
        answer = ResponseAnswer(
            self._resource(heading),
            self.generation.reading,
            in_summary=reasoning.summary is not None,
            is_encoded=ENCODED in (self.request.include or ()),
            is_stream=self.generation.is_stream,
        )
        return [answer]

    def _resource(self, heading: Heading) -> ResponseResource:
        request, fields = self.request, self.generation.fields
        reasoning = request.reasoning or ReasoningSettings()
        form = (request.text.format if request.text is not None else None) or {"type": "text"}
        return ResponseResource(
            id=heading.id,
            created_at=heading.created,
            model=heading.model,
            instructions=request.instructions,
            tools=list(self.tools),
            tool_choice=request.tool_choice or "auto",
            parallel_tool_calls=request.parallel_tool_calls is not False,
            text={"format": form},
            top_p=fields.top_p,
            presence_penalty=fields.presence_penalty,
            frequency_penalty=fields.frequency_penalty,
            temperature=fields.temperature,
            reasoning=EchoedReasoning(effort=reasoning.effort, summary=reasoning.summary),
            max_output_tokens=request.max_output_tokens,
            max_tool_calls=request.max_tool_calls,
            metadata=request.metadata or {},
            safety_identifier=request.safety_identifier,
            prompt_cache_key=request.prompt_cache_key,
        )


def read_response(body: bytes | bytearray, terms: Terms) -> ResponseAsked:
    """Raises: NotAnObject, UnknownModel, FieldsRefused."""
    members = read_object(body)
    problems = Problems()
    request = read_struct(problems, ResponsesRequest, members)
    _check_kept(problems, members, request)
    turns = Turns()
    if request.instructions:
        turns.say("system", request.instructions, "instructions")
    left_out = read_input(problems, request.input, turns)
    offered = read_tools(
        problems,
        request.tools,
        request.tool_choice,
        tools_in(request.input),
        is_parallel=request.parallel_tool_calls is not False,
    )
    effort = None if request.reasoning is None else request.reasoning.effort
    thinking = with_idle_named(
        thinking_of(problems, "reasoning.effort", effort, terms.template_keys),
        [] if effort is None else ["reasoning.effort"],
        can_limit=terms.can_limit_reasoning,
    )
    names = {"max_tokens": "max_output_tokens", "response_format": "text.format", "json_schema": "text.format"}
    names["messages"] = "input"
    prompt = read_turns(problems, turns, thinking, offered, terms, names=names)
    generation = read_foreign(
        problems,
        members,
        GeneratingRequest(
            model=request.model,
            seed=request.seed,
            stream=request.stream,
            response_format=_response_format(problems, request.text),
        ),
        terms,
        max_tokens=request.max_output_tokens,
        names=names,
    )
    generation = conversing(generation, offered, thinking, terms)
    assert prompt is not None  # or there were problems
    return ResponseAsked(
        prompt,
        replace(
            generation,
            names={**generation.names, "prompt": "input"},
            ignored=_ignored(members, request, [*left_out, *offered.unread, *thinking.ignored]),
            places=tuple(turns.places),
        ),
        request,
        offered.echoed,
    )


def _check_kept(problems: Problems, members: Members, request: ResponsesRequest) -> None:
    for name, (idle, text) in _REFUSED.items():
        value = members.get(name)
        if value is not None and value not in idle:
            problems.add(name, "unsupported", text)
    if _LOGPROBS in (request.include or ()):
        text = f"must not have {_LOGPROBS}, which /v1/chat/completions only supports; remove it"
        problems.add("include", "unsupported", text)


def _response_format(problems: Problems, settings: TextSettings | None) -> ResponseFormat | None:
    """The form of the answer in the spelling of chats."""
    form = None if settings is None else settings.format
    if form is None:
        return None
    kind, schema = form.get("type"), form.get("schema")
    if kind not in ("text", "json_object", "json_schema"):
        problems.add("text.format.type", "one_of", "must be one of text, json_object, json_schema")
        return None
    if kind == "json_schema" and not isinstance(schema, dict):
        problems.add("text.format.schema", "required", "is missing; send the schema of the answer")
        return None
    named = NamedSchema(schema=schema) if kind == "json_schema" else None
    return ResponseFormat(type=kind, json_schema=named)


def _ignored(members: Members, request: ResponsesRequest, further: Sequence[str]) -> tuple[str, ...]:
    """The members that have no effect."""
    asked = request.include or ()
    unheeded = _WITHOUT_EFFECT | (set() if set(asked) <= {ENCODED} else {"include"})
    return ignored_fields(members, ResponsesRequest, known=SHARED, unheeded=unheeded, further=further)


def input_tokens(answer: Tokenized) -> InputTokens:
    return InputTokens(input_tokens=len(answer.tokens))
