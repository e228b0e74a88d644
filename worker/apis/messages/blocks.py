"""The conversation of `POST /v1/messages`: blocks become messages in OpenAI's form of chats.

Owns: the kinds of blocks, which of them are read, left out and named, or refused; the block that is Claude Code's own
bill. Pure.
"""

import re
from collections.abc import Collection, Iterator
from typing import Annotated, Any

import msgspec

from worker.apis.core.conversation import entries, unread
from worker.apis.core.payloads import MediaPlaces
from worker.apis.core.thinking import decoded_thoughts
from worker.apis.core.turns import MAY_BE_EMPTY, Turns, got, joined
from worker.wire.encoding import doc

ROLES = ("user", "assistant", "system")
BLOCKS = ("text", "thinking", "redacted_thinking", "tool_use", "tool_result", "document")
_MEDIA = ("image", "document", "search_result", "tool_reference")

PAYLOADS = MediaPlaces(
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
SIGNATURE = "llorch"
"""The signature of a thinking block that has its text. Clients give back a block with a signature only."""
_FAILED = "Error: "
"""The beginning of a result that the client marks as an error."""


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
