"""X-Request-Id and X-Correlation-ID: the client's names for a request come back on every answer, or others do."""

import uuid

import pytest

from tests.server.web.openai_client import CHAT, COMPLETIONS
from tests.worker_process import WorkerProcess

pytestmark = pytest.mark.process

JOB = {"job_id": "job-1", "prompt": "abc", "max_tokens": 2}
TEXT = {"prompt": "abc", "max_tokens": 2}
TALK = {"messages": [{"role": "user", "content": "abc"}], "max_tokens": 2}
KNOWN = "550e8400-e29b-41d4-a716-446655440000"

Row = tuple[str, str, object, int]

ASKED: list[Row] = [
    ("POST", "/execute", JOB, 200),
    ("POST", "/execute", {**JOB, "max_tokens": 0}, 400),
    ("POST", "/execute", {}, 422),
    ("POST", "/cancel/unknown", None, 202),
    ("POST", COMPLETIONS, TEXT, 200),
    ("POST", COMPLETIONS, {**TEXT, "stream": True}, 200),
    ("POST", COMPLETIONS, {**TEXT, "prompt": 7}, 400),
    ("POST", CHAT, TALK, 200),
    ("POST", CHAT, {**TALK, "stream": True, "n": 2}, 200),
    ("POST", CHAT, {"messages": [{"role": "user", "content": "refuse me"}]}, 400),
    ("POST", "/tokenize", {"prompt": "abc"}, 200),
    ("GET", "/v1/models", None, 200),
    ("GET", "/v1/nope", None, 404),
    ("GET", CHAT, None, 405),
    ("GET", "/health", None, 200),
]
"""Requests with the statuses of their answers."""

GIVEN = ("7", "req_01HZX", "a/b:c;d=e,f", "!" + "~" * 255)
OTHERS = ("", "two words", "é", "x" * 257, "tab\there")


def answered(worker: WorkerProcess, row: Row, sent: str | None, correlation: str) -> tuple[int, str, str]:
    """The status, the id and the correlation id."""
    method, path, body, _ = row
    headers = [] if sent is None else [(b"x-request-id", sent.encode("latin-1"))]
    with worker.client() as client:
        answer = client.request(
            method, path, json=body, headers=[*headers, (b"x-correlation-id", correlation.encode())]
        )
    return answer.status_code, answer.headers["x-request-id"], answer.headers["x-correlation-id"]


@pytest.mark.parametrize("sent", GIVEN)
def test_the_clients_ids_are_returned_and_logged(toy: WorkerProcess, sent: str) -> None:
    for row in ASKED:
        correlation = str(uuid.uuid4())
        assert answered(toy, row, sent, f" {correlation}") == (row[-1], sent, correlation)
        assert toy.wait_for("access", correlation_id=correlation)["request_id"] == sent


@pytest.mark.parametrize("sent", [None, *OTHERS])
def test_any_other_id_is_replaced_by_the_jobs_or_the_correlation_id(toy: WorkerProcess, sent: str | None) -> None:
    """A correlation id that is no UUID is replaced by a new one."""
    seen = set()
    for row in ASKED:
        _, path, _, status = row
        found, returned, correlation = answered(toy, row, sent, f"{KNOWN}, {KNOWN}")
        assert (found, uuid.UUID(correlation).version) == (status, 4)
        seen.add(correlation)
        if status == 200 and path in {COMPLETIONS, CHAT}:
            assert returned.startswith(("cmpl-", "chatcmpl-"))
        else:
            assert returned == ("job-1" if (path, status) == ("/execute", 200) else correlation)
        assert "request_id" not in toy.wait_for("access", correlation_id=correlation)
    assert len(seen) == len(ASKED)


@pytest.mark.parametrize("job_id", ["two words", "日本", "a\r\nx-evil: 1", "x" * 257, "\x00"])
def test_a_job_id_that_no_header_can_carry_is_not_sent(toy: WorkerProcess, job_id: str) -> None:
    row = ("POST", "/execute", {**JOB, "job_id": job_id}, 200)
    assert answered(toy, row, None, KNOWN) == (200, KNOWN, KNOWN)
