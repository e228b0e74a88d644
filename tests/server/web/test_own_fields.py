"""Our own request fields over the wire: what they add to a stream, and what they leave alone."""

import json
import re

import msgspec
import pytest

from tests.server.web.wire import request_of
from tests.worker_process import Event, WorkerProcess
from worker.wire.jobs import SamplingParams

pytestmark = [pytest.mark.process, pytest.mark.model]

TOKEN = ["type", "t", "i"]
ENTRY = ["token", "id", "logprob", "top"]
TOP = ["token", "id", "logprob"]


def events(worker: WorkerProcess, **fields: object) -> list[Event]:
    request = request_of("own", **fields)
    answer = worker.post("/execute", json=request, headers={"accept": "application/jsonl"})
    assert answer.status_code == 200, answer.text
    return [json.loads(line) for line in answer.text.splitlines()]


def tokens_of(told: list[Event]) -> list[Event]:
    return [event for event in told if event["type"] == "token"]


def ids_of(told: list[Event]) -> list[int]:
    return [entry["id"] for event in tokens_of(told) for entry in event["logprobs"]]


def test_a_greedy_answer_is_the_same_tokens_twice(worker: WorkerProcess) -> None:
    """TV-228."""
    answers = [ids_of(events(worker, max_tokens=50, temperature=0, seed=42, logprobs=0)) for _ in range(2)]
    assert answers[0] == answers[1]
    assert len(answers[0]) > 10


def test_logprobs_come_last_in_token_events_one_entry_for_each_sampled_token(worker: WorkerProcess) -> None:
    told = events(worker, max_tokens=12, temperature=0, logprobs=3)
    tokens = tokens_of(told)
    assert all(list(event) == [*TOKEN, "logprobs"] for event in tokens)
    entries = [entry for event in tokens for entry in event["logprobs"]]
    assert len(entries) == told[-1]["tokens_sampled"]
    for entry in entries:
        assert list(entry) == ENTRY
        assert [list(top) for top in entry["top"]] == [TOP] * 3
        assert entry["top"][0]["id"] == entry["id"], "greedy takes the most probable"
        logprobs = [top["logprob"] for top in entry["top"]]
        assert logprobs == sorted(logprobs, reverse=True)
        assert logprobs[0] <= 0


def test_without_logprobs_no_event_has_them(worker: WorkerProcess) -> None:
    assert all(list(event) == TOKEN for event in tokens_of(events(worker, max_tokens=4, temperature=0)))


def test_fields_at_their_defaults_have_no_effect(worker: WorkerProcess) -> None:
    plain: Event = {"max_tokens": 24, "temperature": 0.8, "seed": 5}
    off = msgspec.structs.asdict(SamplingParams())
    texts = ["".join(event["t"] for event in tokens_of(events(worker, **fields))) for fields in (plain, off | plain)]
    assert texts[0] == texts[1]


def test_a_stop_token_ends_the_answer_as_a_stop_and_is_not_shown(worker: WorkerProcess) -> None:
    greedy = {"max_tokens": 8, "temperature": 0, "logprobs": 0}
    whole = events(worker, **greedy)
    third = ids_of(whole)[2]
    n_before = ids_of(whole).index(third)
    told = events(worker, **greedy, stop_token_ids=[third])
    assert told[-1]["stop_reason"] == "STOP_SEQUENCE"
    assert "stop_sequence_matched" not in told[-1]
    assert told[-1]["tokens_sampled"] == n_before + 1
    assert ids_of(told) == ids_of(whole)[: len(ids_of(told))]
    assert third not in ids_of(told)


def test_a_schema_gives_json_in_the_order_of_its_text(worker: WorkerProcess) -> None:
    properties = {"z": {"enum": [1, 2]}, "a": {"type": "boolean"}}
    schema = {"type": "object", "properties": properties, "required": ["z", "a"], "additionalProperties": False}
    told = events(worker, max_tokens=60, temperature=0, json_schema=schema)
    value = json.loads("".join(event["t"] for event in tokens_of(told)))
    assert list(value) == ["z", "a"]
    assert told[-1]["stop_reason"] == "EOS"


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"grammar": "root ::= missing"}, "grammar"),
        ({"json_schema": {"not": {"type": "string"}}}, "json_schema"),
        ({"json_schema": False}, "json_schema"),
        ({"regex": "("}, "regex"),
    ],
)
def test_a_constraint_that_cannot_be_enforced_is_400(worker: WorkerProcess, fields: Event, field: str) -> None:
    """The engine finds it out."""
    answer = worker.post("/execute", json=request_of("own", **fields))
    assert answer.status_code == 400
    assert [error["field"] for error in answer.json()["errors"]] == [field]


def test_a_regular_expression_is_what_the_whole_answer_matches(worker: WorkerProcess) -> None:
    told = events(worker, max_tokens=60, temperature=0, regex="[A-F]{3}-[0-9]{4}")
    assert re.fullmatch("[A-F]{3}-[0-9]{4}", "".join(event["t"] for event in tokens_of(told)))
    assert told[-1]["stop_reason"] == "EOS"
