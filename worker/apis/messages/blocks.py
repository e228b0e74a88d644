"""The conversation of `POST /v1/messages`: blocks become messages in OpenAI's form of chats.

Owns: the kinds of blocks, which of them are read, left out and named, or refused; the block that is Claude Code's own
bill. Pure.
"""

import re
from collections.abc import Iterator
from typing import Annotated, Any

import msgspec

from worker.apis.core.bodies import Problems
from worker.apis.core.conversation import entries, unread
from worker.apis.core.payloads import MediaPlaces
from worker.apis.core.thinking import decoded_thoughts
from worker.apis.core.turns import KIND, LEFT_OUT, Turns, got, joined
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


def read_system(problems: Problems, value: object, turns: Turns, *, keeps_bill: bool) -> list[str]:
    """Add the system message. Return the names of what is left out."""
    content = "" if value is None else problems.shaped("system", value, str | list[Block]) or ""
    left_out = list(unread("system", value, list[Block]))
    reader = _BlockReader(problems, left_out, turns)
    texts = [content] if isinstance(content, str) else reader.texts("system", content)
    kept = (
        texts
        if keeps_bill
        else [_BILL_LINE.sub("", text, count=1) if text.startswith(BILL) else text for text in texts]
    )
    if kept != texts:
        left_out.append(_BILL_NAME)
    if text := joined([text for text in kept if text]):
        turns.say("system", text, "system")
    return left_out


def read_message_blocks(problems: Problems, value: object, turns: Turns) -> list[str]:
    """Add the messages. Return the names of what is left out."""
    value = entries(problems, "messages", value)
    left_out = list(unread("messages", value, list[GivenMessage]))
    reader = _BlockReader(problems, left_out, turns)
    for at, raw in enumerate(value):
        if problems.is_full:
            return []
        message = problems.shaped(f"messages[{at}]", raw, GivenMessage)
        if message is not None:
            reader.message(f"messages[{at}]", message)
    return left_out


class _BlockReader:
    """Reads messages."""

    def __init__(self, problems: Problems, left_out: list[str], turns: Turns) -> None:
        self._problems = problems
        self._left_out = left_out
        self._turns = turns

    def message(self, place: str, message: GivenMessage) -> None:
        blocks = [Block(type="text", text=message.content)] if isinstance(message.content, str) else message.content
        match message.role:
            case "assistant":
                for at, block in enumerate(blocks):
                    self._assistants(place, f"{place}.content[{at}]", block)
                if not blocks:
                    self._turns.answer("", place)
            case "user":
                self._users(place, blocks)
            case "system":
                self._turns.say("system", joined(self.texts(f"{place}.content", blocks)), place)
            case _:
                self._refuse(f"{place}.role", "role", f"must be one of {', '.join(ROLES)}")

    def texts(self, place: str, blocks: list[Block]) -> list[str]:
        """The texts of blocks that must be texts."""
        return [text for at, block in enumerate(blocks) for text in self._text(f"{place}[{at}]", block)]

    def _users(self, place: str, blocks: list[Block]) -> None:
        """Add a user's message: results of calls, and the texts between them."""
        texts: list[str] = []
        is_said = False
        for at, block in enumerate(blocks):
            where = f"{place}.content[{at}]"
            if block.type != "tool_result":
                texts += self._text(where, block)
                continue
            if texts:
                self._turns.say("user", joined(texts), place)
            texts, is_said = [], True
            self._turns.result(self._needed(where, block, "tool_use_id"), self._result(where, block), where)
        if texts or not is_said:
            self._turns.say("user", joined(texts), place)

    def _assistants(self, place: str, where: str, block: Block) -> None:
        match block.type:
            case "text":
                self._turns.answer(self._needed(where, block, "text"), place)
            case "thinking":
                self._think(place, block)
            case "tool_use":
                if block.input is None:
                    self._refuse(f"{where}.input", "required", "is missing; send an object, which may be empty")
                call_id, name = (self._needed(where, block, field) for field in ("id", "name"))
                self._turns.call(call_id, name, block.input or {}, place)
            case kind if KIND.fullmatch(kind) and (
                kind in ("redacted_thinking", "server_tool_use") or _is_result(kind)
            ):
                # Another server's own: what it says is not for this model.
                self._left_out.append(f"messages.content.{kind}")
            case _:
                self._refuse_kind(where, block)

    def _think(self, place: str, block: Block) -> None:
        text = block.thinking or ""
        if not text and block.signature and block.signature != SIGNATURE:
            text = decoded_thoughts(block.signature)
            if not text:
                self._left_out.append("messages.content.signature")
        if text:
            self._turns.think(text, place)

    def _result(self, where: str, block: Block) -> str:
        content = block.content
        if not isinstance(content, list):
            text = content or ""
        else:
            text = joined(
                [text for at, inner in enumerate(content) for text in self._of_result(f"{where}.content[{at}]", inner)]
            )
        return _FAILED + text if block.is_error else text

    def _of_result(self, where: str, block: Block) -> Iterator[str]:
        if block.type in _MEDIA and not _has_text(block):
            self._left_out.append(f"messages.content.content.{block.type}")
            yield LEFT_OUT.format(kind=block.type)
        else:
            yield from self._text(where, block)

    def _text(self, where: str, block: Block) -> Iterator[str]:
        if block.type == "text":
            if block.text is None:
                self._refuse(f"{where}.text", "required", "is missing; send a text, which may be empty")
            yield block.text or ""
        elif block.type == "document" and block.source is not None and _has_text(block):
            yield block.source.data or ""
        else:
            self._refuse_kind(where, block)

    def _needed(self, where: str, block: Block, field: str) -> str:
        value: str | None = getattr(block, field)
        if value is None:
            self._refuse(f"{where}.{field}", "required", "is missing")
        return value or ""

    def _refuse_kind(self, where: str, block: Block) -> None:
        text = f"must be text or another type that this message may have{got(block.type)}; this worker reads text only"
        self._refuse(f"{where}.type", "text_only", text)

    def _refuse(self, field: str, constraint: str, text: str) -> None:
        if not self._problems.is_full:
            self._problems.add(field, constraint, text)


def _is_result(kind: str) -> bool:
    """True if the block has the result of a tool that the server runs."""
    return kind.endswith("_tool_result")


def _has_text(block: Block) -> bool:
    return block.source is not None and block.source.type == "text" and block.source.data is not None
