"""The way of an answer through a template and back: it is rendered as history, cut out of the prompt, and read.

The table in docs/measurements/templates.md is `table()` of llama.cpp's templates.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import msgspec

from tests.apis.pool.vectors import conversation
from tests.formats.shapes import TOKENS, call, calling, result, says
from worker.formats.read.parse import Reader, message_of
from worker.formats.render.escapes import ControlNames
from worker.formats.render.forms import Forms
from worker.formats.render.sandbox import BrokenTemplate
from worker.formats.render.template import ChatTemplates, Rendered
from worker.formats.tool_format import chat_format
from worker.wire.chat_format import ChatFormat

Message = dict[str, Any]
Verdict = Literal["same", "not rendered", "another"]
"""`not rendered`: the template puts the answer in another way into the prompt, or leaves a part of it out."""

ENDS = frozenset(
    {
        *("</s>", "<|im_end|>", "<|end|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<｜end▁of▁sentence｜>"),
        *("<|END_OF_TURN_TOKEN|>", "<end_of_turn>", "<seed:eos>", "[e~[", "<|call|>", "<|return|>", "<|eot|>"),
        *("<end_of_sentence>", "<SPECIAL_12>", "<turn|>", "<|tool_response>", "<|assistant_end|>", "<|role_end|>"),
        *("<｜hy_eos:opensource｜>", "<|end_of_msg|>", "<sep>", "<|observation|>", "<|user|>", "<|calls|>"),
        *("</assistant>", "<|START_OF_TURN_TOKEN|>"),
    }
)
"""The names of tokens that end answers. A model's vocabulary says which of its tokens do."""
_GOES_ON_AFTER = {"harmony": "<|end|>", "solar-open": "<|end|>"}
"""The token that ends a part of an answer in a format, and the whole answer in others."""
_SEPARATOR = "<|message_sep|>"
"""GigaChat's end, which also stands before its calls."""

_USER, _REPLY, _AFTER = "zquser", "zqreply", "zqafter"
_ARGUMENTS: dict[str, Any] = {
    "place": "Nîmes",
    "note": 'a "b" \\ <c> & {d} [e]\nf',
    "days": 3,
    "is_exact": True,
    "ratio": -0.5,
    "of": {"tags": ["x", 1, False], "deep": {"a": "b"}},
}
_KINDS = {"place": "string", "note": "string", "days": "integer", "is_exact": "boolean", "ratio": "number"}
_SCHEMA = {
    "type": "object",
    "properties": {key: {"type": _KINDS.get(key, "object")} for key in _ARGUMENTS},
    "required": ["place"],
}
TOOLS: list[Message] = [
    {"type": "function", "function": {"name": name, "description": "Looks it up.", "parameters": _SCHEMA}}
    for name in ("lookup", "look_again-2")
]


Called = tuple[str, dict[str, Any]]


@dataclass(frozen=True)
class Answer:
    """The text, the reasoning and the calls of an assistant."""

    content: str = ""
    reasoning: str = ""
    calls: tuple[Called, ...] = ()

    def message(self) -> Message:
        """The message of a history. Its ids are those that Mistral's templates support."""
        calls = [call(name, arguments, f"callid00{n}") for n, (name, arguments) in enumerate(self.calls)]
        message = calling(*calls, content=self.content) if calls else says("assistant", self.content)
        return message | ({"reasoning_content": self.reasoning} if self.reasoning else {})


_CALL: Called = ("lookup", _ARGUMENTS)
_OTHER: Called = ("look_again-2", {"place": "b"})
ANSWERS = {
    "a call": Answer(calls=(_CALL,)),
    "two calls": Answer(calls=(_CALL, _OTHER)),
    "text and a call": Answer("I look.", calls=(_CALL,)),
    "reasoning and text": Answer("It rains.\n\nA lot.", "Hm.\n\nThen so."),
    "reasoning and a call": Answer(reasoning="Hm.\n\nThen so.", calls=(_CALL,)),
}


@cache
def loaded(source: str) -> ChatTemplates | None:
    try:
        return ChatTemplates(source, None, names=ControlNames(()), tokens=TOKENS, variables={})
    except BrokenTemplate:
        return None


@cache
def format_of(source: str) -> ChatFormat | None:
    chat = loaded(source)
    return chat_format(chat.for_tools, ENDS) if chat else None


def verdicts(source: str) -> dict[str, Verdict]:
    """Return the verdict on each answer."""
    return {name: verdict(source, answer) for name, answer in ANSWERS.items()}


def verdict(source: str, answer: Answer) -> Verdict:
    chat, form = loaded(source), format_of(source)
    if chat is None or form is None or not _is_own(chat.for_tools.forms_with, answer):
        return "not rendered"
    prompt, text = _cut_out(chat, form, answer)
    if not all(part in text for part in (answer.reasoning, answer.content, *(name for name, _ in answer.calls))):
        return "not rendered"
    return "same" if read(form, text, is_reasoning=_is_begun(form, prompt, text)) == answer else "another"


def _is_begun(form: ChatFormat, prompt: str, text: str) -> bool:
    """True if the answer begins in the reasoning: the prompt opens it, and the answer ends it."""
    marks = form.reasoning
    return form.opens_reasoning(prompt) and marks is not None and marks.begin not in text and marks.end.strip() in text


def read(form: ChatFormat, text: str, *, is_reasoning: bool, tools: list[Message] = TOOLS) -> Answer:
    schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in tools}
    reader = Reader(form, schemas, new_id=str, is_reasoning=is_reasoning)
    message = message_of([*reader.push(text), *reader.finish()])
    calls = tuple((one.name, msgspec.json.decode(one.arguments)) for one in message.calls)
    return Answer(message.content.strip(), message.reasoning.strip(), calls)


def _is_own(forms: Forms, answer: Answer) -> bool:
    """True if the template renders the answer as one message with its calls."""
    if len(answer.calls) > 1 and forms.several_calls != "own":
        return False
    if answer.calls and answer.content and forms.text_with_calls != "own":
        return False
    return forms.takes_calls or not answer.calls


def _cut_out(chat: ChatTemplates, form: ChatFormat, answer: Answer) -> tuple[str, str]:
    """The text that an answer follows, and the answer's."""
    prompt, own = _turn(chat, is_open=True), _turn(chat, answer.message())
    if not all(name in own for name, _ in answer.calls):
        # The template continues a last message.
        results = [result(_AFTER, f"callid00{n}", name=name) for n, (name, _) in enumerate(answer.calls)]
        own = _turn(chat, answer.message(), *results).partition(_AFTER)[0]
    headers = [prompt, _turn(chat, says("assistant", _REPLY)).partition(_REPLY)[0]]
    if form.reasoning is not None:
        # The history may have another reasoning than the one that the prompt opens or closes.
        for mark in (form.reasoning.begin.strip(), form.reasoning.end.strip()):
            headers += [header.partition(mark)[0] for header in headers]
    text = own.removeprefix(next(header for header in headers if own.startswith(header)))
    for end in ENDS - {_GOES_ON_AFTER.get(form.name)}:
        text = text.partition(end)[0]
    return prompt, text.rstrip().removesuffix(_SEPARATOR)


def _turn(chat: ChatTemplates, *messages: Message, is_open: bool = False) -> str:
    """The text after the user's words."""
    tools = TOOLS if "tools" in chat.caps else None
    asked = conversation(
        [says("user", _USER), *messages], tools=tools, max_chars=100_000, add_generation_prompt=is_open
    )
    found = chat.read(asked)
    assert isinstance(found, Rendered), found
    return found.text.rpartition(_USER)[2]


def table(named: Iterable[tuple[str, str]]) -> str:
    """The lines of a Markdown table: the format of each template, by its name, and what becomes of each answer."""
    lines = [["template", "format", "from", *ANSWERS], ["---"] * (3 + len(ANSWERS))]
    for name, source in named:
        form = format_of(source)
        cells = [form.name, form.source] if form else ["–", "–"]
        lines.append([name, *cells, *verdicts(source).values()])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
