"""Answers as they are compared: independent of ids and of the cut into chunks, sensitive to everything else."""

import json
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tools.fire.answers import answer_of, differences, excesses
from tools.fire.asks import CHAT, COMPLETIONS, EXECUTE, MESSAGES, RESPONSES, Ask

Json = dict[str, Any]
Stream = Callable[[list[str], str], list[Json]]


def execute(pieces: list[str], chance: str) -> list[Json]:
    started = {"type": "started", "job_id": chance, "seed": 3, "prompt_tokens": 5, "cached_tokens": len(chance)}
    tokens = [
        {"type": "token", "t": text, "i": at, "logprobs": [{"id": ord(c)} for c in text]}
        for at, text in enumerate(pieces)
    ]
    end = {"type": "end", "tokens_out": len(pieces), "stop_reason": "EOS", "tokens_sampled": 9, "prompt_tokens": 5}
    return [started, *tokens, {"type": "metrics", "tokens_out": 1}, end]


def completion(pieces: list[str], chance: str) -> list[Json]:
    chunks = [
        {"id": chance, "choices": [{"index": 0, "text": text, "logprobs": {"tokens": [*text]}, "finish_reason": None}]}
        for text in pieces
    ]
    last = {"id": chance, "choices": [{"index": 0, "text": "", "finish_reason": "stop"}]}
    usage = {"prompt_tokens": 1, "completion_tokens_details": {"accepted_prediction_tokens": len(chance)}}
    return [*chunks, last, {"choices": [], "usage": usage}]


def chat(pieces: list[str], chance: str) -> list[Json]:
    def chunk(delta: Json) -> Json:
        return {"id": chance, "created": len(chance), "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}

    call = {"index": 0, "id": chance, "function": {"name": "f", "arguments": ""}}
    calls = [{"index": 0, "function": {"arguments": text}} for text in pieces]
    return [
        chunk({"role": "assistant"}),
        *(chunk({"content": text}) for text in pieces),
        *(chunk({"tool_calls": [each]}) for each in (call, *calls)),
        {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]},
    ]


def response(pieces: list[str], chance: str) -> list[Json]:
    at = {"output_index": 0, "item_id": chance}
    whole = {"id": chance, "output": [{"id": chance, "content": "".join(pieces)}], "created_at": len(chance)}
    return [
        {"type": "response.created", "response": {"id": chance}},
        {"type": "response.output_item.added", "output_index": 0, "item": {"type": "message", "id": chance}},
        *({"type": "response.output_text.delta", "delta": text, **at} for text in pieces),
        {"type": "response.completed", "response": whole},
    ]


def message(pieces: list[str], chance: str) -> list[Json]:
    usage = {"input_tokens": 20 - len(chance), "cache_read_input_tokens": len(chance)}
    return [
        {"type": "message_start", "message": {"id": chance, "usage": usage}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        *(
            {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}}
            for text in pieces
        ),
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": usage | {"output_tokens": 4}},
        {"type": "message_stop"},
    ]


STREAMS: dict[str, Stream] = {
    EXECUTE: execute,
    COMPLETIONS: completion,
    CHAT: chat,
    RESPONSES: response,
    MESSAGES: message,
}
ROUTES = pytest.mark.parametrize("path", STREAMS)


def body(path: str, events: list[Json], *, is_whole: bool = True) -> bytes:
    frames = b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events)
    return frames + (b"data: [DONE]\n\n" if is_whole and path in (CHAT, COMPLETIONS) else b"")


def ask(path: str) -> Ask:
    return Ask(path, {"stream": True})


def cut(text: str, places: list[int]) -> list[str]:
    edges = sorted({0, len(text), *(place % (len(text) + 1) for place in places)})
    return [text[begin:end] for begin, end in pairwise(edges)]


TEXTS = st.text("abc{}", min_size=1, max_size=12)
PLACES = st.lists(st.integers(0, 20), max_size=4)
CHANCES = st.text("xyz", min_size=1, max_size=9)


@ROUTES
@given(text=TEXTS, one=PLACES, other=PLACES, chances=st.tuples(CHANCES, CHANCES))
def test_ids_times_and_the_cut_into_chunks_make_no_difference(
    path: str, text: str, one: list[int], other: list[int], chances: tuple[str, str]
) -> None:
    answers = [
        answer_of(ask(path), 200, body(path, STREAMS[path](cut(text, places), chance)))
        for places, chance in zip((one, other), chances, strict=True)
    ]
    assert differences(*answers) == []
    assert answers[0].n_endings == 1


@ROUTES
@given(text=TEXTS, places=PLACES, end=st.integers(0, 10_000))
def test_a_stream_that_broke_off_anywhere_is_a_part_of_the_whole(
    path: str, text: str, places: list[int], end: int
) -> None:
    whole = body(path, STREAMS[path](cut(text, places), "x"))
    part = answer_of(ask(path), 200, whole[: end % (len(whole) + 1)])
    assert excesses(part, answer_of(ask(path), 200, whole)) == []


@ROUTES
def test_another_character_is_a_difference_in_a_whole_stream_and_in_a_part(path: str) -> None:
    alone = answer_of(ask(path), 200, body(path, STREAMS[path](["abc", "def"], "x")))
    events = STREAMS[path](["abc", "dXf"], "x")
    assert differences(answer_of(ask(path), 200, body(path, events)), alone)
    assert excesses(answer_of(ask(path), 200, body(path, events[:-1], is_whole=False)), alone)


@ROUTES
def test_an_event_after_the_end_is_no_answer(path: str) -> None:
    events = STREAMS[path](["abc"], "x")
    twice = body(path, events) + body(path, events[-1:])
    with pytest.raises(ValueError, match="follows the end"):
        answer_of(ask(path), 200, twice)


def test_a_job_that_starts_twice_or_skips_a_token_is_no_answer() -> None:
    events = execute(["a", "b"], "x")
    for wrong in ([events[0], *events], [events[0], *events[2:]]):
        with pytest.raises(ValueError, match=r"twice|order"):
            answer_of(ask(EXECUTE), 200, body(EXECUTE, wrong))


def test_whole_bodies_are_compared_without_ids_and_with_the_ids_of_tokens() -> None:
    def answer(**members: Any) -> Json:
        return {"id": "a", "created": 1, "choices": [{"text": "t", "logprobs": [{"id": 7}], **members}]}

    plain = Ask(COMPLETIONS, {})
    whole, other, wrong = (
        answer_of(plain, 200, json.dumps(each).encode())
        for each in (answer(), answer() | {"id": "b", "created": 2}, answer(logprobs=[{"id": 8}]))
    )
    assert differences(whole, other) == []
    assert differences(whole, wrong)


@pytest.mark.parametrize("path", [EXECUTE, MESSAGES])
def test_the_tokens_of_a_prompt_that_was_not_read_are_not_compared(path: str) -> None:
    """A job that ends before its prompt was read says that it has 0."""
    alone = answer_of(ask(path), 200, body(path, STREAMS[path](["abc"], "x")))
    began = STREAMS[path]([], "")[0]
    if path == EXECUTE:
        began = began | {"prompt_tokens": 0}
    else:
        began["message"]["usage"] = {"input_tokens": 0, "cache_read_input_tokens": 0}
    assert excesses(answer_of(ask(path), 200, body(path, [began], is_whole=False)), alone) == []
