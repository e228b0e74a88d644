"""The body of `POST /v1/responses` and `/v1/responses/input_tokens`: a conversation, tools and fields.

Fields are refused that need a worker which keeps something between requests. Functions, custom tools and namespaces of
both are offered; the kinds of tools that OpenAI runs itself are left out and named.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any

import msgspec

from worker.apis.core.answers import Choice, Heading
from worker.apis.core.bodies import Problems
from worker.apis.core.constraint_fields import FORMATS, read_format
from worker.apis.core.conversation import Turns, unread
from worker.apis.core.fields import GeneratingRequest, Length, Members, read_object, read_request, read_struct
from worker.apis.core.request import Request, Terms
from worker.apis.core.thinking import EFFORTS, read_thinking
from worker.apis.core.tools import (
    MAX_TOOLS,
    TEXT_ARGUMENT,
    CallChoice,
    ChosenTool,
    Offered,
    Tool,
    allowed_mode,
    check_count,
    check_tools,
    checked_use,
    flattened,
    function_tool,
    listed,
    named_tool,
    names_one,
    read_choice,
)
from worker.apis.responses.events import ResponseAnswer
from worker.apis.responses.items import read_input, tools_in
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


class TextFormat(msgspec.Struct, frozen=True, kw_only=True):
    """The form of a custom tool's text."""

    type: Annotated[str, doc("text: any text. grammar: a text that follows the definition.")] = "text"
    syntax: Annotated[str | None, doc("The notation of the definition: lark or regex.")] = None
    definition: str | None = None


class ResponseTool(msgspec.Struct, frozen=True, kw_only=True):
    """A tool: a function, a custom tool, or a namespace of these."""

    type: Annotated[str, doc("Other types are left out and named in x-ignored-tools.")]
    name: str | None = None
    description: str | None = None
    parameters: Annotated[dict[str, Any] | None, doc("The JSON schema of a function's arguments.")] = None
    strict: bool | None = None
    format: Annotated[TextFormat | None, doc("The form of a custom tool's text.")] = None
    tools: Annotated[list[Any] | None, doc("The tools of a namespace.")] = None


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
    tools, variables = offered.use.for_template(), thinking.variables
    prompt = turns.conversation(tools, variables, max_chars=terms.max_text_chars, names=names)
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


class _ChosenTool(ChosenTool, frozen=True, kw_only=True):
    type: str
    name: str | None = None
    namespace: str | None = None
    mode: str | None = None
    tools: list[Any] | None = None


def read_tools(
    problems: Problems, tools: object, choice: object, further: Mapping[str, object], *, is_parallel: bool
) -> Offered:
    """The tools. `further`: lists of tools in the input, by their places; a tool whose name is taken counts once."""
    offered = Offered()
    found = list(_tools(problems, offered, "tools", tools))
    for place, more in further.items():
        taken = {tool.name for tool in found}
        found += [tool for tool in _tools(problems, offered, place, more) if tool.name not in taken]
    check_tools(problems, found)
    chosen, only = _choice(problems, choice, found)
    is_parallel = is_parallel and not names_one(choice)
    offered.use = checked_use(problems, found, chosen, only, is_parallel=is_parallel)
    return offered


def _tools(
    problems: Problems, offered: Offered, place: str, tools: object, namespace: str | None = None
) -> Iterator[Tool]:
    """Yield the tools of a list, and those of its namespaces."""
    kinds = ("function", "custom", "namespace") if namespace is None else ("function", "custom")
    for where, tool, raw in listed(problems, place, tools, ResponseTool):
        if tool.type not in kinds:
            offered.skipped.append(str(raw.get("server_label") or tool.name or tool.type))
            continue
        if tool.name is None:
            problems.add(f"{where}.name", "required", "is missing")
            continue
        offered.unread += unread("tools", raw, ResponseTool)
        if namespace is None:
            offered.echoed.append(_echoed(tool, raw))
        if tool.type == "namespace":
            yield from _tools(problems, offered, f"{where}.tools", tool.tools, tool.name)
            continue
        read = custom_tool if tool.type == "custom" else function_tool
        found = read(problems, where, tool, namespace=namespace)
        if found is not None:
            yield found


def custom_tool(problems: Problems, place: str, spelled: ResponseTool, *, namespace: str | None) -> Tool | None:
    """A tool whose call is one text. The model gets the text's form in the description of the argument."""
    form = spelled.format or TextFormat()
    if form.type not in ("text", "grammar"):
        problems.add(f"{place}.format.type", "one_of", "must be text or grammar")
    if form.type == "grammar" and form.definition is None:
        problems.add(f"{place}.format.definition", "required", "is missing")
    if form.type == "grammar" and form.syntax not in ("lark", "regex"):
        problems.add(f"{place}.format.syntax", "one_of", "must be lark or regex")
    definition = form.definition if form.type == "grammar" else None
    about, is_regex = "The text for the tool.", form.syntax == "regex"
    if definition is not None:
        rule = "matches this regular expression" if is_regex else "follows this Lark grammar"
        about += f" It {rule}:\n{definition}"
    text = {"type": "string", "description": about}
    tool = named_tool(problems, place, spelled, namespace)
    return tool and replace(
        tool,
        schema={"type": "object", "properties": {TEXT_ARGUMENT: text}, "required": [TEXT_ARGUMENT]},
        kind="custom",
        grammar=None if is_regex else definition,
        regex=definition if is_regex else None,
    )


def _echoed(tool: ResponseTool, raw: dict[str, Any]) -> dict[str, Any]:
    """The tool with the members that the answer's type requires."""
    match tool.type:
        case "function":
            own = {"description": tool.description, "parameters": tool.parameters, "strict": bool(tool.strict)}
            return {"type": "function", "name": tool.name, **own}
        case "namespace":
            return {**raw, "description": tool.description or ""}
        case _:
            return raw


def _choice(problems: Problems, choice: object, tools: Sequence[Tool]) -> tuple[CallChoice, frozenset[str] | None]:
    """The choice, and the model's names of the tools that it allows, if they are not all."""
    chosen = read_choice(problems, choice, _ChosenTool, ["function", "custom"])
    if isinstance(chosen, str):
        return chosen, None
    if chosen.type != "allowed_tools":
        return "required", frozenset(_names(problems, "tool_choice", [chosen], tools))
    given, place = chosen.tools or [], "tool_choice.tools"
    word = allowed_mode(problems, "tool_choice", chosen.mode or "auto", given)
    check_count(problems, place, len(given))
    read = [problems.shaped(f"{place}[{at}]", raw, _ChosenTool) for at, raw in enumerate(given[:MAX_TOOLS])]
    return word, frozenset(_names(problems, place, filter(None, read), tools))


def _names(problems: Problems, place: str, chosen: Iterable[_ChosenTool], tools: Sequence[Tool]) -> Iterator[str]:
    """Yield the model's names of the chosen tools. A name that no tool has is yielded as it is."""
    for one in chosen:
        if one.name is None:
            problems.add(f"{place}.name", "required", "is missing")
            continue
        name = flattened(one.namespace, one.name)
        known = (
            tool.name for tool in tools if tool.name == name or (one.namespace is None and tool.given_name == name)
        )
        yield next(known, name)
