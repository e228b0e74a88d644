"""A body becomes prompts, and a job's events become a text or its chunks."""

import json
from typing import Any

import pytest

from tests.apis.asking import HEADING, TERMS, body, entry, finish, objects, start
from tests.tables import cases
from worker.apis.completions.request import Echo, read_completion
from worker.apis.core.answers import last_chunks, whole
from worker.apis.core.bodies import FieldsRefused
from worker.apis.core.events import Piece
from worker.apis.core.request import Request
from worker.wire.jobs import TokenId


def asked(**fields: Any) -> Request:
    return read_completion(body({"prompt": "ab"} | fields), TERMS)


@cases
def test_a_prompt_has_four_forms(prompt: Any, prompts: Any) -> None:
    assert json.loads(json.dumps(asked(prompt=prompt).prompts)) == prompts


def test_a_prompt_has_a_longest_length() -> None:
    asked(prompt="x" * TERMS.max_text_chars)
    with pytest.raises(FieldsRefused, match="prompt must be at most 1000 characters"):
        asked(prompt="x" * (TERMS.max_text_chars + 1))


def test_sixteen_tokens_are_the_default_and_none_may_be_wanted_with_echo() -> None:
    assert asked().params.max_tokens == 16
    assert asked(max_tokens=0, echo=True).params.max_tokens == 0


def test_a_router_may_send_false_for_logprobs() -> None:
    assert asked(logprobs=False).params.logprobs is None
    assert asked(logprobs=0).params.logprobs == 0


@cases
def test_the_engine_reports_no_more_logprobs_than_the_answer_needs(fields: dict[str, Any], needed: int | None) -> None:
    assert asked(**fields).prompt_logprobs == needed


# ── answers ──────────────────────────────────────────────────────────────────────────────────────

ECHO = Echo("héb", TokenId(1), "h")
PROMPT = [
    entry("\ufffd", 2, -1.0, ("x", 7, -0.1), raw=b"\xc3"),
    entry("\ufffd", 3, -2.0, raw=b"\xa9"),
    entry("b", 4, -3.0),
]
DRAWN = [[entry("c", 5, -0.25, ("c", 5, -0.25), ("d", 6, -4.0))], [entry("", 9, -0.5)]]


def answered(request: Request, echo: Echo | None = None) -> Any:
    (choice,) = request.answers(HEADING, [echo])
    start(choice)
    choice.prompt_logprobs(PROMPT[:2])
    choice.prompt_logprobs(PROMPT[2:])
    choice.token(Piece("c", 0, DRAWN[0], 1))
    finish(choice, "EOS", 2, DRAWN[1])
    return json.loads(whole(HEADING, [choice], 1)[1])["choices"][0]


def test_an_echo_begins_the_text_and_its_tokens_the_logprobs() -> None:
    found = answered(asked(echo=True, logprobs=1), ECHO)
    assert found == {
        "index": 0,
        "text": "hébc",
        "logprobs": {
            "text_offset": [0, 1, 1, 2, 3, 4],
            "token_logprobs": [None, -1.0, -2.0, -3.0, -0.25, -0.5],
            "tokens": ["h", "\ufffd", "\ufffd", "b", "c", ""],
            "top_logprobs": [
                None,
                {"\ufffd": -1.0, "x": -0.1},
                {"\ufffd": -2.0},
                {"b": -3.0},
                {"c": -0.25},
                {"": -0.5},
            ],
        },
        "finish_reason": "stop",
    }


def test_without_an_echo_offsets_begin_with_the_answer() -> None:
    logprobs = answered(asked(logprobs=2))["logprobs"]
    assert logprobs["tokens"] == ["c", ""]
    assert logprobs["text_offset"] == [0, 1]
    assert logprobs["top_logprobs"][0] == {"c": -0.25, "d": -4.0}


def test_tokens_can_be_named_by_their_ids() -> None:
    logprobs = answered(asked(echo=True, logprobs=1, return_tokens_as_token_ids=True), ECHO)["logprobs"]
    assert logprobs["tokens"] == [f"token_id:{token}" for token in (1, 2, 3, 4, 5, 9)]
    assert logprobs["top_logprobs"][1] == {"token_id:2": -1.0, "token_id:7": -0.1}


def test_a_token_before_the_text_has_no_characters_in_it() -> None:
    logprobs = answered(asked(echo=True, logprobs=0), Echo("éb", TokenId(1), "<s>"))["logprobs"]
    assert logprobs["tokens"][0] == "<s>"
    assert logprobs["text_offset"] == [0, 0, 0, 1, 2, 3]


def test_a_prompts_logprobs_are_also_reported_in_vllms_form() -> None:
    found = answered(asked(prompt_logprobs=1))
    assert found["logprobs"] is None
    assert found["text"] == "c"
    assert found["prompt_logprobs"] == [
        None,
        {"2": {"logprob": -1.0, "decoded_token": "\ufffd"}, "7": {"logprob": -0.1, "rank": 1, "decoded_token": "x"}},
        {"3": {"logprob": -2.0, "decoded_token": "\ufffd"}},
        {"4": {"logprob": -3.0, "decoded_token": "b"}},
    ]


def test_a_stream_has_the_content_of_an_answer() -> None:
    request = asked(echo=True, logprobs=1, stream=True)
    (choice,) = request.answers(HEADING, [ECHO])
    assert start(choice) + choice.prompt_logprobs(PROMPT) == b"", "until the first token the job may run again"
    choice.rewind()
    choice.prompt_logprobs(PROMPT)
    stream = choice.token(Piece("c", 0, DRAWN[0], 1)) + finish(choice, "EOS", 2, DRAWN[1])
    *chunks, done = objects(stream + last_chunks(HEADING, [choice], 1, request.options))
    assert done == "[DONE]"
    parts = [chunk["choices"][0] for chunk in chunks]
    complete = answered(asked(echo=True, logprobs=1), ECHO)
    assert "".join(part["text"] for part in parts) == complete["text"]
    for name, wanted in complete["logprobs"].items():
        assert [item for part in parts for item in part["logprobs"][name]] == wanted
    assert [part["finish_reason"] for part in parts] == [None, None, "stop"]


def test_an_echo_without_an_answer_streams_too() -> None:
    request = asked(echo=True, max_tokens=0, stream=True)
    (choice,) = request.answers(HEADING, [ECHO])
    parts = [chunk["choices"][0] for chunk in objects(start(choice) + finish(choice, "MAX_TOKENS", 0))]
    assert [(part["text"], part["finish_reason"]) for part in parts] == [("héb", None), ("", "length")]


def test_prompts_have_n_consecutive_choices_each() -> None:
    request = asked(prompt=["a", "b"], n=2)
    choices = request.answers(HEADING, [None, None])
    for choice in choices:
        start(choice, n_prompt=choice.index // 2 + 1)
        finish(choice, "MAX_TOKENS", 1)
    answer = json.loads(whole(HEADING, choices, 2)[1])
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    assert answer["usage"]["prompt_tokens"] == 1 + 2
