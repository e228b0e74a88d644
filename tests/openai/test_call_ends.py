"""An answer that ends in a call says so, in every protocol; complete calls before it are kept."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.anthropic.following import Follower as MessageFollower
from tests.anthropic.following import events_of as message_events
from tests.chat.writing import CALLING, pieces_of, section
from tests.openai.asking import ASKED, HEADING, TERMS, body, objects, start
from tests.openai.responses.following import Follower as ResponseFollower
from tests.openai.responses.following import events_of as response_events
from worker.anthropic.request import read_messages
from worker.chat.tool_format import families
from worker.openai.answers import whole
from worker.openai.chat import read_chat
from worker.openai.responses.request import read_response
from worker.protocol.events import EndEvent
from worker.wire.chat_format import ChatFormat
from worker.wire.jobs import Finished, JobKey, StopReason

SCHEMA = {"type": "object", "properties": {"at": {"type": "string"}}}
FORMS = [CALLING[name] for name in ("hermes", "qwen3-coder", "kimi-k2", "lfm2", "gemma-4", "minimax-m3", "llama-3")]
READ: dict[str, Callable[[bytes, Any], Any]] = {
    "chat": read_chat,
    "responses": read_response,
    "messages": read_messages,
}
FIELDS: dict[str, dict[str, Any]] = {
    "chat": ASKED | {"tools": [{"type": "function", "function": {"name": "look", "parameters": SCHEMA}}]},
    "responses": {"input": "Hi", "tools": [{"type": "function", "name": "look", "parameters": SCHEMA}]},
    "messages": ASKED | {"model": "toy", "max_tokens": 50, "tools": [{"name": "look", "input_schema": SCHEMA}]},
}
REASONS: dict[str, dict[StopReason, str]] = {
    "chat": {"EOS": "stop", "STOP_SEQUENCE": "stop", "MAX_TOKENS": "length"},
    "responses": {"EOS": "completed", "STOP_SEQUENCE": "completed", "MAX_TOKENS": "incomplete"},
    "messages": {"EOS": "end_turn", "STOP_SEQUENCE": "stop_sequence", "MAX_TOKENS": "max_tokens"},
}


def answered(protocol: str, form: ChatFormat, pieces: list[str], reason: StopReason, *, is_stream: bool) -> Any:
    """The answer that does not stream, or the sum of the events."""
    asked = READ[protocol](body(FIELDS[protocol] | {"stream": is_stream}), replace(TERMS, chat_format=form))
    (choice,) = asked.choices(HEADING)
    stream = start(choice)
    for number, piece in enumerate(pieces):
        stream += choice.token(piece, number, (), number + 1)
    event = EndEvent(
        tokens_out=1, decode_time_ms=1, stop_reason=reason, tokens_sampled=1, prompt_tokens=5, time_to_first_token_ms=1
    )
    stop = "x" if reason == "STOP_SEQUENCE" else None
    stream += choice.end(event, Finished(JobKey(1), reason, stop=stop))
    if is_stream:
        return stream
    return json.loads(whole([choice], lambda: asked.body(HEADING, [choice]))[1])


def calls_of(protocol: str, answer: Any) -> tuple[str, list[Any]]:
    """The reason and the arguments of the calls."""
    if protocol == "chat":
        (choice,) = answer["choices"]
        calls = choice["message"].get("tool_calls", [])
        return choice["finish_reason"], [json.loads(call["function"]["arguments"]) for call in calls]
    if protocol == "responses":
        calls = [item for item in answer["output"] if item["type"] == "function_call"]
        return answer["status"], [json.loads(call["arguments"]) for call in calls]
    return answer["stop_reason"], [each["input"] for each in answer["content"] if each["type"] == "tool_use"]


@st.composite
def cut_texts(draw: st.DrawFn) -> tuple[ChatFormat, list[str], int]:
    """A text that ends in a call, and the number of calls before it."""
    form = draw(st.sampled_from(FORMS))
    assert form.calls is not None
    calls = [("look", {"at": f"here {n}"}) for n in range(draw(st.integers(1, 3)))]
    text = section(form.calls, calls)
    last = text.index(f"here {len(calls) - 1}")
    return form, draw(pieces_of(text[: last + draw(st.integers(0, 5))])), len(calls) - 1


@pytest.mark.parametrize("protocol", READ)
@pytest.mark.parametrize("reason", ["EOS", "STOP_SEQUENCE", "MAX_TOKENS"])
@given(case=cut_texts())
def test_a_whole_answer_leaves_the_unfinished_call_out(
    protocol: str, reason: StopReason, case: tuple[ChatFormat, list[str], int]
) -> None:
    form, pieces, n_calls = case
    found, calls = calls_of(protocol, answered(protocol, form, pieces, reason, is_stream=False))
    assert calls == [{"at": f"here {n}"} for n in range(n_calls)]
    assert form.calls is not None
    if reason != "EOS" or form.calls.form not in ("python", "gemma"):  # these are called as a whole, else content
        assert found == REASONS[protocol][reason]


@pytest.mark.parametrize("reason", ["EOS", "STOP_SEQUENCE", "MAX_TOKENS"])
@given(case=cut_texts())
def test_a_stream_never_says_that_an_unfinished_call_is_called(
    reason: StopReason, case: tuple[ChatFormat, list[str], int]
) -> None:
    form, pieces, n_calls = case
    chunks = objects(answered("chat", form, pieces, reason, is_stream=True))
    begun = [call for chunk in chunks for call in chunk["choices"][0]["delta"].get("tool_calls", []) if "id" in call]
    assert n_calls <= len(begun) <= n_calls + 1
    if len(begun) > n_calls:
        assert chunks[-1]["choices"][0]["finish_reason"] == REASONS["chat"][reason]
    response = ResponseFollower()
    for event in response_events(answered("responses", form, pieces, reason, is_stream=True)):
        response.take(event)
    message = MessageFollower()
    events = message_events(answered("messages", form, pieces, reason, is_stream=True))
    for event in events:
        message.take(event)
    (stop_reason,) = [event["delta"]["stop_reason"] for event in events if event["type"] == "message_delta"]
    if len(begun) > n_calls:
        assert stop_reason == REASONS["messages"][reason]


@pytest.mark.parametrize(
    "family", [family.format for family in families() if family.format.calls], ids=lambda one: one.name
)
@pytest.mark.parametrize("reason", ["EOS", "STOP_SEQUENCE"])
def test_a_complete_call_is_called(family: ChatFormat, reason: StopReason) -> None:
    assert family.calls is not None
    if family.calls.form == "harmony":
        return
    text = section(family.calls, [("look", {"at": "x"})]).removeprefix(family.opening)
    found, calls = calls_of("chat", answered("chat", family, [*text], reason, is_stream=False))
    assert (found, calls) == ("tool_calls", [{"at": "x"}])


@pytest.mark.parametrize(
    ("protocol", "choice", "is_parallel"),
    [
        ("chat", {"type": "function", "function": {"name": "look"}}, False),
        ("chat", "required", True),
        ("responses", {"type": "function", "name": "look"}, False),
        ("responses", "required", True),
        ("messages", {"type": "tool", "name": "look"}, False),
        ("messages", {"type": "any"}, True),
    ],
)
def test_a_named_tool_is_called_once(protocol: str, choice: Any, is_parallel: bool) -> None:
    asked = READ[protocol](body(FIELDS[protocol] | {"tool_choice": choice}), TERMS)
    tools = asked.generation.reading.use.for_engine()
    assert tools is not None
    assert (tools.is_required, tools.is_parallel) == (True, is_parallel)
