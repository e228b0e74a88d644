"""The body of `POST /v1/chat/completions`: a conversation, tools and fields.

Functions are offered; other kinds of tools are left out and named.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated, Any

import msgspec

from worker.apis.chat.message import ChatAnswer
from worker.apis.core.answers import Allowance, Choice, Heading
from worker.apis.core.bodies import Problems
from worker.apis.core.conversation import read_conversation
from worker.apis.core.fields import GeneratingRequest, Length, idle_members, read_object, read_request, read_struct
from worker.apis.core.payloads import MediaPlaces
from worker.apis.core.request import Request, Terms
from worker.apis.core.rules import int_range
from worker.apis.core.thinking import EFFORTS, Thinking, read_thinking
from worker.apis.core.tools import (
    CallChoice,
    ChosenTool,
    Offered,
    Tool,
    allowed_mode,
    check_tools,
    checked_use,
    function_tool,
    names_one,
    read_choice,
)
from worker.wire.chat_format import ChatFormat
from worker.wire.encoding import doc
from worker.wire.jobs import MAX_LOGPROBS

_MEDIA = ("image_url", "image_url.url", "file.file_data", "input_audio.data", "video_url.url")
PAYLOADS = MediaPlaces(frozenset(f".messages[].content[].{name}" for name in _MEDIA), frozenset({"", "image_url"}))
_EFFORT = "reasoning_effort"
_BUDGETS = ("thinking_token_budget", "thinking_budget_tokens")
"""vLLM's name and llama-server's."""


class FunctionDefinition(msgspec.Struct, frozen=True, kw_only=True):
    """A function that the model may call."""

    name: Annotated[str, doc("1 to 128 ASCII letters, digits or characters of _.:/-")]
    description: Annotated[str | None, doc("The model reads it.")] = None
    parameters: Annotated[dict[str, Any] | None, doc("The JSON schema of the arguments, an object's.")] = None
    strict: Annotated[bool | None, doc("Calls follow the schema in any case.")] = None


class ChatTool(msgspec.Struct, frozen=True, kw_only=True):
    """A tool."""

    type: Annotated[str, doc("Other types than function are left out and named in x-ignored-tools.")] = "function"
    function: FunctionDefinition | None = None


class ChatThinking(msgspec.Struct, frozen=True, kw_only=True):
    """The reasoning that a request asks for."""

    type: Annotated[str | None, doc("disabled asks for none.")] = None
    budget_tokens: Annotated[int | None, doc("The most tokens of reasoning.", minimum=0)] = None


class ChatRequest(GeneratingRequest, frozen=True, kw_only=True):
    """The body of `POST /v1/chat/completions`. It may also have the sampling fields of `/execute`. A field that is null
    counts as absent. Fields that have no effect are ignored and named in `x-ignored-fields`."""

    messages: Annotated[Any, doc("The conversation.")] = None
    max_completion_tokens: Annotated[int | None, doc("Alias of max_tokens.", minimum=1)] = None
    logprobs: Annotated[bool | None, doc("Report the log-probabilities of the answer's tokens.")] = None
    top_logprobs: Annotated[
        int | None, doc("Also report this many of the most probable tokens. Only with logprobs.", minimum=0, maximum=20)
    ] = None
    tools: Annotated[list[ChatTool] | None, doc("The functions that the model may call.")] = None
    tool_choice: Annotated[str | dict[str, Any] | None, doc("none, auto, required, a function, or allowed_tools.")] = (
        None
    )
    parallel_tool_calls: Annotated[bool | None, doc("false: the answer has one call at most.")] = None
    reasoning_effort: Annotated[
        str | None, doc(f"One of {', '.join(EFFORTS)}, or a word of the chat template's own.")
    ] = None
    thinking: Annotated[ChatThinking | None, doc("Reasoning, in the form of other servers.")] = None
    thinking_token_budget: Annotated[int | None, doc("The most tokens of reasoning.", minimum=0)] = None
    thinking_budget_tokens: Annotated[int | None, doc("Alias of thinking_token_budget.", minimum=0)] = None
    reasoning_format: Annotated[str | None, doc("none leaves the reasoning in the content, between its markers.")] = (
        None
    )
    chat_template_kwargs: Annotated[dict[str, Any] | None, doc("Variables for the chat template.")] = None
    add_generation_prompt: Annotated[bool | None, doc("Answer with the assistant's next message.")] = None
    continue_final_message: Annotated[bool | None, doc("Continue the last message instead.")] = None
    prompt_logprobs: Annotated[int | None, doc("Only /v1/completions supports it.", const=None)] = None


def read_chat(body: bytes | bytearray, terms: Terms) -> Request:
    """Raises: NotAnObject, UnknownModel, FieldsRefused."""
    members = read_object(body)
    request, problems = read_struct(members, ChatRequest)
    _check_contradictions(problems, request)
    offered = read_tools(
        problems,
        request.tools or (),
        members.get("tools"),
        request.tool_choice,
        is_parallel=request.parallel_tool_calls is not False,
    )
    thinking = _thinking(problems, request, terms)
    prompt = read_conversation(
        problems,
        request.messages,
        tools=offered.use.for_template(),
        template_kwargs=thinking.variables | (request.chat_template_kwargs or {}),
        add_generation_prompt=request.add_generation_prompt,
        continue_final_message=request.continue_final_message,
        max_chars=terms.max_text_chars,
    )
    length = ("max_tokens", request.max_tokens)
    if request.max_completion_tokens is not None:
        length = ("max_completion_tokens", request.max_completion_tokens)
    read = read_request(
        problems,
        members,
        request,
        terms,
        prompts=[prompt],
        length=Length(length[1]),
        names={"prompt": "messages", "logprobs": "top_logprobs", "max_tokens": length[0]},
        logprobs=(request.top_logprobs or 0) if request.logprobs else None,
        offered=offered,
        thinking=thinking,
        further=idle_members(request.messages, request.chat_template_kwargs, terms),
    )
    reading = replace(read.reading, keeps_thoughts=request.reasoning_format == "none")
    if read.marks == "shown":
        reading = replace(reading, form=_unmarked(reading.form), is_divided=True)
    options, wants_logprobs = (read.options if read.is_stream else None), bool(request.logprobs)
    fields = terms.reasoning_fields

    def answers(heading: Heading) -> list[Choice]:
        allowance = Allowance()
        message = partial(ChatAnswer, wants_logprobs=wants_logprobs, reasoning_fields=fields)
        return [message(i, allowance, heading, options, reading) for i in range(read.n)]

    return replace(read, reading=reading, answers=answers)


def _unmarked(form: ChatFormat) -> ChatFormat:
    """The form of an answer whose control tokens are shown: only calls are read out of it."""
    return ChatFormat(name=form.name, source=form.source, calls=form.calls, opening=form.opening)


def _thinking(problems: Problems, request: ChatRequest, terms: Terms) -> Thinking:
    """The wishes about reasoning; chat_template_kwargs overrides their variables."""
    settings = request.thinking or ChatThinking()
    budgets = {name: getattr(request, name) for name in _BUDGETS} | {"thinking.budget_tokens": settings.budget_tokens}
    given = {name: budget for name, budget in budgets.items() if budget is not None}
    for name, budget in given.items():
        int_range(problems, name, budget, 0)
    return read_thinking(
        problems,
        _EFFORT,
        request.reasoning_effort,
        terms,
        is_on=False if settings.type == "disabled" else None,
        budget=min(given.values(), default=None),
        wishes=[name for name in (_EFFORT, "thinking") if getattr(request, name) is not None],
        limits=sorted(given),
        allows_any=True,
    )


def _check_contradictions(problems: Problems, request: ChatRequest) -> None:
    if None not in (request.max_tokens, request.max_completion_tokens) and (
        request.max_tokens != request.max_completion_tokens
    ):
        text = "and max_completion_tokens set the same limit but differ; send one of them"
        problems.add("max_tokens", "exclusive(max_completion_tokens)", text)
    if request.top_logprobs is not None and not request.logprobs:
        # With logprobs the rule that /execute has too reads the number.
        int_range(problems, "top_logprobs", request.top_logprobs, 0, MAX_LOGPROBS)
        problems.add("top_logprobs", "needs(logprobs)", "needs logprobs to be true")
    if request.prompt_logprobs is not None:
        problems.add("prompt_logprobs", "unsupported", "is supported by /v1/completions only; remove it")


class _Named(msgspec.Struct, frozen=True, kw_only=True):
    name: str


class _ChosenTool(ChosenTool, frozen=True, kw_only=True):
    function: _Named | None = None
    allowed_tools: dict[str, Any] | None = None


class _AllowedTools(msgspec.Struct, frozen=True, kw_only=True):
    mode: str = "auto"
    tools: list[_ChosenTool]


def read_tools(
    problems: Problems, tools: Sequence[ChatTool], raw: object, choice: object, *, is_parallel: bool
) -> Offered:
    """The tools. `raw` are the same as the client sent them."""
    found: list[Tool] = []
    offered = Offered()
    for at, tool in enumerate(tools):
        if problems.is_full:
            return Offered()
        place = f"tools[{at}].function"
        if tool.type != "function":
            offered.skipped.append(_name_of(raw[at] if isinstance(raw, list) else None, tool.type))
        elif tool.function is None:
            problems.add(place, "required", "is missing")
        elif (read := function_tool(problems, place, tool.function)) is not None:
            found.append(read)
    check_tools(problems, found)
    word, only = _choice(problems, choice)
    is_parallel = is_parallel and not names_one(choice)
    offered.use = checked_use(problems, found, word, only, is_parallel=is_parallel)
    return offered


def _name_of(raw: object, kind: str) -> str:
    """The name of a tool of another kind, as far as it has one."""
    if isinstance(raw, dict):
        inner = raw.get(kind)
        for members in (raw, inner):
            if isinstance(members, dict) and isinstance(members.get("name"), str):
                return str(members["name"])
    return kind


def _choice(problems: Problems, choice: object) -> tuple[CallChoice, frozenset[str] | None]:
    """The choice, and the names of the tools that it allows, if they are not all."""
    chosen = read_choice(problems, choice, _ChosenTool, ["function"])
    if isinstance(chosen, str):
        return chosen, None
    if chosen.type == "function":
        return "required", _names(problems, "tool_choice", [chosen])
    place = "tool_choice.allowed_tools"
    allowed = problems.shaped(place, chosen.allowed_tools, _AllowedTools)
    if allowed is None:
        return "auto", None
    word = allowed_mode(problems, place, allowed.mode, allowed.tools)
    return word, _names(problems, f"{place}.tools", allowed.tools)


def _names(problems: Problems, place: str, chosen: Sequence[_ChosenTool]) -> frozenset[str]:
    """The names of chosen functions."""
    names = [one.function.name for one in chosen if one.function is not None]
    if len(names) < len(chosen):
        problems.add(f"{place}.function", "required", "is missing")
    return frozenset(names)
