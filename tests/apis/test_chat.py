"""A job's events become a message or its chunks."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.apis.asking import ASKED, HEADING, TERMS, body, entry, fail, finish, objects, start
from worker.apis.chat.message import REASONING_FIELDS, ChatAnswer
from worker.apis.chat.request import read_chat
from worker.apis.core.answers import Allowance, StreamOptions, last_chunks, whole
from worker.apis.core.events import Piece
from worker.apis.core.reading import PLAIN
from worker.apis.core.request import Request
from worker.wire.encoding import encode_json
from worker.wire.jobs import Logprob

texts = st.lists(st.text(min_size=1, max_size=5), max_size=8)


def asked(**fields: Any) -> Request:
    return read_chat(body(ASKED | fields), TERMS)


def streamed(pieces: list[str], found: list[list[Logprob]] | None = None, **fields: Any) -> list[Any]:
    request = asked(stream=True, **fields)
    (choice,) = request.answers(HEADING)
    stream = start(choice)
    for index, piece in enumerate(pieces):
        stream += choice.token(Piece(piece, index, found[index] if found else (), index + 1))
    stream += finish(choice, "EOS", len(pieces) + 1)
    stream += last_chunks(HEADING, [choice], 1, request.options)
    return objects(stream)


def collected(pieces: list[str], found: list[list[Logprob]] | None = None, **fields: Any) -> Any:
    request = asked(**fields)
    (choice,) = request.answers(HEADING)
    assert start(choice) == b""
    for index, piece in enumerate(pieces):
        assert choice.token(Piece(piece, index, found[index] if found else (), index + 1)) == b""
    assert finish(choice, "EOS", len(pieces) + 1) == b""
    status, answer = whole(HEADING, [choice], 1)
    assert status == 200
    return json.loads(answer)


@given(texts)
def test_a_stream_is_a_role_texts_a_reason_and_done(pieces: list[str]) -> None:
    *chunks, done = streamed(pieces)
    assert done == "[DONE]"
    heading = {"id": "x-1", "object": ChatAnswer.kind, "created": 7, "model": "toy", "system_fingerprint": "fp_0"}
    assert all(list(chunk) == [*heading, "choices"] and chunk.items() >= heading.items() for chunk in chunks)
    choices = [chunk["choices"] for chunk in chunks]
    assert all(len(each) == 1 and each[0]["index"] == 0 for each in choices)
    first, *middle, last = (each[0] for each in choices)
    assert first["delta"] == {"role": "assistant", "content": "", "refusal": None}
    assert all(list(each["delta"]) == ["content"] for each in middle)
    assert [each["finish_reason"] for each in (first, *middle)] == [None] * (len(pieces) + 1)
    assert (last["delta"], last["finish_reason"]) == ({}, "stop")


USAGE = {
    "prompt_tokens": 5,
    "completion_tokens": 3,
    "total_tokens": 8,
    "prompt_tokens_details": {"cached_tokens": 2},
    "completion_tokens_details": {
        "reasoning_tokens": 0,
        "accepted_prediction_tokens": 2,
        "rejected_prediction_tokens": 1,
    },
}


def test_the_usage_comes_last_and_only_on_request() -> None:
    *chunks, usage, done = streamed(["a", "b"], stream_options={"include_usage": True})
    assert (usage["choices"], usage["usage"], done) == ([], USAGE, "[DONE]")
    assert [chunk["usage"] for chunk in chunks] == [None] * 4
    assert not any("usage" in chunk for chunk in streamed(["a", "b"], stream_options={})[:-1])


def test_continuous_usage_counts_with_every_chunk() -> None:
    *chunks, done = streamed(["a", "b"], stream_options={"continuous_usage_stats": True})
    assert done == "[DONE]"
    assert [chunk["usage"]["completion_tokens"] for chunk in chunks] == [0, 1, 2, 3]
    assert all(chunk["choices"] for chunk in chunks)


def test_an_answer_has_a_message_and_its_usage() -> None:
    answer = collected(["a", "b"])
    assert answer == {
        "id": "x-1",
        "object": "chat.completion",
        "created": 7,
        "model": "toy",
        "system_fingerprint": "fp_0",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "ab", "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": USAGE,
    }


def test_logprobs_have_the_bytes_of_tokens_and_omit_tokens_without_text() -> None:
    half = entry("\ufffd", 8, -1.0, ("\ufffd", 8, -1.0), raw=b"\xc3")
    other = entry("\ufffd", 9, float("-inf"), raw=b"\xa9")
    found = [[half, other], [entry("", 3)]]
    wanted = {
        "content": [
            {
                "token": "\ufffd",
                "logprob": -1.0,
                "bytes": [0xC3],
                "top_logprobs": [{"token": "\ufffd", "logprob": -1.0, "bytes": [0xEF, 0xBF, 0xBD]}],
            },
            {"token": "\ufffd", "logprob": -9999.0, "bytes": [0xA9], "top_logprobs": []},
        ],
        "refusal": None,
    }
    fields = {"logprobs": True, "top_logprobs": 1}
    assert collected(["é", "x"], found, **fields)["choices"][0]["logprobs"] == wanted
    chunks = streamed(["é", "x"], found, **fields)[:-1]
    assert chunks[1]["choices"][0]["logprobs"] == wanted
    assert [chunk["choices"][0]["logprobs"] for chunk in (chunks[0], chunks[-1])] == [None, None]


def test_n_answers_count_their_prompt_once() -> None:
    request = asked(n=3)
    choices = request.answers(HEADING)
    for choice in choices:
        start(choice)
        choice.token(Piece(f"text {choice.index}", 0, (), 1))
        finish(choice, "MAX_TOKENS", 1)
    answer = json.loads(whole(HEADING, choices, 3)[1])
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    assert [choice["message"]["content"] for choice in answer["choices"]] == ["text 0", "text 1", "text 2"]
    assert {choice["finish_reason"] for choice in answer["choices"]} == {"length"}
    usage = answer["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (5, 3, 8)


def test_a_job_that_runs_again_leaves_nothing_of_its_first_run() -> None:
    choice = ChatAnswer(0, Allowance(), HEADING, None, PLAIN, wants_logprobs=True)
    start(choice)
    choice.token(Piece("lost", 0, [entry("lost", 1)], 1))
    choice.rewind()
    choice.token(Piece("kept", 0, [entry("kept", 2)], 1))
    finish(choice, "EOS", 1)
    made = choice.made()
    assert made.message.content == "kept"
    assert made.logprobs is not None
    assert b"lost" not in bytes(made.logprobs.content)


@pytest.mark.parametrize("names", [("reasoning_content",), ("reasoning",), REASONING_FIELDS])
def test_the_reasoning_is_in_the_chosen_fields(names: tuple[str, ...]) -> None:
    whole_one, stream = (
        ChatAnswer(0, Allowance(), HEADING, options, PLAIN, reasoning_fields=names)
        for options in (None, StreamOptions())
    )
    sent = start(stream)
    for choice in (whole_one, stream):
        sent += choice.token(Piece("Hm.", is_reasoning=True)) + choice.token(Piece("Yes.", 1))
        finish(choice, "EOS", 2)
    message = json.loads(encode_json(whole_one.made().message))
    assert {name: message[name] for name in REASONING_FIELDS if name in message} == dict.fromkeys(names, "Hm.")
    (thought,) = (
        delta for each in objects(sent) if not {"role", "content"} & (delta := each["choices"][0]["delta"]).keys()
    )
    assert thought == dict.fromkeys(names, "Hm.")


def test_a_variable_that_the_template_does_not_read_is_ignored_and_named() -> None:
    request = asked(chat_template_kwargs={"enable_thinking": False, "preserve_thinking": True, "tools": []})
    assert request.ignored == ("chat_template_kwargs.preserve_thinking", "chat_template_kwargs.tools")


def test_the_bytes_that_an_answer_holds_are_bounded_over_all_choices() -> None:
    allowance = Allowance(10)
    first, second = (ChatAnswer(index, allowance, HEADING, None, PLAIN) for index in range(2))
    first.token(Piece("123456"))
    assert not second.is_overfull
    second.token(Piece("12345"))
    assert first.is_overfull
    second.rewind()
    assert not first.is_overfull


def test_a_job_that_failed_is_an_error_with_its_status() -> None:
    (choice,) = asked().answers(HEADING)
    assert fail(choice) == b""
    status, answer = whole(HEADING, [choice], 1)
    assert (status, json.loads(answer)["error"]["code"]) == (503, "engine_restarted")
