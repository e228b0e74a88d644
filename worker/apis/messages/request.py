"""The body of `POST /v1/messages` and `/v1/messages/count_tokens`: a conversation in blocks, tools and fields.

The tools that Anthropic runs or defines are left out and named, and so are tools whose loading is deferred.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Annotated, Any

import msgspec

from worker.apis.core.answers import Choice, Heading
from worker.apis.core.bodies import Problems
from worker.apis.core.constraint_fields import read_format
from worker.apis.core.conversation import MAY_BE_EMPTY, Turns, entries, got, joined, unread
from worker.apis.core.fields import GeneratingRequest, Length, read_object, read_request, read_struct
from worker.apis.core.payloads import MediaPlaces
from worker.apis.core.request import Request, Terms
from worker.apis.core.rules import int_range
from worker.apis.core.thinking import EFFORTS, SIGNATURE, Thinking, decoded_thoughts, read_thinking
from worker.apis.core.tools import (
    CallChoice,
    Offered,
    Tool,
    check_tools,
    checked_use,
    function_tool,
    listed,
)
from worker.apis.messages.answer import MessageAnswer
from worker.wire.encoding import doc

ROLES = ("user", "assistant", "system")
BLOCKS = ("text", "thinking", "redacted_thinking", "tool_use", "tool_result", "document")
_MEDIA = ("image", "document", "search_result", "tool_reference")

BLOCK_PAYLOADS = MediaPlaces(
    frozenset(
        f".{blocks}.source.data" for blocks in ("system[]", "messages[].content[]", "messages[].content[].content[]")
    ),
    frozenset({"base64"}),
)

BILL = "x-anthropic-billing-header:"
"""The beginning of the system block in which Claude Code names its version and the conversation. It differs between
conversations and stands before everything else, so with it no two of them have a prefix in common."""
_BILL_NAME = "system.x-anthropic-billing-header"
_BILL_LINE = re.compile(rf"{BILL}[^\n]*\n*")

_TOOL_RESULT = re.compile(r"[a-z_]{0,28}_tool_result")
"""The types of results of tools that the server runs."""
_FAILED = "Error: "
"""The beginning of a result that the client marks as an error."""

_KINDS = ("enabled", "adaptive", "disabled")
_DISPLAYS = ("summarized", "omitted")
_WITHOUT_EFFECT = frozenset({"metadata", "service_tier"})


_TOOL_CHOICES: Mapping[str, CallChoice] = {"auto": "auto", "any": "required", "tool": "required", "none": "none"}


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of a document."""

    type: Annotated[str, doc("Only text is supported.", const="text")]
    media_type: str | None = None
    data: str | None = None


class Block(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a content."""

    type: Annotated[str, doc("The kind of the block.", enum=list(BLOCKS))]
    text: str | None = None
    thinking: str | None = None
    signature: Annotated[str | None, doc("As this worker has sent it; another's is ignored and named.")] = None
    data: str | None = None
    id: str | None = None
    name: str | None = None
    input: Annotated[dict[str, Any] | None, doc("A tool_use's arguments.")] = None
    tool_use_id: str | None = None
    content: Annotated[str | list["Block"] | None, doc("A tool_result's text.")] = None
    is_error: bool | None = None
    source: Source | None = None


class GivenMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message of the conversation."""

    role: Annotated[str, doc("The author.", enum=list(ROLES))]
    content: Annotated[str | list[Block], doc("A text, or blocks.")]


class MessageTool(msgspec.Struct, frozen=True, kw_only=True):
    """A tool of the client's."""

    type: Annotated[str | None, doc("custom. Other types are left out and named in x-ignored-tools.")] = None
    name: str | None = None
    description: str | None = None
    input_schema: Annotated[dict[str, Any] | None, doc("The JSON schema of the arguments.")] = None
    strict: bool | None = None
    defer_loading: Annotated[bool | None, doc("true: the tool is left out and named in x-ignored-tools.")] = None


class ToolChoice(msgspec.Struct, frozen=True, kw_only=True):
    """The choice among the tools."""

    type: Annotated[str, doc("any: some call. tool: a call of the named tool.", enum=list(_TOOL_CHOICES))]
    name: str | None = None
    disable_parallel_tool_use: Annotated[bool | None, doc("true: the answer has one call at most.")] = None


class ThinkingSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The amount of reasoning, and whether it is shown."""

    type: Annotated[str, doc("adaptive leaves it to the model.", enum=list(_KINDS))]
    budget_tokens: Annotated[int | None, doc("The most tokens of reasoning, with `enabled`.", minimum=1)] = None
    display: Annotated[str | None, doc("omitted: the blocks have no text.", enum=[*_DISPLAYS, None])] = None


class OutputSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The effort of the model, and the form of the answer."""

    effort: Annotated[str | None, doc("How much the model reasons.", enum=[*EFFORTS, None])] = None
    format: Annotated[dict[str, Any] | None, doc("`json_schema` with `schema`.")] = None


class MessagesRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The body of `POST /v1/messages`. It may also have `seed` and the sampling fields of `/execute`. A field that is
    null counts as absent. Fields that have no effect are ignored and named in `x-ignored-fields`."""

    model: Annotated[str | None, doc("Any name is accepted, unless `--strict-model` is set.")] = None
    messages: Annotated[Any, doc("The conversation.")] = None
    system: Annotated[Any, doc("A text, or text blocks.")] = None
    max_tokens: Annotated[int | None, doc("Maximum tokens to generate. It must be sent.", minimum=1)] = None
    stop_sequences: Annotated[list[str] | None, doc("At most 16 texts that end the answer and are not shown.")] = None
    stream: Annotated[bool | None, doc("Stream the answer as server-sent events.")] = None
    tools: Annotated[Any, doc("Tools of the client.")] = None
    tool_choice: ToolChoice | None = None
    thinking: ThinkingSettings | None = None
    output_config: OutputSettings | None = None
    output_format: Annotated[dict[str, Any] | None, doc("Older spelling of output_config.format.")] = None
    mcp_servers: Annotated[list[Any] | None, doc("Left out, and named in x-ignored-tools.")] = None
    seed: Annotated[int | None, doc("Makes the answer repeatable.")] = None
    metadata: Annotated[dict[str, Any] | None, doc("No effect.")] = None
    service_tier: Annotated[str | None, doc("No effect.")] = None


def read_messages(body: bytes | bytearray, terms: Terms, *, needs_max_tokens: bool = True) -> Request:
    """Raises: NotAnObject, UnknownModel, FieldsRefused."""
    members = read_object(body)
    request, problems = read_struct(members, MessagesRequest)
    if needs_max_tokens and members.get("max_tokens") is None:
        problems.add("max_tokens", "required", "is missing; send the most tokens that the answer may have")
    turns = Turns(problems)
    read_system(turns, request.system, keeps_bill=terms.keeps_billing_block)
    read_message_blocks(turns, request.messages)
    offered = read_tools(problems, request.tools, request.tool_choice)
    offered.skipped += [str(one.get("name") or "mcp") for one in request.mcp_servers or () if isinstance(one, dict)]
    thinking = _thinking(problems, request, terms)
    is_continued = _check_last(turns)
    tools, variables = offered.use.for_template(), thinking.variables
    prompt = turns.conversation(tools, variables, max_chars=terms.max_text_chars, names={}, is_continued=is_continued)
    place, form = "output_format", request.output_format
    if request.output_config is not None and request.output_config.format is not None:
        place, form = "output_config.format", request.output_config.format
    read = read_request(
        problems,
        members,
        GeneratingRequest(
            model=request.model,
            seed=request.seed,
            stream=request.stream,
            stop=request.stop_sequences,
            response_format=read_format(problems, place, form, ["json_schema"]),
        ),
        terms,
        prompts=[prompt],
        length=Length(request.max_tokens),
        names={"stop": "stop_sequences", "json_schema": place, "response_format": place, "prompt": "messages"},
        sent=MessagesRequest,
        offered=offered,
        thinking=thinking,
        unheeded=_WITHOUT_EFFECT,
        further=turns.left_out,
    )
    shows_thinking = request.thinking is None or request.thinking.display != "omitted"

    def answers(heading: Heading) -> list[Choice]:
        return [MessageAnswer(heading, read.reading, shows_thinking=shows_thinking, is_stream=read.is_stream)]

    return replace(read, places=tuple(turns.places), answers=answers)


read_counted = partial(read_messages, needs_max_tokens=False)
"""Reads a request of which only the prompt's tokens are counted."""


def _check_last(turns: Turns) -> bool:
    """An answer must be able to follow the last message. Returns True if the answer continues it."""
    if not turns.messages or turns.messages[-1]["role"] != "assistant":
        return False
    last, place = turns.messages[-1], turns.places[-1]
    if last.get("tool_calls"):
        text = "has a tool_use without a tool_result; send the result in a user's message"
        turns.problems.add(place, "needs(tool_result)", text)
    elif not last["content"]:
        turns.problems.add(place, "non_empty", "is the last message and has no text to continue; remove it")
    return True


def _thinking(problems: Problems, request: MessagesRequest, terms: Terms) -> Thinking:
    settings = request.thinking or ThinkingSettings(type="adaptive")
    effort, budget = None if request.output_config is None else request.output_config.effort, settings.budget_tokens
    if settings.type not in _KINDS:
        problems.add("thinking.type", "one_of", f"must be one of {', '.join(_KINDS)}")
    if settings.display not in (None, *_DISPLAYS):
        problems.add("thinking.display", "one_of", f"must be one of {', '.join(_DISPLAYS)}")
    int_range(problems, "thinking.budget_tokens", budget, 1)
    if settings.type == "enabled" and budget is None:
        text = "is missing; send the most tokens of reasoning, or type adaptive"
        problems.add("thinking.budget_tokens", "required", text)
    if settings.type != "enabled" and budget is not None:
        problems.add("thinking.budget_tokens", "needs(enabled)", "needs type enabled; remove it")
    wishes = {"thinking": request.thinking, "output_config.effort": effort}
    return read_thinking(
        problems,
        "output_config.effort",
        effort,
        terms,
        is_on=None if request.thinking is None else settings.type != "disabled",
        budget=budget,
        wishes=[name for name, given in wishes.items() if given is not None],
        limits=[] if budget is None else ["thinking.budget_tokens"],
    )


def read_tools(problems: Problems, tools: object, choice: ToolChoice | None) -> Offered:
    """The tools."""
    offered = Offered()
    found: list[Tool] = []
    for place, tool, raw in listed(problems, "tools", tools, MessageTool):
        if tool.type not in (None, "custom") or tool.defer_loading:
            offered.skipped.append(tool.name or tool.type or place)
        elif (read := function_tool(problems, place, tool, "input_schema")) is not None:
            offered.unread += unread("tools", raw, MessageTool)
            found.append(read)
    check_tools(problems, found)
    choice = choice or ToolChoice(type="auto")
    if choice.type not in _TOOL_CHOICES:
        problems.add("tool_choice.type", "one_of", f"must be one of {', '.join(_TOOL_CHOICES)}")
    is_one = choice.type == "tool"
    if is_one and choice.name is None:
        problems.add("tool_choice.name", "required", "is missing")
    offered.use = checked_use(
        problems,
        found,
        _TOOL_CHOICES.get(choice.type, "auto"),
        frozenset({choice.name}) if is_one and choice.name is not None else None,
        is_parallel=not choice.disable_parallel_tool_use and not is_one,
    )
    return offered


def read_system(turns: Turns, value: object, *, keeps_bill: bool) -> None:
    """Add the system message."""
    content = "" if value is None else turns.problems.shaped("system", value, str | list[Block]) or ""
    turns.left_out += unread("system", value, list[Block])
    texts = [content] if isinstance(content, str) else [*_texts(turns, "system", content)]
    kept = texts
    if not keeps_bill:
        kept = [_BILL_LINE.sub("", text, count=1) if text.startswith(BILL) else text for text in texts]
    if kept != texts:
        turns.left_out.append(_BILL_NAME)
    if text := joined(text for text in kept if text):
        turns.say("system", text, "system")


def read_message_blocks(turns: Turns, value: object) -> None:
    """Add the messages."""
    value = entries(turns.problems, "messages", value)
    turns.left_out += unread("messages", value, list[GivenMessage])
    for at, raw in enumerate(value):
        if turns.problems.is_full:
            return
        message = turns.problems.shaped(f"messages[{at}]", raw, GivenMessage)
        if message is not None:
            _read_message(turns, f"messages[{at}]", message)


def _read_message(turns: Turns, place: str, message: GivenMessage) -> None:
    blocks = [Block(type="text", text=message.content)] if isinstance(message.content, str) else message.content
    where = f"{place}.content"
    match message.role:
        case "assistant":
            for at, block in enumerate(blocks):
                _read_assistants(turns, place, f"{where}[{at}]", block)
            if not blocks:
                turns.answer("", place)
        case "user":
            _read_users(turns, place, blocks)
        case "system":
            turns.say("system", joined(_texts(turns, where, blocks)), place)
        case _:
            turns.refuse(f"{place}.role", "role", f"must be one of {', '.join(ROLES)}")


def _read_users(turns: Turns, place: str, blocks: list[Block]) -> None:
    """Add a user's message: results of calls, and the texts between them."""
    texts: list[str] = []
    is_said = False
    for at, block in enumerate(blocks):
        where = f"{place}.content[{at}]"
        if block.type != "tool_result":
            texts.append(_text(turns, where, block))
            continue
        if texts:
            turns.say("user", joined(texts), place)
        texts, is_said = [], True
        turns.result(turns.needed(where, block, "tool_use_id"), _result(turns, where, block), where)
    if texts or not is_said:
        turns.say("user", joined(texts), place)


def _read_assistants(turns: Turns, place: str, where: str, block: Block) -> None:
    match block.type:
        case "text":
            turns.answer(turns.needed(where, block, "text"), place)
        case "thinking":
            _think(turns, place, block)
        case "tool_use":
            if block.input is None:
                turns.refuse(f"{where}.input", "required", "is missing; send an object, which may be empty")
            call_id, name = (turns.needed(where, block, field) for field in ("id", "name"))
            turns.call(call_id, name, block.input or {}, place)
        case kind if kind in ("redacted_thinking", "server_tool_use") or _TOOL_RESULT.fullmatch(kind):
            # Another server's own: what it says is not for this model.
            turns.left_out.append(f"messages.content.{kind}")
        case _:
            _refuse_kind(turns, where, block)


def _think(turns: Turns, place: str, block: Block) -> None:
    text = block.thinking or ""
    if not text and block.signature and block.signature != SIGNATURE:
        text = decoded_thoughts(block.signature)
        if not text:
            turns.left_out.append("messages.content.signature")
    if text:
        turns.think(text, place)


def _result(turns: Turns, where: str, block: Block) -> str:
    """The text of a tool's result. Its pictures and files are left out."""
    text = block.content or ""
    if isinstance(text, list):
        text = joined(_text(turns, f"{where}.content[{at}]", inner, _MEDIA) for at, inner in enumerate(text))
    return _FAILED + text if block.is_error else text


def _texts(turns: Turns, place: str, blocks: list[Block]) -> Iterator[str]:
    """Yield the texts of blocks that must be texts."""
    return (_text(turns, f"{place}[{at}]", block) for at, block in enumerate(blocks))


def _text(turns: Turns, where: str, block: Block, media: Collection[str] = ()) -> str:
    """The text of a block, or in the place of one of the types in `media`."""
    source = block.source
    if block.type == "text":
        return turns.needed(where, block, "text", MAY_BE_EMPTY)
    if block.type == "document" and source is not None and source.type == "text" and source.data is not None:
        return source.data
    if block.type in media:
        return turns.leave_out("messages.content.content", block.type)
    _refuse_kind(turns, where, block)
    return ""


def _refuse_kind(turns: Turns, where: str, block: Block) -> None:
    text = f"must be text or another type that this message may have{got(block.type)}; this worker reads text only"
    turns.refuse(f"{where}.type", "text_only", text)
