"""The events of `/v1/messages` as laws: every prefix is a legal state, and the deltas sum up to the blocks."""

import itertools
import json
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.anthropic.asking import HELLO, asked, choice_of
from tests.anthropic.following import Event, Follower, events_of
from tests.openai.asking import HEADING, fail, finish, start
from tests.openai.deltas import said, sequences
from worker.anthropic.answer import UNREADABLE, Blocks
from worker.chat.parse import Arguments, CallBegun, Content, Delta, Thought
from worker.openai.answers import Choice
from worker.protocol.events import EndEvent
from worker.wire.jobs import Finished, JobKey

PIECES = st.lists(st.tuples(st.sampled_from(["one ", "two", "\n", "é"]), st.booleans()), max_size=12)


def followed(events: Sequence[Event]) -> Follower:
    follower = Follower()
    for event in events:
        follower.take(event)
    return follower


def blocks_of(deltas: Sequence[Delta], *, shows_thinking: bool = True) -> tuple[Follower, list[dict[str, Any]]]:
    """The events of an answer tell one message, which has the blocks of the same answer that is not streamed."""
    blocks, follower = Blocks(shows_thinking=shows_thinking), Follower()
    follower.take({"type": "message_start", "message": {"content": [], "stop_reason": None}})
    events = [event for delta in deltas for event in blocks.add(delta)]
    for event in [*events, *blocks.end()]:
        follower.take(msgspec.json.decode(msgspec.json.encode(event)))
    return follower, msgspec.json.decode(msgspec.json.encode(blocks.whole()))


@given(sequences(), st.booleans())
def test_any_deltas_become_blocks_event_by_event(deltas: list[Delta], shows_thinking: bool) -> None:
    follower, blocks = blocks_of(deltas, shows_thinking=shows_thinking)
    for at, (streamed, made) in enumerate(zip(follower.blocks, blocks, strict=True)):
        if made["type"] == "tool_use":
            streamed["input"] = made["input"]
            partial = follower.partial.get(at, "")
            assert made["input"] == {UNREADABLE: partial} or made["input"] == json.loads(partial or "{}")
        assert streamed == made
    texts = "".join(block["text"] for block in blocks if block["type"] == "text")
    assert "".join(texts.split()) == said(deltas, Content)
    assert all(block["text"].strip() for block in blocks if block["type"] == "text")
    thoughts = "".join(block["thinking"] for block in blocks if block["type"] == "thinking")
    assert "".join(thoughts.split()) == (said(deltas, Thought) if shows_thinking else "")
    begun = [(delta.id, delta.name) for delta in deltas if isinstance(delta, CallBegun)]
    assert [(block["id"], block["name"]) for block in blocks if block["type"] == "tool_use"] == begun


def test_arguments_that_are_no_object_are_given_as_text() -> None:
    _, (block,) = blocks_of([CallBegun(0, "a", "read"), Arguments(0, '{"path": "/et')])
    assert block["input"] == {UNREADABLE: '{"path": "/et'}


@given(PIECES, st.sets(st.integers(0, 12)), st.sampled_from(["EOS", "MAX_TOKENS", "failure"]), st.booleans())
def test_a_stream_is_legal_at_every_moment(
    pieces: list[tuple[str, bool]], silent: set[int], end: str, is_omitted: bool
) -> None:
    """Pings may come at any time, also before the job has its slot."""
    thinking = {"type": "adaptive", "display": "omitted"} if is_omitted else None
    choice = choice_of(asked(stream=True, thinking=thinking))
    stream = choice.sign_of_life() if 0 in silent else b""
    stream += start(choice)
    for at, (text, is_reasoning) in enumerate(pieces):
        stream += choice.token(text, at, is_reasoning=is_reasoning)
        stream += choice.sign_of_life() if at + 1 in silent else b""
    stream += fail(choice) if end == "failure" else finish(choice, "EOS" if end == "EOS" else "MAX_TOKENS", len(pieces))
    follower = followed(events_of(stream))
    assert follower.is_over
    if end == "failure":
        assert follower.error == {"type": "overloaded_error", "message": "the engine was restarted"}
    else:
        assert follower.message is not None
        assert follower.message["stop_reason"] == ("end_turn" if end == "EOS" else "max_tokens")
        usage = follower.message["usage"]
        assert (usage["input_tokens"], usage["cache_read_input_tokens"], usage["output_tokens"]) == (3, 2, len(pieces))


@given(PIECES)
def test_a_stream_and_an_answer_are_the_same_message(pieces: list[tuple[str, bool]]) -> None:
    messages = []
    for is_stream in (True, False):
        request = asked(stream=is_stream)
        choice = choice_of(request)
        stream = start(choice)
        for at, (text, is_reasoning) in enumerate(pieces):
            stream += choice.token(text, at, is_reasoning=is_reasoning)
        stream += finish(choice, "EOS", len(pieces) + 1)
        if is_stream:
            messages.append(followed(events_of(stream)).message)
        else:
            assert not stream
            answer = request.body(HEADING, [choice])
            messages.append(json.loads(answer))
    assert messages[0] == messages[1]


def ended(choice: Choice, reason: Any, stop: str | None = None) -> None:
    event = EndEvent(
        tokens_out=1, decode_time_ms=1, stop_reason=reason, tokens_sampled=1, prompt_tokens=5, time_to_first_token_ms=1
    )
    choice.end(event, Finished(JobKey(1), reason, stop=stop))


@pytest.mark.parametrize(
    ("reason", "stop", "expected"),
    [
        ("EOS", None, "end_turn"),
        ("MAX_TOKENS", None, "max_tokens"),
        ("STOP_SEQUENCE", "###", "stop_sequence"),
        ("STOP_SEQUENCE", None, "end_turn"),
    ],
)
def test_the_reason_of_the_end(reason: str, stop: str | None, expected: str) -> None:
    request = asked()
    choice = choice_of(request)
    start(choice)
    choice.token("x", 0)
    ended(choice, reason, stop)
    answer = json.loads(request.body(HEADING, [choice]))
    assert (answer["stop_reason"], answer["stop_sequence"]) == (expected, stop)


def test_an_answer_runs_again_from_its_start() -> None:
    request = asked()
    choice = choice_of(request)
    start(choice)
    choice.token("lost", 0)
    choice.rewind()
    choice.token("kept", 0)
    finish(choice, "EOS", 1)
    assert json.loads(request.body(HEADING, [choice]))["content"] == [{"type": "text", "text": "kept"}]


@pytest.mark.parametrize("display", ["summarized", "omitted"])
def test_reasoning_comes_back_in_the_next_request(display: str) -> None:
    request = asked(thinking={"type": "adaptive", "display": display})
    choice = choice_of(request)
    start(choice)
    choice.token("Why é?", 0, is_reasoning=True)
    choice.token("So.", 1)
    finish(choice, "EOS", 2)
    content = json.loads(request.body(HEADING, [choice]))["content"]
    again = asked(messages=[*HELLO, {"role": "assistant", "content": content}, *HELLO])
    _, reply, _ = json.loads(again.prompt.messages)
    assert reply == {"role": "assistant", "content": "So.", "reasoning_content": "Why é?"}
    assert again.generation.ignored == ()


CALL = 'I look.\n<tool_call>\n{"name": "read", "arguments": {"path": "a"}}\n</tool_call>'
TOOL = {"name": "read", "input_schema": {"type": "object", "properties": {"path": {"type": "string"}}}}


@given(st.lists(st.integers(0, len(CALL)), max_size=8))
def test_a_call_is_a_block_however_the_text_comes(cuts: list[int]) -> None:
    choice = choice_of(asked(tools=[TOOL], stream=True))
    stream = start(choice)
    edges = sorted({0, *cuts, len(CALL)})
    for at, (begin, end) in enumerate(itertools.pairwise(edges)):
        stream += choice.token(CALL[begin:end], at)
    follower = followed(events_of(stream + finish(choice, "EOS", len(edges))))
    assert follower.message is not None
    assert follower.message["stop_reason"] == "tool_use"
    text, call = follower.blocks
    assert text["text"].strip() == "I look."
    assert (call["name"], json.loads(follower.partial[1])) == ("read", {"path": "a"})


@pytest.mark.parametrize("choice", [{"type": "none"}, None])
def test_calls_are_text_without_tools_to_call(choice: Any) -> None:
    request = asked(tools=[TOOL], tool_choice=choice) if choice else asked()
    answer = choice_of(request)
    start(answer)
    answer.token(CALL, 0)
    finish(answer, "EOS", 1)
    made = json.loads(request.body(HEADING, [answer]))
    assert [block["type"] for block in made["content"]] == ["text"]
    assert made["stop_reason"] == "end_turn"
