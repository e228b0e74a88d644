"""A full worker: who is refused, how and in which order; accepted jobs notice nothing (docs/protocol.md#http)."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import httpx2
import pytest

from tests.server.web.wire import JSON, request_of, standing_still
from tests.worker_process import (
    ONE_SLOT,
    Event,
    Stream,
    WorkerProcess,
    check_order,
    eventually,
    serving,
    text_of,
)

pytestmark = [pytest.mark.process, pytest.mark.model]

PAST = {"x-deadline": "1"}
UNREADABLE = {"x-deadline": "soon"}


small = serving("model_path", *ONE_SLOT, "--max-queue", "1", "--ctx-size", "2048")
"""Room for one job that runs and one that waits, which it does however short it is."""


@contextmanager
def full(worker: WorkerProcess) -> Iterator[tuple[Stream, Stream]]:
    """The streams of "first", which runs, and "second", which waits; afterwards the worker is idle."""
    with Stream(worker.url, request_of("first")) as first:
        first.until("token")
        with Stream(worker.url, request_of("second", max_tokens=6)) as second:
            yield first, second
    eventually(worker.is_idle)


def execute(worker: WorkerProcess, request: Event, headers: dict[str, str] | None = None) -> httpx2.Response:
    return worker.post("/execute", json=request, headers=headers)


def check_refused(response: httpx2.Response, status: int, code: str, *, retriable: bool) -> None:
    body = response.json()
    assert (response.status_code, response.headers["content-type"]) == (status, JSON)
    assert list(body) == ["code", "message", "retriable"]
    assert (body["code"], body["retriable"]) == (code, retriable)
    assert body["message"]


def test_a_job_beyond_the_queue_is_refused_with_retry_after(small: WorkerProcess) -> None:
    with full(small):
        response = execute(small, request_of("third"))
        check_refused(response, 503, "WORKER_BUSY", retriable=True)
        assert 1 <= int(response.headers["retry-after"]) <= 600
        health = small.health()
        assert (health["status"], health["slots_total"]) == ("healthy", 1)
        assert (health["slots_busy"], health["queue_depth"]) == (1, 1)
        assert small.get("/readyz").status_code == 200
        assert small.get("/v1/ready").json()["state"] == "busy"


def test_refused_jobs_do_not_affect_accepted_jobs(small: WorkerProcess) -> None:
    alone = small.text(**request_of("alone", max_tokens=6))
    with full(small) as (first, second):
        for number in range(20):
            assert execute(small, request_of(f"refused-{number}")).status_code == 503
        small.post("/cancel/first")
        assert list(first)[-1]["code"] == "CANCELLED"
        events = list(second)
    check_order(events)
    assert text_of(events) == alone


def test_an_id_in_flight_is_refused_whether_it_runs_or_waits(small: WorkerProcess) -> None:
    """It is free again with its terminal event."""
    with full(small) as (_, second):
        for job_id in ("first", "second"):
            check_refused(execute(small, request_of(job_id)), 409, "DUPLICATE_JOB", retriable=False)
        small.post("/cancel/second")
        assert list(second)[-1]["code"] == "CANCELLED"
        with Stream(small.url, request_of("second")) as again:
            assert again.response.status_code == 200


def test_refusals_never_wait_for_the_engine(small: WorkerProcess) -> None:
    """The engine stands still in the middle of a step."""
    with full(small), standing_still(small):
        check_refused(execute(small, request_of("third")), 503, "WORKER_BUSY", retriable=True)
        check_refused(execute(small, request_of("second")), 409, "DUPLICATE_JOB", retriable=False)
        check_refused(execute(small, request_of("third"), PAST), 504, "DEADLINE_EXCEEDED", retriable=False)
        assert small.post("/cancel/second").status_code == 202


def test_a_job_that_times_out_in_the_queue_sends_started_and_timeout(small: WorkerProcess) -> None:
    with Stream(small.url, request_of("first")) as first:
        first.until("token")
        deadline = {"x-deadline": str(int((time.time() + 3) * 1000))}
        with Stream(small.url, request_of("second"), deadline) as second:
            started, error = list(second)
        assert (started["type"], started["cached_tokens"]) == ("started", 0)
        assert (error["code"], error["retriable"]) == ("TIMEOUT", True)
        first.until("token")


def test_a_request_with_several_faults_gets_the_first_of_the_list(small: WorkerProcess) -> None:
    """415, 413, 400, 422, fields, deadline, 409, BUSY: each request has every later fault as well."""
    huge = b" " * (2 * 1024 * 1024 + 1)
    too_long = request_of("third", prompt=" hello" * 3000)

    def status_of(path: str, content: bytes, content_type: str) -> int:
        return small.post(path, content=content, headers={"content-type": content_type, **UNREADABLE}).status_code

    with full(small):
        assert status_of("/nope", huge, "text/plain") == 404
        assert status_of("/health", huge, "text/plain") == 405
        assert status_of("/execute", huge, "text/plain") == 415
        assert status_of("/execute", huge, JSON) == 413
        assert status_of("/execute", b'{"job_id":', JSON) == 400
        assert status_of("/execute", b'{"job_id":""}', JSON) == 422
        fields = execute(small, request_of("first", max_tokens=0), UNREADABLE)
        assert (fields.status_code, list(fields.json())) == (400, ["errors"])
        check_refused(execute(small, request_of("first"), UNREADABLE), 400, "INVALID_REQUEST", retriable=False)
        check_refused(execute(small, request_of("first"), PAST), 504, "DEADLINE_EXCEEDED", retriable=False)
        check_refused(execute(small, request_of("first")), 409, "DUPLICATE_JOB", retriable=False)
        check_refused(execute(small, too_long), 503, "WORKER_BUSY", retriable=True)
    (error,) = execute(small, too_long).json()["errors"]
    assert error["constraint"] == "context_length(2048)"
