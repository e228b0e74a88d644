"""Conversations of all kinds, as values that a chat template is given, and how transformers renders them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Message = dict[str, Any]

SYSTEM: Message = {"role": "system", "content": "You are terse.  "}
USER: Message = {"role": "user", "content": "What is the weather in Paris?"}
REPLY: Message = {"role": "assistant", "content": "Sunny, 21 °C."}
WEATHER: Message = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": 'The weather <now> & then, at a place\'s "centre".',
        "parameters": {
            "type": "object",
            "properties": {
                "place": {"type": "string", "description": "Ville – où ça?"},
                "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
                "days": {"type": "integer", "minimum": 1, "default": 1},
                "least": {"type": "number", "minimum": 0.5},
                "at": {"type": ["string", "null"]},
                "tags": {"type": "array", "items": {"type": "string"}},
            },
            "required": ["place"],
        },
    },
}
TIME: Message = {
    "type": "function",
    "function": {"name": "get_time", "description": "", "parameters": {"type": "object", "properties": {}}},
}


def call(name: str, arguments: Mapping[str, object] | str, call_id: str = "abcdefghi") -> Message:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def calling(*calls: Message, content: str | None = "", **more: str) -> Message:
    return {"role": "assistant", "content": content, "tool_calls": list(calls), **more}


def result(content: str, name: str = "get_weather", call_id: str = "abcdefghi") -> Message:
    return {"role": "tool", "tool_call_id": call_id, "name": name, "content": content}


CALL = calling(call("get_weather", {"place": "Paris", "days": 2, "least": 0.5, "now": True, "at": None}))
RESULT = result('{"sky": "clear", "t": 21.5}')


@dataclass(frozen=True)
class Kind:
    """`messages` and what else the template is given."""

    messages: list[Message]
    tools: list[Message] | None = None
    is_open: bool = True
    is_continued: bool = False
    variables: Mapping[str, object] | None = None


KINDS = {
    "one turn": Kind([USER]),
    "system": Kind([SYSTEM, USER]),
    "closed": Kind([SYSTEM, USER, REPLY], is_open=False),
    "several turns": Kind([USER, REPLY, {"role": "user", "content": "And tomorrow?\n"}, REPLY, USER]),
    "tools": Kind([SYSTEM, USER], [WEATHER, TIME]),
    "a call": Kind([USER, CALL, RESULT], [WEATHER]),
    "a call and its answer": Kind([SYSTEM, USER, CALL, RESULT, REPLY, USER], [WEATHER, TIME]),
    "calls": Kind(
        [
            USER,
            calling(call("get_weather", {"place": "Nîmes"}), call("get_time", {}, "bcdefghij"), content="I look."),
            RESULT,
            result("12:00", "get_time", "bcdefghij"),
        ],
        [WEATHER, TIME],
    ),
    "arguments as text": Kind([USER, calling(call("get_weather", '{"place":"Paris"}')), RESULT, REPLY], [WEATHER]),
    "no content": Kind([USER, calling(call("get_weather", {"place": "Paris"}), content=None), RESULT], [WEATHER]),
    "reasoning": Kind([USER, {**REPLY, "reasoning_content": "Look it up.\n\nThen answer."}, USER]),
    "reasoning before a call": Kind([USER, {**CALL, "reasoning_content": "I need a tool."}, RESULT], [WEATHER]),
    "reasoning in the text": Kind([USER, {"role": "assistant", "content": "<think>\nHm.\n</think>\n\nSunny."}, USER]),
    "prefill": Kind([USER, {"role": "assistant", "content": "The weather is "}], is_open=False, is_continued=True),
    "unicode": Kind(
        [{"role": "system", "content": "Ω≈ç√ 🐈‍⬛"}, {"role": "user", "content": "日本語で\u2028e\u0301 \u200f שלום"}]
    ),
    "empty": Kind([{"role": "system", "content": ""}, {"role": "user", "content": ""}]),
    "spaces": Kind([{"role": "user", "content": "  \n\tx y \n\n"}]),
    "signs": Kind([{"role": "user", "content": "a < b && c > d | [x] {y} {{ z }} {% if %} \"q\" 'r' \\n <b>"}]),
    "developer": Kind([{"role": "developer", "content": "Be brief."}, USER]),
    "two systems": Kind([SYSTEM, {"role": "system", "content": "And kind."}, USER]),
    "system later": Kind([USER, REPLY, SYSTEM, USER]),
    "parts": Kind([{"role": "user", "content": [{"type": "text", "text": "Hello "}, {"type": "text", "text": "you"}]}]),
    "two users": Kind([USER, USER]),
    "thinking off": Kind([USER], variables={"enable_thinking": False}),
    "a number": Kind([USER, calling(call("get_weather", {"days": 2.0, "n": 10**20, "x": 1e-7})), RESULT], [WEATHER]),
}
