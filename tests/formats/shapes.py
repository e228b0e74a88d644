"""Conversations of all shapes with a word of its own in every part, and what becomes of them in a template.

The table in docs/measurements/templates.md is `table()` of llama.cpp's templates and the default model's.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, Literal

import msgspec

from tests import tables
from tests.apis.pool.vectors import conversation
from worker.formats.render.escapes import ControlNames
from worker.formats.render.forms import Forms
from worker.formats.render.sandbox import BrokenTemplate, Unrendered
from worker.formats.render.template import ChatTemplates, Rendered

Message = dict[str, Any]
Verdict = Literal["as it is", "in another way", "refused", "lost"]
"""The better first."""
VERDICTS: tuple[Verdict, ...] = ("as it is", "in another way", "refused", "lost")

TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
TOOLS: list[Message] = [
    {
        "type": "function",
        "function": {
            "name": "lookup",
            "description": "Looks up a place.",
            "parameters": {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]},
        },
    }
]
_WORD = re.compile(r"zq[a-z]+")
"""The form of the words, which nothing else in a rendering has."""
_FIRST, _SECOND = "call_Yc5Nd0HqJX3bTgkAzRwe1VmP", "call_Kf8sLm2QpZ7uWvTn4BxD6GhE"


def says(role: str, content: Any, **more: Any) -> Message:
    return {"role": role, "content": content, **more}


def call(name: str, arguments: Any, call_id: str = _FIRST) -> Message:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def calling(*calls: Message, content: Any = None, **more: Any) -> Message:
    return says("assistant", content, tool_calls=list(calls), **more)


def result(content: Any, call_id: str = _FIRST, **more: Any) -> Message:
    return says("tool", content, tool_call_id=call_id, **more)


SHAPES: Mapping[str, list[Message]] = tables.table(__file__, "SHAPES")


def has_calls(messages: Iterable[Message]) -> bool:
    return any(one.get("tool_calls") or one["role"] in ("tool", "function") for one in messages)


@cache
def loaded(source: str) -> ChatTemplates | None:
    try:
        return ChatTemplates(
            source, None, names=ControlNames(["<|im_start|>", "<|im_end|>"]), tokens=TOKENS, variables={}
        )
    except BrokenTemplate:
        return None


def verdicts(source: str) -> dict[str, Verdict]:
    """The template's verdict on each shape; a shape with calls has the worse of its verdicts with and without tools."""
    chat = loaded(source)
    if chat is None:
        return dict.fromkeys(SHAPES, "refused")
    return {
        shape: max((verdict(chat, messages, tools) for tools in _tools_for(chat, messages)), key=VERDICTS.index)
        for shape, messages in SHAPES.items()
    }


def _tools_for(chat: ChatTemplates, messages: list[Message]) -> list[list[Message] | None]:
    return [None, TOOLS] if has_calls(messages) and "tools" in chat.caps else [None]


def verdict(chat: ChatTemplates, messages: list[Message], tools: list[Message] | None = None, **more: bool) -> Verdict:
    read = conversation(messages, tools=tools, max_chars=10_000, **more)
    found = chat.read(read)
    if not isinstance(found, Rendered):
        assert re.match(r"messages\[\d+\]: ", found.message), found
        return "refused"
    if not is_whole(found.text, messages):
        return "lost"
    try:
        own = chat.default.in_forms(msgspec.json.decode(read.messages), Forms(), tools=tools)  # type: ignore[arg-type]
    except Unrendered:
        return "in another way"
    return "as it is" if own == found.text else "in another way"


def is_whole(text: str, messages: list[Message]) -> bool:
    """True if each word is in the text, and each message's content follows the ones before it. A system message that
    the conversation begins with may be anywhere, and a result beside the call that it answers."""
    words = [_WORD.findall(repr(message)) for message in messages]
    if not all(word in text for own in words for word in own):
        return False
    n_leading = next(n for n, one in enumerate(messages) if one["role"] not in ("system", "developer"))
    end = end_of_calls = 0
    for message in messages[n_leading:]:
        said, called = (_WORD.findall(repr(part)) for part in (message["content"], message.get("tool_calls")))
        if message["role"] not in ("tool", "function"):
            end = max(end, end_of_calls)
        if any(text.find(word, end) < 0 for word in said + called):
            return False
        end_of_calls = max([end_of_calls, *(text.find(word, end) for word in called)])
        end = max([end, *(text.find(word, end) for word in said)])
    return True


def table(sources: Iterable[str]) -> str:
    """The lines of a Markdown table: how many of the templates say each shape, and how."""
    of_all = [verdicts(source) for source in sources]
    counts = {shape: Counter(found[shape] for found in of_all) for shape in SHAPES}
    rows = [[shape, *(str(counts[shape][verdict]) for verdict in VERDICTS)] for shape in SHAPES]
    total = sum(counts.values(), Counter())
    rows.append(["all", *(str(total[verdict]) for verdict in VERDICTS)])
    lines = [["shape", *VERDICTS], ["---", *("---:" for _ in VERDICTS)], *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
