"""The wires of answers: how each is asked, and what its stream and its whole answer say.

`folded` sums a stream up to the answer that is not streamed, and raises AssertionError for an event out of its place.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tests.apis.asking import ASKED, HEADING, body, finish, objects, start
from tests.apis.asking import TERMS as NO_GAPS
from worker.apis.chat.request import read_chat
from worker.apis.completions.request import read_completion
from worker.apis.core.answers import Choice, whole
from worker.apis.core.events import Piece
from worker.apis.core.request import Terms
from worker.apis.infill.request import read_infill
from worker.apis.messages.request import read_messages
from worker.apis.responses.request import read_response
from worker.wire.jobs import StopReason

Json = dict[str, Any]
TERMS = replace(NO_GAPS, can_infill=True)
_IDS = frozenset({"id", "call_id", "completed_at"})
"""The members that are other ones for each answer."""


@dataclass
class Told:
    """An answer in the words of no wire."""

    content: str = ""
    reasoning: str = ""
    calls: list[tuple[str, Any]] = field(default_factory=list)
    """Names and arguments; the arguments are text if they are no JSON."""
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class Wire:
    """One protocol's answers."""

    name: str
    read: Callable[[bytes, Terms], Any]
    fields: Json
    folded: Callable[[bytes], Json]
    told: Callable[[Json], Told]
    ends: Mapping[StopReason, str]
    called: str = ""
    """The reason of an answer with calls; empty if this wire has none."""
    tool: Callable[[str, Any], Json] = lambda name, schema: {"type": "function", "name": name, "parameters": schema}

    def asked(self, terms: Terms = TERMS, **fields: Any) -> Any:
        return self.read(body(self.fields | fields), terms)

    def choice(self, asked: Any) -> Choice:
        (choice,) = asked.answers(HEADING, [None]) if self.name == "completions" else asked.answers(HEADING)
        assert isinstance(choice, Choice)
        return choice

    def streamed(self, *pieces: Piece, reason: StopReason = "EOS", terms: Terms = TERMS, **fields: Any) -> bytes:
        choice = self.choice(self.asked(terms, stream=True, **fields))
        return start(choice) + b"".join(map(choice.token, pieces)) + finish(choice, reason, len(pieces))

    def whole(self, *pieces: Piece, reason: StopReason = "EOS", terms: Terms = TERMS, **fields: Any) -> Json:
        """The answer that is not streamed, without ids."""
        choice = self.choice(self.asked(terms, **fields))
        assert not start(choice) + b"".join(map(choice.token, pieces)) + finish(choice, reason, len(pieces))
        return self.body_of(choice)

    def body_of(self, choice: Choice) -> Json:
        status, answer = whole(HEADING, [choice], 1)
        assert status == 200
        made = json.loads(answer)
        return without_ids(made["choices"][0] if "choices" in made else made)

    def both(self, *pieces: Piece, **options: Any) -> list[Told]:
        """The answer, as a stream and as a whole."""
        return [self.told(self.folded(self.streamed(*pieces, **options))), self.told(self.whole(*pieces, **options))]

    def offering(self, tools: Mapping[str, object]) -> list[Json]:
        return [self.tool(name, schema) for name, schema in tools.items()]


def pieces(*texts: str | tuple[str, bool]) -> list[Piece]:
    """The pieces of an answer, a token each: texts, or texts and whether they are reasoning."""
    pairs = [(text, False) if isinstance(text, str) else text for text in texts]
    return [Piece(text, i, (), i + 1, is_reasoning) for i, (text, is_reasoning) in enumerate(pairs)]


def without_ids(members: Json) -> Json:
    return {name: _without_ids(inner) for name, inner in members.items() if name not in _IDS}


def _without_ids(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_ids(inner) for inner in value]
    return without_ids(value) if isinstance(value, dict) else value


def loaded(arguments: str) -> Any:
    try:
        return json.loads(arguments)
    except ValueError:
        return arguments


def events_of(stream: bytes) -> list[Json]:
    """The events of a stream whose frames have a line with the type and a line with the event."""
    frames = [frame.split("\n") for frame in stream.decode().split("\n\n")]
    assert frames.pop() == [""]
    events = [json.loads(data.removeprefix("data: ")) for _, data in frames]
    assert [name for name, _ in frames] == [f"event: {event['type']}" for event in events]
    return events


# ── chats ────────────────────────────────────────────────────────────────────────────────────────


def _choices(stream: bytes) -> list[Json]:
    choices = [chunk["choices"] for chunk in objects(stream.replace(b": keep-alive\n\n", b""))]
    *others, last = [choice for (choice,) in choices]
    assert {choice["finish_reason"] for choice in others} <= {None}
    assert last["finish_reason"] is not None
    return [*others, last]


def _folded_chat(stream: bytes) -> Json:
    first, *rest, last = _choices(stream)
    assert (first["delta"], last["delta"]) == ({"role": "assistant", "content": "", "refusal": None}, {})
    message: Json = dict(first["delta"])
    calls: list[Json] = []
    for choice in rest:
        ((member, value),) = choice["delta"].items()
        if member != "tool_calls":
            message[member] = message.get(member, "") + value
            continue
        (call,) = value
        if "id" in call:
            assert call.pop("index") == len(calls)
            calls.append(call)
        else:
            assert call["index"] == len(calls) - 1
            calls[-1]["function"]["arguments"] += call["function"]["arguments"]
    assert len({call["id"] for call in calls}) == len(calls)
    message |= {"tool_calls": calls, "content": message["content"] or None} if calls else {}
    return without_ids({"index": 0, "message": message, "logprobs": None, "finish_reason": last["finish_reason"]})


def _told_chat(choice: Json) -> Told:
    message = choice["message"]
    calls = [call["function"] for call in message.get("tool_calls", ())]
    return Told(
        message["content"] or "",
        message.get("reasoning_content", ""),
        [(call["name"], loaded(call["arguments"])) for call in calls],
        choice["finish_reason"],
    )


# ── texts ────────────────────────────────────────────────────────────────────────────────────────


def _folded_text(stream: bytes) -> Json:
    choices = _choices(stream)
    return choices[-1] | {"text": "".join(choice["text"] for choice in choices)}


def _folded_fill(stream: bytes) -> Json:
    events: list[Json] = objects(stream.replace(b": keep-alive\n\n", b""))
    assert [event["stop"] for event in events] == [False] * (len(events) - 1) + [True]
    return events[-1] | {"content": "".join(event["content"] for event in events)}


# ── responses ────────────────────────────────────────────────────────────────────────────────────

_TEXT = r"([\w.]+\.delta )*"
_ITEM = (
    rf"output_item\.added (\w+_part\.added {_TEXT}[\w.]+\.done \w+_part\.done |{_TEXT}[\w.]+\.done )output_item\.done "
)
_OPEN = rf"output_item\.added (\w+_part\.added )?{_TEXT}"
_RESPONSE = re.compile(f"created ({_ITEM})*(completed |incomplete |({_OPEN})?failed )")
_KINDS = {
    "output_text": "message",
    "reasoning_text": "reasoning",
    "reasoning_summary_text": "reasoning",
    "function_call_arguments": "function_call",
    "custom_tool_call_input": "custom_tool_call",
}
"""The events of a text, and the type of their item."""
_TEXTS = ("text", "arguments", "input")


def folded_items(events: Sequence[Json]) -> list[Json]:
    """The items that the events of items sum up to."""
    items: list[Json] = []
    opened: Json = {}
    text = ""
    for event in events:
        kind = event["type"].removeprefix("response.")
        assert event["output_index"] == len(items)
        if kind == "output_item.added":
            opened, text = event["item"], ""
            assert (text_of(opened), opened.get("status", "in_progress")) == ("", "in_progress")
        elif kind == "output_item.done":
            assert (event["item"]["id"], event["item"]["type"], text_of(event["item"])) == (
                *(opened["id"], opened["type"], text),
            )
            items.append(event["item"])
        else:
            assert event["item_id"] == opened["id"]
            added, said = event.get("delta", ""), event.get("part", event)
            assert "part" in event or _KINDS[kind.partition(".")[0]] == opened["type"]
            text += added
            assert added or kind.endswith("added") or text == next(said[name] for name in _TEXTS if name in said)
    return items


def text_of(item: Json) -> str:
    """The text of an item, whatever its kind."""
    parts = [*item.get("summary", ()), *(item.get("content") or ())]
    return str(item.get("arguments", item.get("input", ""))) + "".join(part["text"] for part in parts)


def folded_response(stream: bytes) -> Json:
    events = events_of(stream)
    assert [event["sequence_number"] for event in events] == [*range(len(events))]
    assert all(event["response"]["status"] == "in_progress" for event in events if _is_sign(event))
    events = [event for event in events if event["type"] != "response.in_progress"]
    assert _RESPONSE.fullmatch("".join(event["type"].removeprefix("response.") + " " for event in events)), events
    made: Json = events[-1]["response"]
    assert events[-1]["type"] == f"response.{made['status']}"
    items = folded_items(events[1:-1])
    assert items == made["output"][: len(items)]
    assert made["status"] == "failed" or items == made["output"]
    return without_ids(made)


def _is_sign(event: Json) -> bool:
    return event["type"] in ("response.created", "response.in_progress")


def _told_response(made: Json) -> Told:
    told = Told(reason=made["status"])
    for item in made["output"]:
        match item["type"]:
            case "message":
                told.content += text_of(item)
            case "reasoning":
                told.reasoning += text_of(item)
            case _:
                told.calls.append((item["name"], loaded(text_of(item))))
    return told


# ── messages ─────────────────────────────────────────────────────────────────────────────────────

_BLOCKS = re.compile(
    "message_start (content_block_start (content_block_delta )*content_block_stop )*"
    "(message_delta message_stop |(content_block_start (content_block_delta )*)?error )|error "
)
_MEMBERS = {"text": "text", "thinking": "thinking", "tool_use": "partial_json"}


def folded_blocks(events: Sequence[Json]) -> list[Json]:
    """The blocks that the events of blocks sum up to."""
    blocks: list[Json] = []
    for event in events:
        if event["type"] == "content_block_start":
            blocks.append({**event["content_block"], "partial_json": ""})
        assert event["index"] == len(blocks) - 1
        if event["type"] == "content_block_delta":
            block, kind = blocks[-1], event["delta"].pop("type")
            ((member, value),) = event["delta"].items()
            assert kind == ("input_json_delta" if member == "partial_json" else f"{member}_delta")
            assert member in (_MEMBERS[block["type"]], "signature")
            assert not block.get("signature"), "the signature comes last"
            block[member] += value
    for block in blocks:
        partial = block.pop("partial_json")
        if block["type"] == "tool_use":
            value = loaded(partial or "{}")
            block["input"] = value if isinstance(value, dict) else {"INVALID_JSON": partial}
    return blocks


def folded_message(stream: bytes) -> Json:
    events = [event for event in events_of(stream) if event["type"] != "ping"]
    assert _BLOCKS.fullmatch("".join(event["type"] + " " for event in events)), events
    if events[-1]["type"] == "error":
        return {"error": events[-1]["error"]}
    message: Json = events[0]["message"]
    assert (message["content"], message["stop_reason"]) == ([], None)
    last = events[-2]
    return without_ids(message | {"content": folded_blocks(events[1:-2])} | last["delta"] | {"usage": last["usage"]})


def _told_message(message: Json) -> Told:
    blocks = message["content"]
    return Told(
        "".join(block["text"] for block in blocks if block["type"] == "text"),
        "".join(block["thinking"] for block in blocks if block["type"] == "thinking"),
        [(block["name"], block["input"]) for block in blocks if block["type"] == "tool_use"],
        message["stop_reason"],
    )


# ── all ──────────────────────────────────────────────────────────────────────────────────────────

CHAT = Wire(
    name="chat",
    read=read_chat,
    fields=ASKED,
    folded=_folded_chat,
    told=_told_chat,
    ends={"EOS": "stop", "STOP_SEQUENCE": "stop", "MAX_TOKENS": "length"},
    called="tool_calls",
    tool=lambda name, schema: {"type": "function", "function": {"name": name, "parameters": schema}},
)
RESPONSES = Wire(
    name="responses",
    read=read_response,
    fields={"input": "Hello"},
    folded=folded_response,
    told=_told_response,
    ends={"EOS": "completed", "STOP_SEQUENCE": "completed", "MAX_TOKENS": "incomplete"},
    called="completed",
)
MESSAGES = Wire(
    name="messages",
    read=read_messages,
    fields=ASKED | {"max_tokens": 8},
    folded=folded_message,
    told=_told_message,
    ends={"EOS": "end_turn", "STOP_SEQUENCE": "stop_sequence", "MAX_TOKENS": "max_tokens"},
    called="tool_use",
    tool=lambda name, schema: {"name": name, "input_schema": schema or {"type": "object"}},
)
COMPLETIONS = Wire(
    name="completions",
    read=read_completion,
    fields={"prompt": "Hello"},
    folded=_folded_text,
    told=lambda choice: Told(choice["text"], reason=choice["finish_reason"]),
    ends=CHAT.ends,
)
INFILL = Wire(
    name="infill",
    read=read_infill,
    fields={"input_prefix": "a", "input_suffix": "b"},
    folded=_folded_fill,
    told=lambda fill: Told(fill["content"], reason=fill["stop_type"]),
    ends={"EOS": "eos", "STOP_SEQUENCE": "word", "MAX_TOKENS": "limit"},
)
READ = (CHAT, RESPONSES, MESSAGES)
"""The wires whose answers are read for reasoning and calls."""
WIRES = (*READ, COMPLETIONS, INFILL)
