"""Answers are read as they were written, in every notation and in every cutting.

The laws run over all formats.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.formats.writing import CALLING, FORMATS, Answer, answers, hard_texts, pieces_of, plain_texts, written
from worker.formats.read.parse import Arguments, CallBegun, Delta, Message, Reader, message_of
from worker.wire.chat_format import ChatFormat

LAW = settings(max_examples=10, deadline=None)

TOOLS = {
    "get_time": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    "run": {"type": "object", "properties": {"code": {"type": "string"}, "n": {"type": "integer"}}},
}


def an_id(index: int) -> str:
    return f"id-{index}"


def read(
    form: ChatFormat,
    tools: Mapping[str, object],
    pieces: Sequence[str],
    *,
    is_cut: bool = False,
    is_reasoning: bool = False,
    reads_fenced: bool = True,
) -> list[Delta]:
    reader = Reader(form, tools, new_id=an_id, is_reasoning=is_reasoning, reads_fenced=reads_fenced)
    deltas = [delta for piece in pieces for delta in reader.push(piece)]
    return deltas + reader.finish(is_cut=is_cut)


def said(message: Message) -> tuple[str, str, list[tuple[str, object]]]:
    return message.content, message.reasoning, [(one.name, json.loads(one.arguments)) for one in message.calls]


def is_beginning(part: Message, whole: Message) -> bool:
    """Return True if a message may be what a longer answer begins with."""
    if not (whole.content.startswith(part.content) and whole.reasoning.startswith(part.reasoning)):
        return False
    done, last = part.calls[:-1], part.calls[-1:]
    if done != whole.calls[: len(done)]:
        return False
    return not last or (
        (last[0].id, last[0].name) == (whole.calls[len(done)].id, whole.calls[len(done)].name)
        and whole.calls[len(done)].arguments.startswith(last[0].arguments)
    )


def round_trip(form: ChatFormat, data: st.DataObject) -> None:
    answer = data.draw(answers(form))
    text = written(form, answer)
    message = message_of(read(form, dict(answer.tools), data.draw(pieces_of(text))))
    assert said(message) == (answer.content, answer.thought, [(name, dict(given)) for name, given in answer.calls]), (
        text
    )
    assert len({one.id for one in message.calls}) == len(message.calls)


@pytest.mark.parametrize("name", CALLING)
@LAW
@given(data=st.data())
def test_an_answer_is_read_as_it_was_written(name: str, data: st.DataObject) -> None:
    round_trip(CALLING[name], data)


@pytest.mark.parametrize("name", CALLING)
@LAW
@given(data=st.data())
def test_a_cut_answer_is_the_beginning_of_the_whole(name: str, data: st.DataObject) -> None:
    form = CALLING[name]
    answer = data.draw(answers(form))
    text = written(form, answer)
    whole = message_of(read(form, dict(answer.tools), [text]))
    cut = text[: data.draw(st.integers(0, len(text)))]
    part = message_of(read(form, dict(answer.tools), data.draw(pieces_of(cut)), is_cut=True))
    if name == "llama-3" and answer.calls and cut.endswith(part.content):
        part = replace(part, content="")  # nothing but its name shows that an object is a call
    assert is_beginning(part, whole), (cut, part, whole)


@pytest.mark.parametrize("name", CALLING)
@LAW
@given(data=st.data())
def test_a_call_that_the_answer_ends_in_is_left_out_and_those_before_it_are_kept(
    name: str, data: st.DataObject
) -> None:
    form = CALLING[name]
    answer = data.draw(answers(form, min_calls=1))
    text = written(form, answer)
    cut = text[: data.draw(st.integers(0, len(text)))]
    reader = Reader(form, dict(answer.tools), new_id=an_id)
    deltas = [delta for piece in data.draw(pieces_of(cut)) for delta in reader.push(piece)]
    is_cut = data.draw(st.booleans())
    deltas += reader.finish(is_cut=is_cut, is_stopped=not is_cut)
    message = message_of(deltas, is_unfinished=reader.is_unfinished)
    assert said(message)[2] == [(each, dict(given)) for each, given in answer.calls][: len(message.calls)]
    assert message.calls or not reader.is_called
    if not reader.is_unfinished:
        assert len(message_of(deltas).calls) == len(message.calls)


@pytest.mark.parametrize("name", FORMATS)
@LAW
@given(data=st.data())
def test_any_text_has_the_same_deltas_in_any_pieces(name: str, data: st.DataObject) -> None:
    form = FORMATS[name]
    answer = data.draw(answers(form))
    parts = st.one_of(
        hard_texts(form), st.just(written(form, answer)), st.just('```json\n{"name": "run", "arguments": {}}')
    )
    text = "".join(data.draw(st.lists(parts, max_size=3)))
    tools = {**answer.tools, **TOOLS}
    is_cut = data.draw(st.booleans())
    whole = message_of(read(form, tools, [text], is_cut=is_cut))
    assert message_of(read(form, tools, data.draw(pieces_of(text)), is_cut=is_cut)) == whole, text


@pytest.mark.parametrize("name", FORMATS)
@LAW
@given(data=st.data())
def test_a_text_without_markers_is_content(name: str, data: st.DataObject) -> None:
    form = FORMATS[name]
    text = data.draw(plain_texts(form))
    pieces = data.draw(pieces_of(text))
    assert message_of(read(form, dict(TOOLS), pieces)) == Message(text, "", ())
    assert message_of(read(form, {}, pieces)) == Message(text, "", ())


@pytest.mark.parametrize("name", CALLING)
@LAW
@given(data=st.data())
def test_a_call_begins_before_its_arguments_and_indexes_rise(name: str, data: st.DataObject) -> None:
    form = CALLING[name]
    answer = data.draw(answers(form, min_calls=1))
    deltas = read(form, dict(answer.tools), data.draw(pieces_of(written(form, answer))))
    begun = [delta.index for delta in deltas if isinstance(delta, CallBegun)]
    assert begun == list(range(len(begun)))
    last = -1
    for delta in deltas:
        if isinstance(delta, CallBegun):
            last = delta.index
        if isinstance(delta, Arguments):
            assert delta.index == last


@pytest.mark.parametrize("name", CALLING)
@LAW
@given(data=st.data())
def test_a_tool_that_is_not_offered_is_content_without_markers(name: str, data: st.DataObject) -> None:
    form = CALLING[name]
    answer = Answer(calls=[("unknown", {"city": "Rome"})])
    text = written(form, answer)
    message = message_of(read(form, dict(TOOLS), data.draw(pieces_of(text))))
    call = text if name == "llama-3" else '{"name": "unknown", "arguments": {"city": "Rome"}}'
    assert message == Message(call, "", ())
