"""A call in a reasoning that is not closed ends it; a reasoning that speaks of a call goes on."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.formats.test_parse import LAW, read
from tests.formats.writing import CALLING, is_harmony, pieces_of, section
from worker.formats.read.parse import Message, Reader, Thought, message_of
from worker.formats.read.plain_calls import MAX_HELD
from worker.wire.chat_format import ChatFormat

THINKING = {
    name: form
    for name, form in CALLING.items()
    if form.reasoning is not None and form.calls and (form.calls.section_begin or form.calls.call_begin)
    if not is_harmony(form)
}
AT_ONCE = {name for name, form in THINKING.items() if form.reasoning and form.reasoning.is_ended_by_call}
LATER = sorted(THINKING.keys() - AT_ONCE)
TOOLS: dict[str, object] = {"look": {"properties": {"at": {"type": "string"}}}, "stop": {}}
LOOK, STOP, NONE = ("look", {"at": "x"}), ("stop", {"at": "y"}), ("fly", {"at": "x"})


def begun(form: ChatFormat, text: str) -> str:
    assert form.reasoning is not None
    return f"{form.reasoning.begin}{text}"


def calls_in(form: ChatFormat, *calls: tuple[str, dict[str, str]]) -> str:
    assert form.calls is not None
    return section(form.calls, calls)


def called(message: Message) -> list[tuple[str, object]]:
    return [(one.name, json.loads(one.arguments)) for one in message.calls]


def test_the_object_forms_are_here() -> None:
    assert {"qwen3", "smollm3", "nemotron-nano-v2", "minicpm-5"} <= {*LATER}


@pytest.mark.parametrize("name", THINKING)
@pytest.mark.parametrize("calls", [(LOOK,), (LOOK, STOP)])
@pytest.mark.parametrize("is_opened", [False, True])
@LAW
@given(data=st.data())
def test_calls_end_a_reasoning_that_is_not_closed(
    name: str, calls: tuple[tuple[str, dict[str, str]], ...], is_opened: bool, data: st.DataObject
) -> None:
    form = THINKING[name]
    text = begun(form, "I plan." + calls_in(form, *calls))
    assert form.reasoning is not None
    text = text.removeprefix(form.reasoning.begin) if is_opened else text
    message = message_of(read(form, TOOLS, data.draw(pieces_of(text)), is_reasoning=is_opened))
    assert (message.content, message.reasoning, called(message)) == ("", "I plan.", [*calls])


@pytest.mark.parametrize("name", THINKING)
@LAW
@given(data=st.data())
def test_a_tool_that_is_not_offered_does_not_end_it(name: str, data: st.DataObject) -> None:
    form = THINKING[name]
    text = "I plan." + calls_in(form, NONE) + " No."
    message = message_of(read(form, TOOLS, data.draw(pieces_of(begun(form, text)))))
    assert message == Message("", text, ())


@pytest.mark.parametrize("name", LATER)
@LAW
@given(data=st.data())
def test_a_call_that_is_not_complete_does_not_end_it(name: str, data: st.DataObject) -> None:
    form = THINKING[name]
    assert form.calls is not None
    whole = calls_in(form, LOOK)
    text = begun(form, "I plan. " + whole[: data.draw(st.integers(0, whole.index("x")))])
    pieces = data.draw(pieces_of(text))
    assert message_of(read(form, TOOLS, pieces)).calls == ()
    cut = message_of(read(form, TOOLS, pieces, is_cut=True))
    assert (cut.content, cut.calls) == ("", ())


@pytest.mark.parametrize("name", LATER)
@LAW
@given(data=st.data())
def test_a_reasoning_that_is_closed_later_spoke_of_the_call(name: str, data: st.DataObject) -> None:
    form = THINKING[name]
    assert form.reasoning is not None
    thought = "I plan " + calls_in(form, LOOK) + " and so on."
    text = begun(form, thought) + form.reasoning.end + calls_in(form, STOP)
    message = message_of(read(form, TOOLS, data.draw(pieces_of(text))))
    assert (message.content, message.reasoning, called(message)) == ("", thought, [STOP])


@pytest.mark.parametrize("name", LATER)
@LAW
@given(data=st.data())
def test_the_engines_reasoning_has_the_same_calls(name: str, data: st.DataObject) -> None:
    """The engine has hidden the markers of the reasoning."""
    form = THINKING[name]
    text = "I plan." + calls_in(form, LOOK, STOP)
    for behind, calls in (("", [LOOK, STOP]), ("Done.", [])):
        one = [LOOK] if behind else [LOOK, STOP]
        text = "I plan." + calls_in(form, *one)
        reader = Reader(form, TOOLS, new_id=str)
        deltas = [delta for piece in data.draw(pieces_of(text)) for delta in reader.push(piece, is_thought=True)]
        deltas += reader.push(behind)
        message = message_of([*deltas, *reader.finish()])
        assert (message.content, called(message)) == (behind, calls)
        assert message.reasoning == ("I plan." if calls else text)
        assert len({one.id for one in message.calls}) == len(message.calls)


@pytest.mark.parametrize("name", THINKING)
def test_without_tools_or_with_a_call_that_must_follow_a_reasoning_goes_on(name: str) -> None:
    form = THINKING[name]
    text = calls_in(form, LOOK)
    for tools, ends in ((TOOLS, False), ({}, True)):
        reader = Reader(form, tools, new_id=str, ends_thoughts=ends)
        deltas = [delta for char in text for delta in reader.push(char, is_thought=True)]
        assert deltas == [Thought(char) for char in text]
        assert reader.finish() == []


@pytest.mark.parametrize("name", LATER)
def test_a_reasoning_is_held_back_for_at_most_one_call(name: str) -> None:
    form = THINKING[name]
    reader = Reader(form, TOOLS, new_id=str, is_reasoning=True)
    begin = calls_in(form, LOOK).partition("x")[0]
    n_said = sum(len(delta.text) for delta in reader.push(begin) if isinstance(delta, Thought))
    for _ in range(MAX_HELD // 1000 + 2):
        n_said += sum(len(delta.text) for delta in reader.push("a" * 1000) if isinstance(delta, Thought))
    assert n_said > MAX_HELD
