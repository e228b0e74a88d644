"""The answer of `POST /v1/responses` as one object: its items, its usage and its settings."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from worker.apis.core.parts import PartStatus
from worker.wire.encoding import Count, doc

Status = Literal["in_progress", "completed", "incomplete", "failed"]
ErrorCode = Literal["server_error", "rate_limit_exceeded", "invalid_prompt"]


class OutputText(msgspec.Struct, frozen=True, kw_only=True, tag="output_text", tag_field="type"):
    """The text of a message."""

    text: str
    annotations: tuple[()] = ()
    logprobs: tuple[()] = ()


class ReasoningText(msgspec.Struct, frozen=True, kw_only=True, tag="reasoning_text", tag_field="type"):
    """The reasoning as the model wrote it."""

    text: str


class SummaryText(msgspec.Struct, frozen=True, kw_only=True, tag="summary_text", tag_field="type"):
    """The reasoning as the model wrote it, in the place of a summary, if the request asks for one."""

    text: str


class OutputMessage(msgspec.Struct, frozen=True, kw_only=True, tag="message", tag_field="type"):
    """A message of the assistant."""

    id: str
    status: PartStatus
    role: Literal["assistant"] = "assistant"
    content: tuple[OutputText, ...] = ()


class ReasoningItem(msgspec.Struct, frozen=True, kw_only=True, tag="reasoning", tag_field="type"):
    """The model's reasoning."""

    id: str
    status: PartStatus
    summary: tuple[SummaryText, ...] = ()
    content: tuple[ReasoningText, ...] | UnsetType = UNSET
    encrypted_content: Annotated[
        str | UnsetType, doc("If `include` asks for it: the text in base64, for the next request's input.")
    ] = UNSET


class FunctionCall(msgspec.Struct, frozen=True, kw_only=True, tag="function_call", tag_field="type"):
    """A call of a function."""

    id: str
    call_id: str
    name: str
    arguments: Annotated[str, doc("JSON text.")]
    status: PartStatus
    namespace: str | UnsetType = UNSET


class CustomToolCall(msgspec.Struct, frozen=True, kw_only=True, tag="custom_tool_call", tag_field="type"):
    """A call of a custom tool."""

    id: str
    call_id: str
    name: str
    input: str
    namespace: str | UnsetType = UNSET


Item = OutputMessage | ReasoningItem | FunctionCall | CustomToolCall


class InputTokensDetails(msgspec.Struct, frozen=True, kw_only=True):
    cached_tokens: Annotated[Count, doc("Tokens whose KV cells were cached.")]
    cache_write_tokens: Count = 0


class OutputTokensDetails(msgspec.Struct, frozen=True, kw_only=True):
    reasoning_tokens: Count


class ResponseUsage(msgspec.Struct, frozen=True, kw_only=True):
    """The cost of the answer in tokens."""

    input_tokens: Count
    input_tokens_details: InputTokensDetails
    output_tokens: Count
    output_tokens_details: OutputTokensDetails
    total_tokens: Count


class ResponseFailure(msgspec.Struct, frozen=True, kw_only=True):
    """The reason why there is no whole answer."""

    code: ErrorCode
    message: str


class Incomplete(msgspec.Struct, frozen=True, kw_only=True):
    reason: Literal["max_output_tokens"] = "max_output_tokens"


class EchoedReasoning(msgspec.Struct, frozen=True, kw_only=True):
    effort: str | None = None
    summary: str | None = None


class ResponseResource(msgspec.Struct, frozen=True, kw_only=True):
    """The answer, with the settings that made it."""

    id: str
    object: Literal["response"] = "response"
    created_at: Annotated[Count, doc("Unix time in seconds.")]
    completed_at: Count | None = None
    status: Status = "in_progress"
    incomplete_details: Incomplete | None = None
    error: ResponseFailure | None = None
    model: str
    previous_response_id: None = None
    instructions: str | None
    output: tuple[Item, ...] = ()
    tools: list[dict[str, Any]]
    tool_choice: str | dict[str, Any]
    truncation: Literal["disabled"] = "disabled"
    parallel_tool_calls: bool
    text: dict[str, Any]
    top_p: float
    presence_penalty: float
    frequency_penalty: float
    top_logprobs: int = 0
    temperature: float
    reasoning: EchoedReasoning
    usage: ResponseUsage | None = None
    max_output_tokens: int | None
    max_tool_calls: int | None
    store: Literal[False] = False
    background: Literal[False] = False
    service_tier: Literal["default"] = "default"
    metadata: dict[str, Any]
    safety_identifier: str | None
    prompt_cache_key: str | None


class InputTokens(msgspec.Struct, frozen=True, kw_only=True):
    """The length of the prompt that a request becomes."""

    object: Literal["response.input_tokens"] = "response.input_tokens"
    input_tokens: Count
