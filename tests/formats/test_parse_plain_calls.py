"""A call in plain JSON: a JSON object in a code fence, or as the whole answer."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.formats.test_parse import LAW, read, said
from tests.formats.writing import FORMATS, NAMES, answers, call, dumps, pieces_of
from tests.tables import cases
from worker.formats.read.parse import Content, Message, Reader, message_of
from worker.formats.read.plain_calls import MAX_HELD
from worker.wire.chat_format import CallFormat

TOOLS: dict[str, object] = {
    "weather": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        "required": ["city"],
    },
    "stop": {"type": "object", "properties": {}},
    "free": {"type": "object"},
}
CALL = '{"name": "weather", "arguments": {"city": "Rome"}}'
HERMES = FORMATS["hermes"]
FORMATS_IN_DRESS = sorted(FORMATS.keys() - {"functionary-v3.2"})


@cases
@pytest.mark.parametrize("size", [1, 4, 1000])
def test_an_offered_tools_call_is_read_in_any_dress(
    text: str, content: str, calls: list[list[object]], size: int
) -> None:
    pieces = [text[i : i + size] for i in range(0, len(text), size)]
    assert said(message_of(read(HERMES, TOOLS, pieces))) == (content, "", [tuple(one) for one in calls])


NO_CALLS = (
    '```json\n{"name": "Ann", "arguments": {"city": "Rome"}}\n```',  # no offered tool
    '```json\n{"name": "weather"}\n```',
    '```json\n{"name": "weather", "arguments": {"days": 2}}\n```',  # a required argument is missing
    '```json\n{"name": "weather", "arguments": {"city": "Rome", "x": 1}}\n```',  # an argument of another tool
    '```json\n{"name": "weather", "arguments": {"city": "Rome"}, "age": 7}\n```',
    '```json\n{"name": "weather", "arguments": [1]}\n```',
    '```json\n{"city": "Rome"}\n```',
    f"```json\n{CALL}, and more\n```",
    f"```json\n{CALL[:-1]}\n```",
    f"```json\n# a call\n{CALL}\n```",
    f"```python\nprint({CALL})\n```",
    f"```json\n{CALL}\nand more",
    f"A call is {CALL}",
    '{"city": "Rome"}',
    "[1, 2]",
    "```python\nprint()\n```\nText.",
    "``",
    "```",
    "```json",
    "```json\n",
    "```json\n{",
)


@pytest.mark.parametrize("text", NO_CALLS)
@pytest.mark.parametrize("size", [1, 4, 1000])
def test_what_is_no_call_comes_back_unchanged(text: str, size: int) -> None:
    pieces = [text[i : i + size] for i in range(0, len(text), size)]
    assert message_of(read(HERMES, TOOLS, pieces)) == Message(text, "", ())


@pytest.mark.parametrize("text", [f"```json\n{CALL}\n```", CALL, f"I look.\n```\n{CALL}\n```\n"])
def test_without_tools_or_with_the_flag_off_a_dressed_call_is_text(text: str) -> None:
    assert message_of(read(HERMES, {}, list(text))) == Message(text, "", ())
    assert message_of(read(HERMES, TOOLS, list(text), reads_fenced=False)) == Message(text, "", ())


@pytest.mark.parametrize("name", FORMATS_IN_DRESS)
@LAW
@given(data=st.data())
def test_every_format_reads_calls_in_a_fence(name: str, data: st.DataObject) -> None:
    form = FORMATS[name]
    plain = CallFormat(form="object")
    answer = data.draw(answers(FORMATS["hermes"], min_calls=1))
    fences = [f"```json\n{call(plain, tool, given, 0)}\n```" for tool, given in answer.calls]
    message = message_of(read(form, answer.tools, data.draw(pieces_of("\n".join(fences)))))
    assert said(message) == ("", "", [(tool, dict(given)) for tool, given in answer.calls])


@LAW
@given(NAMES, st.text(max_size=50), st.integers(0, 200))
def test_a_cut_fence_says_nothing_wrong(name: str, value: str, size: int) -> None:
    text = f"Text.\n```json\n{dumps({'name': name, 'arguments': {'a': value}})}\n```"
    cut = text[:size]
    message = message_of(read(HERMES, {name: {}}, list(cut), is_cut=True))
    if message.calls:
        assert (message.content, json.loads(message.calls[0].arguments)) == ("Text.", {"a": value})
    else:
        assert cut.startswith(message.content)
        assert len(cut.rstrip("`").rstrip()) <= len(message.content)


@pytest.mark.parametrize("name", sorted({*FORMATS_IN_DRESS} - {"harmony", "muse"}))
@LAW
@given(data=st.data())
def test_every_format_reads_objects_one_after_the_other(name: str, data: st.DataObject) -> None:
    """Each is a call when it is complete; one that is cut is content."""
    answer = data.draw(answers(FORMATS["hermes"], min_calls=1))
    values = [call(CallFormat(form="object"), tool, given, 0) for tool, given in answer.calls]
    reader = Reader(FORMATS[name], answer.tools, new_id=str)
    deltas = []
    for n, value in enumerate(values, start=1):
        deltas += [delta for piece in data.draw(pieces_of(value)) for delta in reader.push(piece)]
        assert len(message_of(deltas).calls) == n
        assert json.loads(message_of(deltas).calls[-1].arguments) == dict(answer.calls[n - 1][1])
        deltas += reader.push(data.draw(st.sampled_from(["\n", ", ", "; "])))
    cut = values[0][: data.draw(st.integers(1, len(values[0]) - 1))]
    deltas += [delta for piece in data.draw(pieces_of(cut)) for delta in reader.push(piece)]
    message = message_of([*deltas, *reader.finish(is_cut=True)], is_unfinished=reader.is_unfinished)
    assert len(message.calls) == len(values)
    has_marker = "<" in cut  # a marker that the cut ends in begins a call
    assert name == "llama-3" or has_marker or message.content.endswith(cut.rstrip())


def test_text_behind_a_fence_is_held_back_for_at_most_one_call() -> None:
    reader = Reader(HERMES, TOOLS, new_id=str)
    begin = '```json\n{"name": "weather", "arguments": {"city": "'
    n_said = sum(len(delta.text) for delta in reader.push(begin) if isinstance(delta, Content))
    assert n_said == 0
    for _ in range(MAX_HELD):
        n_said += sum(len(delta.text) for delta in reader.push("aaaa") if isinstance(delta, Content))
        if n_said:
            break
    assert len(begin) + 4 * (_ + 1) - n_said <= 4
    assert n_said <= MAX_HELD + len(begin)


@pytest.mark.parametrize("text", ['```json\n{"a"', '```json\n{"name": "x"', "```python\np", "``x", '{"a"', "[1"])
def test_text_that_can_be_no_call_is_not_held_back(text: str) -> None:
    """A JSON answer is streamed, also if tools are offered."""
    reader = Reader(HERMES, TOOLS, new_id=str)
    deltas = [delta for char in text + ": 1" for delta in reader.push(char)]
    assert message_of(deltas).content == text + ": 1"
