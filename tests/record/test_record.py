"""The worker answers what tests/record/*.jsonl says. What depends on the machine is left to `make record`.

The laws of wrong requests are read off the record.
"""

import json
from collections.abc import Iterator

import pytest

from tests.record.__main__ import FOLDER, asked_again
from tests.record.routes import SECRET
from tests.record.rows import Json, differences, read

ROUTES = read(FOLDER / "routes.jsonl")
MESSAGES = "/v1/messages"


@pytest.mark.process
@pytest.mark.parametrize("part", ["routes", "templates"])
def test_answers_are_those_of_the_record(part: str) -> None:
    recorded = read(FOLDER / f"{part}.jsonl")
    assert not [*differences(recorded, asked_again(part, recorded))]


def refused(*paths: str) -> Iterator[tuple[Json, Json]]:
    """Requests at these paths, and below them, that are refused because of a field, with the answers."""
    for row in ROUTES:
        ask, answer = row["ask"], row["answer"]
        is_shown = answer["body"].startswith("{")
        if answer["status"] == 400 and ask["worker"] == "toy" and ask["path"].startswith(paths) and is_shown:
            yield ask, json.loads(answer["body"])


def test_a_refusal_of_v1_has_openais_shape_and_names_the_field() -> None:
    answers = [*refused("/v1/chat/completions", "/v1/completions", "/v1/responses", "/tokenize", "/detokenize")]
    assert len(answers) > 500
    for ask, body in answers:
        error = body["error"]
        assert error.keys() == {"message", "type", "param", "code"}, ask
        assert error["type"] == "invalid_request_error"
        assert error["message"]
        assert isinstance(ask.get("body"), dict) <= (error["param"] is not None), ask


def test_a_refusal_of_messages_has_anthropics_shape() -> None:
    answers = [*refused(MESSAGES)]
    assert len(answers) > 100
    for _, body in answers:
        assert body["type"] == "error"
        assert body["error"]["type"] == "invalid_request_error"
        assert body["error"]["message"]


def test_no_refusal_quotes_a_prompt() -> None:
    answers = [row for row in ROUTES if row["answer"]["status"] >= 400 and SECRET in json.dumps(row["ask"])]
    assert len(answers) > 300
    assert not [row for row in answers if SECRET in row["answer"]["body"]]


def test_a_field_that_is_null_is_as_if_it_were_absent() -> None:
    plain = {json.dumps(row["ask"], sort_keys=True): row["answer"] for row in ROUTES}
    n_compared = 0
    for row in ROUTES:
        body = row["ask"].get("body")
        if isinstance(body, dict) and row["answer"]["status"] == 200 and None in body.values():
            without = {name: value for name, value in body.items() if value is not None}
            if answer := plain.get(json.dumps({**row["ask"], "body": without}, sort_keys=True)):
                n_compared += 1
                assert row["answer"]["body"] == answer["body"], row["ask"]
    assert n_compared > 50
