"""Answers as models write them, from the notation: the other direction of worker/formats/read/parse.py.

Owns a small writer for every form, tools with schemas that fit given arguments, and texts that are hard to read. It
shares no code with the reader.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hypothesis import strategies as st

from worker.formats.read.scan import tokens_of
from worker.formats.tool_format import formats
from worker.wire.chat_format import HERMES, CallFormat, ChatFormat

Arguments = Mapping[str, object]

FORMATS: dict[str, ChatFormat] = {
    **{family.format.name: family.format for family in formats().family},
    "generic": HERMES,
}
CALLING = {name: form for name, form in FORMATS.items() if form.calls is not None}


@dataclass(frozen=True)
class Answer:
    """An answer before it is written."""

    content: str = ""
    thought: str = ""
    calls: Sequence[tuple[str, Arguments]] = ()
    tools: Mapping[str, object] = field(default_factory=dict)


def written(form: ChatFormat, answer: Answer) -> str:
    """Return the answer's text as the model writes it behind its prompt."""
    return messages(form, answer) if is_harmony(form) else marked(form, answer)


def is_harmony(form: ChatFormat) -> bool:
    return form.calls is not None and form.calls.form == "harmony"


def marked(form: ChatFormat, answer: Answer) -> str:
    text = ""
    if answer.thought and form.reasoning is not None:
        text += form.reasoning.begin + answer.thought + form.reasoning.end
    if answer.content:
        text += form.content_begin + answer.content + form.content_end
    if answer.calls and form.calls is not None:
        text += section(form.calls, answer.calls)
    return text.removeprefix(form.opening)


def section(calls: CallFormat, answered: Sequence[tuple[str, Arguments]]) -> str:
    written_calls = [call(calls, name, arguments, index) for index, (name, arguments) in enumerate(answered)]
    return calls.section_begin + calls.between.join(written_calls) + calls.section_end


def messages(form: ChatFormat, answer: Answer) -> str:
    assert form.calls is not None
    is_muse = bool(form.calls.parameter_begin)
    parts = []
    if answer.thought:
        parts.append(
            f" to=self<|message|>{answer.thought}<|eom|>"
            if is_muse
            else f"<|channel|>analysis<|message|>{answer.thought}<|end|>"
        )
    if answer.content:
        parts.append(
            f" to=user<|message|>{answer.content}<|eom|>"
            if is_muse
            else f"<|channel|>commentary<|message|>{answer.content}<|end|>"
        )
    for name, arguments in answer.calls:
        if is_muse:
            parts.append(f" to={name}<|message|>{section(form.calls, [(name, arguments)])}<|eom|>")
        else:
            parts.append(form.calls.call_begin + name + form.calls.name_end + dumps(arguments) + form.calls.call_end)
    return "<|start|>assistant".join(parts)


def call(calls: CallFormat, name: str, arguments: Arguments, index: int) -> str:
    """Return one call, with its markers."""
    match calls.form:
        case "object":
            inner = an_object(calls, name, arguments, index)
        case "named":
            own_id = f"{calls.id_begin}{call_id(index)}" if calls.id_begin else ""
            first_id = f"{call_id(index)}{calls.id_end}" if calls.id_end else ""
            inner = first_id + numbered(calls, name, index) + own_id + calls.name_end + dumps(arguments)
        case "python":
            inner = f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"
        case "gemma":
            inner = name + "{" + ",".join(f"{key}:{gemma(value)}" for key, value in arguments.items()) + "}"
        case "nested":
            inner = name + calls.name_end + "".join(element(calls, key, value) for key, value in arguments.items())
        case _:
            parameters = "".join(parameter(calls, key, value) for key, value in arguments.items())
            inner = numbered(calls, name, index) + calls.name_end + parameters
    return calls.call_begin + inner + calls.call_end


def call_id(index: int) -> str:
    return f"call{index:05d}"


def numbered(calls: CallFormat, name: str, index: int) -> str:
    number = f"{calls.index_begin}{calls.first_index + index}" if calls.index_begin else ""
    return calls.name_prefix + name + number


def an_object(calls: CallFormat, name: str, arguments: Arguments, index: int) -> str:
    if not calls.name_key:
        return f"{{{dumps(name)}: {dumps(arguments)}}}"
    members = f"{dumps(calls.name_key)}: {dumps(name)}, {dumps(calls.arguments_key)}: {dumps(arguments)}"
    if calls.id_key == "id":
        return f'{{{members}, "id": "{call_id(index)}"}}'
    return f'{{"{calls.id_key}": "{index}", {members}}}' if calls.id_key else f"{{{members}}}"


def parameter(calls: CallFormat, key: str, value: object) -> str:
    text = value if isinstance(value, str) else dumps(value)
    if calls.parameter_begin.startswith("<param name") and isinstance(value, str) and re.search(r"[<&\n]", value):
        text = f"<![CDATA[{value}]]>"
    mark = {"schema": "", "is_string": str(isinstance(value, str)).lower(), "type": kind(value)}[calls.values]
    return calls.parameter_begin + key + calls.parameter_name_end + mark + calls.mark_end + text + calls.parameter_end


def element(calls: CallFormat, key: str, value: object) -> str:
    if isinstance(value, Mapping):
        text = "".join(element(calls, inner, one) for inner, one in value.items())
    elif isinstance(value, list):
        text = "".join(element(calls, "item", one) for one in value)
    else:
        text = value if isinstance(value, str) else dumps(value)
    return f"{calls.parameter_begin}{key}>{text}{calls.parameter_end}{key}>"


def gemma(value: object) -> str:
    if isinstance(value, str):
        return f'<|"|>{value}<|"|>'
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{gemma(str(key))}:{gemma(one)}" for key, one in value.items()) + "}"
    return "[" + ",".join(map(gemma, value)) + "]" if isinstance(value, list) else dumps(value)


def dumps(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def kind(value: object) -> str:
    match value:
        case bool():
            return "boolean"
        case None:
            return "null"
        case str():
            return "string"
        case int() | float():
            return "number"
        case list():
            return "array"
        case _:
            return "object"


def schema_of(value: object) -> dict[str, object]:
    """Return a schema that the value fits."""
    schema: dict[str, object] = {"type": kind(value)}
    if isinstance(value, Mapping):
        schema["properties"] = {key: schema_of(one) for key, one in value.items()}
    if isinstance(value, list) and value:
        schema["items"] = schema_of(value[0])
    return schema


def markers(form: ChatFormat) -> tuple[str, ...]:
    """Return the markers of a notation, without the white space around them."""
    calls = form.calls
    texts = [form.content_begin, form.content_end, *form.hidden]
    if form.reasoning is not None:
        texts += [form.reasoning.begin, form.reasoning.end]
    if calls is not None:
        texts += [calls.section_begin, calls.section_end, calls.call_begin, calls.call_end, calls.name_end]
        texts += [calls.parameter_begin, calls.parameter_name_end, calls.parameter_end, calls.id_begin, calls.id_end]
    if is_harmony(form):
        texts += ["<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>", "<|eom|>", "<|eot|>"]
    return tuple(dict.fromkeys(token for text in texts for token in tokens_of(text)))


FENCES = ("```", "<tools>", "<tool_call>", "<function_call>")


def hard_texts(form: ChatFormat, max_size: int = 8) -> st.SearchStrategy[str]:
    """Return texts in which markers, their halves, and what JSON and XML are made of come often."""
    whole = [*markers(form), *FENCES]
    halves = [marker[: len(marker) // 2] for marker in whole] + [marker[len(marker) // 2 :] for marker in whole]
    signs = ['"', "\\", "{", "}", "[", "]", "\n", " ", "'", ",", ":", "<", "</", "ä", "\u2028", "😀", "null", "12"]
    pieces = st.one_of(st.sampled_from(whole), st.sampled_from([*filter(None, halves), *signs]), st.text(max_size=4))
    return st.lists(pieces, max_size=max_size).map("".join)


def plain_texts(form: ChatFormat) -> st.SearchStrategy[str]:
    """Return texts without a marker, without white space at the ends, that do not look like JSON."""
    forbidden = (*markers(form), *FENCES)

    def is_plain(text: str) -> bool:
        behind_prompt = form.opening[1:] + text
        return not any(marker in behind_prompt for marker in forbidden) and not text.startswith(("{", "["))

    return hard_texts(form).map(str.strip).filter(is_plain)


KEYS = st.from_regex(r"[a-z_][a-z0-9_]{0,6}", fullmatch=True)
NAMES = st.from_regex(r"[a-zA-Z_][a-zA-Z0-9_-]{0,12}", fullmatch=True)


def values(form: ChatFormat) -> st.SearchStrategy[object]:
    """Return arguments' values that the notation can say."""
    calls = form.calls
    assert calls is not None
    texts = hard_texts(form).filter(lambda text: says(calls, text))
    numbers = st.one_of(st.integers(), st.floats(allow_nan=False, allow_infinity=False))
    if calls.form == "nested":  # has no empty object, no empty list, and no null
        leaves: st.SearchStrategy[object] = st.one_of(texts, numbers, st.booleans())
        return st.recursive(leaves, lambda one: st.dictionaries(KEYS, one, min_size=1, max_size=3), max_leaves=6)
    leaves = st.one_of(texts, numbers, st.booleans(), st.none())
    return st.recursive(
        leaves,
        lambda one: st.one_of(st.lists(one, max_size=3), st.dictionaries(texts, one, max_size=3)),
        max_leaves=6,
    )


def says(calls: CallFormat, text: str) -> bool:
    """Return True if a text has one reading in the notation, which has no escapes."""
    if calls.form == "gemma":
        return '<|"|>' not in text + "<|"
    if calls.form == "nested":
        return calls.parameter_begin not in text and calls.parameter_end not in text
    if not calls.parameter_begin:
        return True
    if "]]></param>" in text:
        return False
    end = re.escape(calls.parameter_end.strip())
    after = "|".join(re.escape(tokens_of(one)[0]) for one in (calls.parameter_begin, calls.call_end)) + f"|{end}|$"
    return not re.search(rf"{end}\s*({after})", text) and not text.startswith("<![CDATA[")


@st.composite
def answers(draw: st.DrawFn, form: ChatFormat, min_calls: int = 0) -> Answer:
    """Draw an answer: thoughts, text, and calls of offered tools."""
    arguments = st.dictionaries(KEYS, values(form), max_size=3)
    calls = draw(st.lists(st.tuples(NAMES, arguments), min_size=min_calls, max_size=3, unique_by=lambda one: one[0]))
    has_content = form.name != "llama-3" or not calls  # Llama's calls have no marker, so they stand alone
    return Answer(
        content=draw(plain_texts(form)) if has_content else "",
        thought=draw(thoughts(form)) if form.reasoning is not None else "",
        calls=calls,
        tools={name: schema_of(given) for name, given in calls} | {"other": {"type": "object"}},
    )


def thoughts(form: ChatFormat) -> st.SearchStrategy[str]:
    return plain_texts(form)


@st.composite
def pieces_of(draw: st.DrawFn, text: str) -> list[str]:
    """Draw a way to cut a text into pieces."""
    way = draw(st.sampled_from(["whole", "characters", "fours", "random"]))
    if way == "whole" or not text:
        return [text]
    if way != "random":
        size = 1 if way == "characters" else 4
        return [text[i : i + size] for i in range(0, len(text), size)]
    places = sorted(draw(st.lists(st.integers(0, len(text)), max_size=12)))
    return [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]
