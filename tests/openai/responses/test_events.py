"""The events of `/v1/responses` as laws: every prefix is a legal state, and the deltas sum up to the items."""

import itertools
from collections.abc import Sequence
from typing import Any

import msgspec
from hypothesis import example, given
from hypothesis import strategies as st

from tests.openai.asking import HEADING, TERMS, body, fail, finish, start
from tests.openai.deltas import USE, said, sequences
from tests.openai.responses.following import Event, Follower, events_of, text_of
from worker.chat.parse import Arguments, CallBegun, Content, Delta, Thought
from worker.openai.answers import Choice
from worker.openai.reading import Reading
from worker.openai.responses.events import Output, Shown
from worker.openai.responses.request import ResponseAsked, read_response

SHOWN = st.builds(Shown, in_summary=st.booleans(), is_encoded=st.booleans())
PIECES = st.lists(st.tuples(st.sampled_from(["one ", "two", "\n", "é"]), st.booleans()), max_size=12)


def asked(**fields: Any) -> ResponseAsked:
    return read_response(body({"input": "Hello", **fields}), TERMS)


def choice_of(request: ResponseAsked) -> Choice:
    (choice,) = request.choices(HEADING)
    return choice


def followed(events: Sequence[Event]) -> Follower:
    follower = Follower()
    for event in events:
        follower.take(event)
    return follower


def output_of(deltas: Sequence[Delta], shown: Shown) -> tuple[Follower, Output]:
    """The sum of the events of an output, each taken as soon as it comes."""
    output, follower = Output(Reading(use=USE), shown), Follower()
    follower.n_taken = 1

    def take(kind: str, members: dict[str, Any]) -> None:
        data = msgspec.json.decode(msgspec.json.encode(members))
        follower.take({"type": kind, "sequence_number": follower.n_taken, **data})

    for delta in deltas:
        for kind, members in output.add(delta):
            take(kind, members)
    for kind, members in output.end("completed"):
        take(kind, members)
    return follower, output


@given(sequences(), SHOWN)
def test_any_deltas_become_items_event_by_event(deltas: list[Delta], shown: Shown) -> None:
    follower, output = output_of(deltas, shown)
    items = msgspec.json.decode(msgspec.json.encode(output.items()))
    assert items == follower.items
    assert items
    for kind, item_kind in ((Content, "message"), (Thought, "reasoning")):
        texts = (text_of(item) for item in items if item["type"] == item_kind)
        assert "".join("".join(texts).split()) == said(deltas, kind)
    begun = [delta for delta in deltas if isinstance(delta, CallBegun)]
    calls = [item for item in items if item["type"].endswith("call")]
    assert [call["call_id"] for call in calls] == [delta.id for delta in begun]
    for call, delta in zip(calls, begun, strict=True):
        if call["type"] == "function_call":
            written = "".join(one.text for one in deltas if isinstance(one, Arguments) and one.index == delta.index)
            assert call["arguments"] == written


def test_a_tool_is_answered_with_the_clients_names() -> None:
    deltas: list[Delta] = [
        CallBegun(0, "a", "files__find"),
        Arguments(0, "{}"),
        CallBegun(1, "b", "patch"),
        *(Arguments(1, part) for part in ('{"in', 'put": "*** Begin\\', 'n\\u00e9"', "}")),
    ]
    follower, _ = output_of(deltas, Shown())
    found, patch = follower.items
    assert (found["name"], found["namespace"], found["arguments"]) == ("find", "files", "{}")
    assert (patch["type"], patch["name"], patch["input"]) == ("custom_tool_call", "patch", "*** Begin\né")
    assert "namespace" not in patch


@given(PIECES, st.sets(st.integers(0, 12)), st.sampled_from(["EOS", "MAX_TOKENS", "failure"]), st.booleans())
@example([], {0}, "failure", False)
def test_a_stream_is_legal_at_every_moment(
    pieces: list[tuple[str, bool]], silent: set[int], end: str, in_summary: bool
) -> None:
    """Signs of life may come at any time, also before the job has its slot."""
    fields = {"reasoning": {"summary": "auto"}} if in_summary else {}
    choice = choice_of(asked(stream=True, **fields))
    stream = choice.sign_of_life() if 0 in silent else b""
    stream += start(choice)
    for at, (text, is_reasoning) in enumerate(pieces):
        stream += choice.token(text, at, is_reasoning=is_reasoning)
        stream += choice.sign_of_life() if at + 1 in silent else b""
    stream += fail(choice) if end == "failure" else finish(choice, "EOS" if end == "EOS" else "MAX_TOKENS", len(pieces))
    follower = followed(events_of(stream))
    assert follower.last is not None
    expected = {"EOS": "completed", "MAX_TOKENS": "incomplete", "failure": "failed"}[end]
    response = follower.last["response"]
    assert response["status"] == expected
    if end == "failure":
        assert response["error"]["code"] == "server_error"
    else:
        assert response["usage"]["input_tokens_details"]["cached_tokens"] == 2
        assert response["output"][-1].get("status") == ("completed" if end == "EOS" else "incomplete")


@given(PIECES)
def test_a_stream_and_an_answer_have_the_same_items(pieces: list[tuple[str, bool]]) -> None:
    answers = []
    for is_stream in (True, False):
        request = asked(stream=is_stream)
        choice = choice_of(request)
        stream = start(choice)
        for at, (text, is_reasoning) in enumerate(pieces):
            stream += choice.token(text, at, is_reasoning=is_reasoning)
        stream += finish(choice, "EOS", len(pieces) + 1)
        if is_stream:
            answers.append(events_of(stream)[-1]["response"])
        else:
            assert not stream
            answer = request.body(HEADING, [choice])
            answers.append(msgspec.json.decode(answer))
    for answer in answers:
        answer["completed_at"] = 0
        for item in answer["output"]:
            item["id"] = ""
    assert answers[0] == answers[1]


def test_an_answer_runs_again_from_its_start() -> None:
    request = asked()
    choice = choice_of(request)
    start(choice)
    choice.token("lost", 0)
    choice.rewind()
    choice.token("kept", 0)
    finish(choice, "EOS", 1)
    assert b"lost" not in request.body(HEADING, [choice])


def test_reasoning_comes_back_encoded_if_the_request_includes_it() -> None:
    request = asked(include=["reasoning.encrypted_content"])
    choice = choice_of(request)
    start(choice)
    choice.token("Why é?", 0, is_reasoning=True)
    choice.token("So.", 1)
    finish(choice, "EOS", 2)
    thought, message = msgspec.json.decode(request.body(HEADING, [choice]))["output"]
    given_back = [{key: value for key, value in thought.items() if key != "content"}, message]
    again = asked(input=[{"role": "user", "content": "Hello"}, *given_back, {"role": "user", "content": "And?"}])
    messages = msgspec.json.decode(again.prompt.messages)
    assert messages[1] == {"role": "assistant", "content": "So.", "reasoning_content": "Why é?"}
    assert again.generation.ignored == ()


TOOLS = [
    {"type": "function", "name": "read", "parameters": {"type": "object", "properties": {"path": {"type": "string"}}}},
    {"type": "custom", "name": "patch"},
]
CALLS = (
    'I look.\n<tool_call>\n{"name": "read", "arguments": {"path": "a"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "patch", "arguments": {"input": "line\\n"}}\n</tool_call>'
)


@given(st.lists(st.integers(0, len(CALLS)), max_size=8), st.booleans())
def test_calls_are_items_however_the_text_comes(cuts: list[int], is_stream: bool) -> None:
    request = asked(tools=TOOLS, stream=is_stream)
    choice = choice_of(request)
    stream = start(choice)
    edges = sorted({0, *cuts, len(CALLS)})
    for at, (begin, end) in enumerate(itertools.pairwise(edges)):
        stream += choice.token(CALLS[begin:end], at)
    stream += finish(choice, "EOS", len(edges))
    if is_stream:
        items = followed(events_of(stream)).items
    else:
        items = msgspec.json.decode(request.body(HEADING, [choice]))["output"]
    message, read, patch = items
    assert text_of(message).strip() == "I look."
    assert (read["name"], msgspec.json.decode(read["arguments"])) == ("read", {"path": "a"})
    assert (patch["name"], patch["input"]) == ("patch", "line\n")
