"""Each HTTP exchange is logged and counted: refusals, accesses, and never data that a client made up.

The worker has an engine without a model; its API key has the form of a UUID, which a correlation id may have too.
"""

import json
import uuid
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
import pytest

from tests.server.web.openai_client import CHAT, COMPLETIONS
from tests.server.web.wire import JSON, events_in, exchange, head
from tests.worker_process import Event, Stream, WorkerProcess, check_order, serving_toy, toy_worker
from worker.observe.redaction import MASK

pytestmark = pytest.mark.process

TOKEN = "0f5a8a3e-77c1-4c0e-9d52-4be1a26d7f10"
GIVEN = {"authorization": f"Bearer {TOKEN}"}
JOB = {"job_id": "j", "prompt": "abc", "max_tokens": 3}
SECRET = "mellifluous"

worker = serving_toy("--access-log", environment={"LLORCH_API_TOKEN": TOKEN})


def lines_of(worker: WorkerProcess, answer: httpx2.Response) -> list[Event]:
    """All log lines of an exchange, to its `access`, which is the last."""
    correlation = answer.headers["x-correlation-id"]
    worker.wait_for("access", correlation_id=correlation)
    return [entry for entry in worker.log if entry.get("correlation_id") == correlation]


# ── refusals ─────────────────────────────────────────────────────────────────────────────────────


class Case(NamedTuple):
    """A request, and what is logged of its refusal."""

    method: str
    path: str
    route: str
    status: int
    code: str
    reason: str
    headers: dict[str, str] | None = None
    body: Any = None


def execute(status: int, code: str, reason: str, body: Any = JOB, **headers: str) -> Case:
    spelled = {name.replace("_", "-"): value for name, value in headers.items()}
    return Case("POST", "/execute", "/execute", status, code, reason, spelled, body)


BAD, NOT_ALLOWED = "INVALID_REQUEST", "METHOD_NOT_ALLOWED"
UNREAD = "Failed to deserialize the JSON"
BROKEN = {**JOB, "max_tokens": 0, "stop": [SECRET * 10] * 5}
REFUSED = [
    Case("GET", f"/{SECRET}?{SECRET}", "other", 404, "NOT_FOUND", "not found"),
    Case("PROPFIND", "/health", "/health", 405, NOT_ALLOWED, "method not allowed"),
    Case("GET", f"/cancel/{SECRET}", "/cancel/{job_id}", 405, NOT_ALLOWED, "method not allowed"),
    Case("GET", "/metrics", "/metrics", 401, "UNAUTHORIZED", "this route needs", {"authorization": f"Bearer {SECRET}"}),
    Case("POST", "/cancel", "/cancel", 422, BAD, UNREAD, body={SECRET: SECRET}),
    execute(415, "UNSUPPORTED_MEDIA_TYPE", "unsupported media type", content_type=SECRET),
    execute(413, "BODY_TOO_LARGE", "request entity too large", {**JOB, "prompt": SECRET * 200_000}),
    execute(400, BAD, "the body is not JSON", SECRET.encode()),
    execute(422, BAD, UNREAD, {**JOB, "max_tokens": SECRET}),
    execute(400, BAD, "max_tokens: range, stop: max_count, stop: max_length", BROKEN),
    execute(400, BAD, "X-Deadline is not a time", x_deadline=SECRET),
    execute(504, "DEADLINE_EXCEEDED", "X-Deadline passed", x_deadline="1"),
    execute(400, BAD, "prompt: context_length", {**JOB, "prompt": SECRET * 200}),
]


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: f"{case.status} {case.method} {case.path[:20]}")
def test_every_refusal_is_one_line_and_one_count_and_quotes_nothing(worker: WorkerProcess, case: Case) -> None:
    method = "other" if case.method == "PROPFIND" else case.method
    counted = (
        f'worker_refusals_total{{code="{case.code}"}}',
        f'worker_http_requests_total{{method="{method}",route="{case.route}",status="{case.status}"}}',
    )
    before = samples(worker)
    content = case.body if isinstance(case.body, bytes) else json.dumps(case.body).encode()
    with worker.client() as client:
        headers = {"content-type": JSON, **GIVEN, **(case.headers or {})}
        answer = client.request(case.method, case.path, content=content, headers=headers)
    assert answer.status_code == case.status
    (refused,) = [line for line in lines_of(worker, answer) if line["event"] == "refused"]
    told = [refused[name] for name in ("level", "method", "route", "status", "code")]
    assert told == ["info", method, case.route, case.status, case.code]
    assert refused["reason"].startswith(case.reason)
    assert SECRET not in json.dumps(refused)
    after = samples(worker)
    assert [after[name] - before.get(name, 0) for name in counted] == [1, 1]


def samples(worker: WorkerProcess) -> dict[str, float]:
    text = worker.get("/metrics", headers=GIVEN).text.replace(f',worker_id="{worker.log[0]["worker_id"]}"', "")
    pairs = (line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, value in pairs}


def test_an_answered_request_is_not_logged_as_refused(worker: WorkerProcess) -> None:
    answer = worker.post("/cancel", json={"job_id": "nobody"}, headers=GIVEN)
    assert [line["event"] for line in lines_of(worker, answer)] == ["access"]


# ── accesses ─────────────────────────────────────────────────────────────────────────────────────


def test_an_access_line_has_method_path_status_bytes_and_time_but_no_query(worker: WorkerProcess) -> None:
    answer = worker.get(f"/health?{SECRET}={SECRET}")
    (access,) = lines_of(worker, answer)
    assert (access["method"], access["path"], access["status"]) == ("GET", "/health", 200)
    assert access["bytes"] == len(answer.content)
    assert access["ms"] >= 0
    assert SECRET not in json.dumps(access)


def test_a_stream_is_logged_at_its_end_with_all_its_bytes(worker: WorkerProcess) -> None:
    answer = worker.post("/execute", json=JOB, headers=GIVEN)
    lines = lines_of(worker, answer)
    events = events_in(answer.text)
    (end,) = [line for line in lines if line["event"] == "execute_end"]
    assert end["time_to_first_token_ms"] == events[-1]["time_to_first_token_ms"]
    assert end["queue_time_ms"] >= 0
    assert end["cached_tokens"] == events[0]["cached_tokens"]
    assert [line["event"] for line in lines] == ["execute_start", "execute_end", "access"]
    assert (lines[-1]["path"], lines[-1]["status"], lines[-1]["bytes"]) == ("/execute", 200, len(answer.content))


def test_an_answer_without_a_body_has_no_bytes(worker: WorkerProcess) -> None:
    with worker.client() as client:
        (access,) = lines_of(worker, client.head("/health"))
    assert (access["method"], access["bytes"]) == ("HEAD", 0)


def test_a_long_path_is_cut(worker: WorkerProcess) -> None:
    answer = worker.post(f"/cancel/{'x' * 5000}", headers=GIVEN)
    (access,) = lines_of(worker, answer)
    assert access["path"] == "/cancel/" + "x" * 248


def test_without_the_flag_there_is_no_access_line(tmp_path: Path) -> None:
    with toy_worker(tmp_path) as worker:
        worker.ready()
        assert worker.get("/nope").status_code == 404
        worker.terminate()
        assert worker.exit_code() == 0
        assert [line["event"] for line in worker.log][-3:] == ["refused", "shutdown", "shutdown"]


# ── the API key, sent where it does not belong ───────────────────────────────────────────────────


@pytest.mark.parametrize("before", ["", "job-", "x" * 240])
def test_the_key_as_a_job_id_stays_out_of_the_log(worker: WorkerProcess, before: str) -> None:
    """This holds where it is cut, too: half of a key is half a secret."""
    with Stream(worker.url, {**JOB, "job_id": before + TOKEN}, GIVEN) as stream:
        check_order(list(stream))
        lines = lines_of(worker, stream.response)
    assert {line["job_id"] for line in lines if "job_id" in line} == {(before + MASK)[:256]}
    cancelled = worker.post(f"/cancel/{before}{TOKEN}", headers=GIVEN)
    (access,) = lines_of(worker, cancelled)
    assert access["path"].startswith(f"/cancel/{before}")
    assert TOKEN[:8] not in "".join(worker.stderr)


def test_the_key_as_a_correlation_id_stays_out_of_the_log(worker: WorkerProcess) -> None:
    sent = {**GIVEN, "x-correlation-id": TOKEN}
    assert worker.post("/execute", json=JOB, headers=sent).headers["x-correlation-id"] == TOKEN
    assert worker.wait_for("execute_start", correlation_id=MASK)
    assert worker.wait_for("access", path="/execute", correlation_id=MASK)
    assert TOKEN[:8] not in "".join(worker.stderr)


def test_bytes_that_are_not_http_reach_no_route_and_are_counted_and_logged(worker: WorkerProcess) -> None:
    before = samples(worker)
    refusal = exchange(worker, b"nonsense\r\n\r\n")
    assert refusal.status == 400
    correlation = refusal.headers["x-correlation-id"]
    refused = worker.wait_for("refused", correlation_id=correlation)
    assert (refused["status"], refused["code"], refused["route"]) == (400, "INVALID_REQUEST", "other")
    assert worker.wait_for("access", correlation_id=correlation)["bytes"] == len(refusal.body)
    assert exchange(worker, head("GET", "/livez")).status == 200
    after = samples(worker)
    name = 'worker_http_requests_total{{method="{}",route="{}",status="{}"}}'.format
    assert after[name("GET", "/livez", 200)] == before[name("GET", "/livez", 200)] + 1
    assert after[name("other", "other", 400)] == before.get(name("other", "other", 400), 0) + 1


# ── the client's ids: they come back on every answer, or others do ───────────────────────────────

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

KEPT = ("7", "req_01HZX", "a/b:c;d=e,f", "!" + "~" * 255)
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


@pytest.mark.parametrize("sent", KEPT)
def test_the_clients_ids_are_returned_and_logged(toy: WorkerProcess, sent: str) -> None:
    for row in ASKED:
        correlation = str(uuid.uuid4())
        assert answered(toy, row, sent, correlation) == (row[-1], sent, correlation)
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
            assert returned == ("j" if (path, status) == ("/execute", 200) else correlation)
        assert "request_id" not in toy.wait_for("access", correlation_id=correlation)
    assert len(seen) == len(ASKED)


@pytest.mark.parametrize("job_id", ["two words", "日本", "a\r\nx-evil: 1", "x" * 257, "\x00"])
def test_a_job_id_that_no_header_can_carry_is_not_sent(toy: WorkerProcess, job_id: str) -> None:
    row = ("POST", "/execute", {**JOB, "job_id": job_id}, 200)
    assert answered(toy, row, None, KNOWN) == (200, KNOWN, KNOWN)
