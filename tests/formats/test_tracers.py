"""Tracers show whether a rendering has all of a conversation, whatever the conversation says."""

import json
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worker.formats.render.forms import Message
from worker.formats.render.tracers import Misplaced, Tracers

LAW = settings(max_examples=200)

WORDS = frozenset({"think", "tool_response", "user"})
PIECES = st.sampled_from(["<think>", "</think>", "a", "user", "don't", " ", "\n", "?", "<tool_response>", "日本", "{"])
TEXTS = st.lists(PIECES, max_size=6).map("".join)
CALLS = st.fixed_dictionaries({"name": st.just("f"), "arguments": st.one_of(TEXTS, st.dictionaries(TEXTS, TEXTS))})
MESSAGES = st.lists(
    st.one_of(
        st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant", "tool", "system"]), "content": TEXTS}),
        st.fixed_dictionaries(
            {
                "role": st.just("assistant"),
                "content": st.one_of(st.none(), TEXTS),
                "tool_calls": st.lists(st.fixed_dictionaries({"function": CALLS}), min_size=1, max_size=2),
            }
        ),
    ),
    min_size=1,
    max_size=6,
)


def characters() -> Iterator[str]:
    return map(chr, range(0xF0000, 0x10FFFE))


def plain(text: str) -> str:
    return "".join(char for char in text if ord(char) < 0xF0000)


@LAW
@given(MESSAGES)
def test_a_conversation_without_its_witnesses_is_unchanged(messages: list[Message]) -> None:
    before = json.dumps(messages)
    traced = Tracers(characters(), WORDS).put_into(messages)
    assert json.loads(plain(json.dumps(traced, ensure_ascii=False))) == messages
    assert json.dumps(messages) == before


@LAW
@given(MESSAGES, st.sampled_from(["as it is", "JSON in ASCII", "Python"]))
def test_written_texts_are_found_and_missing_texts_are_lost(messages: list[Message], how: str) -> None:
    tracers = Tracers(characters(), WORDS)
    written = [repr(one) if how == "Python" else json.dumps(one, ensure_ascii=how != "as it is") for one in messages]
    traced = tracers.put_into(messages)
    texts = [repr(one) if how == "Python" else json.dumps(one, ensure_ascii=how != "as it is") for one in traced]
    assert tracers.found_in("".join(texts)) == Misplaced(None, None)
    for at, (text, bare) in enumerate(zip(texts, written, strict=True)):
        left = "".join([*texts[:at], *texts[at + 1 :]])
        assert tracers.found_in(left).lost == (None if text == bare else at)


@pytest.mark.parametrize("thought", ["<think>a</think>", "[THINK]a[/THINK]", "<seed:think>a</seed:think>"])
def test_reasoning_has_no_witness(thought: str) -> None:
    for role, is_traced in (("assistant", False), ("user", True)):
        messages: list[Message] = [{"role": role, "content": thought}]
        assert (Tracers(characters(), frozenset()).put_into(messages) != messages) == is_traced
    answered: list[Message] = [{"role": "assistant", "content": f"{thought}yes"}]
    traced = Tracers(characters(), frozenset()).put_into(answered)
    assert str(traced[0]["content"]).startswith(thought)


def test_a_message_before_an_earlier_one_is_moved() -> None:
    said: list[Message] = [{"role": role, "content": role} for role in ("system", "user", "assistant", "user")]
    tracers = Tracers(characters(), frozenset())
    system, first, answer, second = (str(one["content"]) for one in tracers.put_into(said))
    assert tracers.found_in(first + answer + second + system) == Misplaced(None, None)
    assert tracers.found_in(system + first + second + answer) == Misplaced(None, 3)


def test_results_may_follow_their_calls_directly() -> None:
    calls: list[Message] = [{"function": {"name": name, "arguments": {}}} for name in ("f", "g")]
    said: list[Message] = [
        {"role": "user", "content": "ask"},
        {"role": "assistant", "content": "look", "tool_calls": [*calls]},
        {"role": "tool", "content": "one"},
        {"role": "tool", "content": "two"},
        {"role": "user", "content": "thanks"},
    ]
    tracers = Tracers(characters(), frozenset())
    made = tracers.put_into(said)
    user, look, one, two, thanks = (str(message["content"]) for message in made)
    f, g = ("f" + chr(0xF0002), "g" + chr(0xF0003))
    for text, moved in (
        (user + look + f + g + one + two + thanks, None),
        (user + look + f + one + g + two + thanks, None),
        (user + f + g + look + two + one + thanks, None),
        (user + f + g + one + two + look + thanks, 2),
        (user + look + f + one + two + thanks + g, 4),
    ):
        assert tracers.found_in(text).moved == moved


def test_there_may_be_more_texts_than_witnesses() -> None:
    messages: list[Message] = [{"role": "user", "content": "a"} for _ in range(3)]
    tracers = Tracers(iter("\U000f0000"), frozenset())
    assert tracers.put_into(messages)[1:] == messages[1:]
    assert tracers.found_in("a\U000f0000aa") == Misplaced(None, None)
