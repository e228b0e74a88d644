"""Every row of the vectors' B.1 that describes an exchange, sent over a socket: streamed, or refused word for word.

The tables are those of tests/apis/pool, so that the parser and the whole worker are held to the same rows.
"""

from collections.abc import Callable
from typing import Any

import httpx2
import pytest

from tests.apis.pool import test_execute as test_request
from tests.apis.pool import test_own_rules, test_rules
from tests.apis.pool.vectors import R0, body_of, without
from tests.server.web.wire import JSON, events_in
from tests.worker_process import Stream, WorkerProcess, check_order

pytestmark = [pytest.mark.process, pytest.mark.model]

EVENT_STREAM = "text/event-stream"
TEXT = "text/plain; charset=utf-8"

Test = Callable[..., None]


def rows_of(test: Test, *, leave_out: tuple[str, ...] = ()) -> list[Any]:
    """The parameters another test is given."""
    (mark,) = (mark for mark in getattr(test, "pytestmark", []) if mark.name == "parametrize")
    return [row for row in mark.args[1] if getattr(row, "id", None) not in leave_out]


def execute(client: httpx2.Client, body: bytes, content_type: str = JSON) -> httpx2.Response:
    return client.post("/execute", content=body, headers={"content-type": content_type})


# ── ok ───────────────────────────────────────────────────────────────────────────────────────────

TOO_LONG_FOR_THE_CONTEXT = ("TV-005", "TV-006")


@pytest.mark.parametrize(
    "change",
    rows_of(test_rules.test_within_the_rules, leave_out=(*TOO_LONG_FOR_THE_CONTEXT, "TV-011")),
)
def test_a_valid_request_is_streamed_to_its_end(client: httpx2.Client, change: dict[str, Any]) -> None:
    response = execute(client, body_of(R0 | {"max_tokens": 2} | change))
    assert (response.status_code, response.headers["content-type"]) == (200, EVENT_STREAM)
    events = events_in(response.text)
    check_order(events)
    assert events[0]["job_id"] == (R0 | change)["job_id"]
    assert events[-1]["type"] == "end"


@pytest.mark.parametrize(
    "sent",
    [
        *rows_of(test_request.test_request_survives_being_written_and_read),
        *(
            pytest.param(row.values[0], id=row.id)
            for row in rows_of(test_request.test_absent_fields_have_their_defaults_and_given_ones_are_kept)
        ),
        pytest.param(R0 | {"max_tokens": 2048}, id="TV-011"),
    ],
)
def test_a_valid_request_for_many_tokens_starts_to_stream(worker: WorkerProcess, sent: dict[str, Any]) -> None:
    with Stream(worker.url, sent) as stream:
        assert stream.response.headers["content-type"] == EVENT_STREAM
        events = stream.until("started")
        assert worker.post("/cancel", json={"job_id": sent["job_id"]}).status_code == 202
        check_order([*events, *stream])
    assert events[0]["job_id"] == sent["job_id"]


@pytest.mark.parametrize("prompt", ["x" * 32768, "世" * 32768], ids=TOO_LONG_FOR_THE_CONTEXT)
def test_the_longest_prompt_passes_the_rules_and_then_the_context_decides(client: httpx2.Client, prompt: str) -> None:
    (error,) = execute(client, body_of(R0 | {"prompt": prompt})).json()["errors"]
    assert error["constraint"] == "context_length(4096)"


# ── refused ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("change", "entries"), rows_of(test_rules.test_all_broken_rules_are_reported_at_once_in_field_order)
)
def test_broken_rules_come_back_byte_for_byte_and_nothing_is_streamed(
    client: httpx2.Client, change: dict[str, Any], entries: list[str]
) -> None:
    """TV-082 too: the answer is JSON and no stream."""
    response = execute(client, body_of(R0 | change))
    assert (response.status_code, response.headers["content-type"]) == (400, JSON)
    assert response.content == test_rules.errors(*entries)


@pytest.mark.parametrize(("sent", "expected"), rows_of(test_own_rules.test_a_broken_rule_is_reported_in_these_words))
@pytest.mark.usefixtures("default_model")
def test_broken_rules_of_our_own_fields_come_back_the_same_way(
    client: httpx2.Client, sent: dict[str, Any], expected: str
) -> None:
    """Token ids are held to the loaded model's vocabulary, which is as large as the table's."""
    response = execute(client, body_of(R0 | sent))
    assert (response.status_code, response.headers["content-type"]) == (400, JSON)
    assert response.content == test_rules.errors(expected)


def test_the_first_token_id_after_the_vocabulary_is_refused(worker: WorkerProcess, client: httpx2.Client) -> None:
    n_vocab = worker.get("/health").json()["vocab_size"]
    sent = {"max_tokens": 1, "logit_bias": {str(n_vocab - 1): 0}, "stop_token_ids": [n_vocab - 1]}
    assert execute(client, body_of(R0 | sent)).status_code == 200
    sent = {"logit_bias": {str(n_vocab): 0}, "stop_token_ids": [n_vocab]}
    fields = [error["field"] for error in execute(client, body_of(R0 | sent)).json()["errors"]]
    assert fields == ["logit_bias", "stop_token_ids"]


def test_a_large_body_is_held_to_the_same_rules(client: httpx2.Client) -> None:
    """It is read on a thread of its own."""
    schema = {"title": "x" * 66_000}
    response = execute(client, body_of(R0 | {"max_tokens": 0, "json_schema": schema}))
    assert [error["field"] for error in response.json()["errors"]] == ["max_tokens", "json_schema"]


@pytest.mark.parametrize(
    ("field", "literal"),
    [
        *rows_of(test_request.test_wrong_type_is_422_and_names_the_field),
    ],
)
def test_a_wrong_type_is_422(client: httpx2.Client, field: str, literal: str) -> None:
    response = execute(client, test_request.raw_body(field, literal))
    assert (response.status_code, response.headers["content-type"]) == (422, TEXT)
    assert response.text.startswith(test_request.SHAPED_AS + field)


@pytest.mark.parametrize("field", rows_of(test_request.test_missing_field_is_422))
def test_a_missing_field_is_422_and_named(client: httpx2.Client, field: str) -> None:
    response = execute(client, body_of(without(field)))
    assert (response.status_code, response.headers["content-type"]) == (422, TEXT)
    assert response.text == f"{test_request.SHAPED_AS}missing field `{field}`"


@pytest.mark.parametrize("body", rows_of(test_request.test_not_json_is_400))
def test_what_is_not_json_is_400(client: httpx2.Client, body: bytes) -> None:
    response = execute(client, body)
    assert (response.status_code, response.headers["content-type"]) == (400, TEXT)
    assert response.text.startswith(test_request.PARSED_AS)


@pytest.mark.parametrize("content_type", ["text/plain", "application/jsonp", "text/json", "multipart/form-data", ""])
def test_another_content_type_is_415(client: httpx2.Client, content_type: str) -> None:
    """TV-071."""
    response = execute(client, body_of(R0), content_type)
    assert (response.status_code, response.headers["content-type"]) == (415, TEXT)
    assert response.text.startswith("Expected request with `Content-Type: application/json`")


def test_no_content_type_is_415(client: httpx2.Client) -> None:
    """TV-071."""
    assert client.post("/execute", content=body_of(R0)).status_code == 415


@pytest.mark.parametrize(
    "content_type", ["application/json; charset=utf-8", "application/vnd.x+json", "APPLICATION/JSON"]
)
def test_json_under_another_content_type_is_accepted(client: httpx2.Client, content_type: str) -> None:
    """TV-072."""
    assert execute(client, body_of(R0 | {"max_tokens": 1}), content_type).status_code == 200
