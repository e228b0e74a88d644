"""`POST /execute` as clients see it: events, keys, ends, limits (docs/protocol.md#post-execute; vectors B.2, B.10)."""

import json
import re
import time
from datetime import UTC, datetime, timedelta

import httpx2
import pytest

from tests.server.web.wire import COUNT, events_in, request_of
from tests.worker_process import Event, Stream, WorkerProcess, check_order, serving, text_of

pytestmark = [pytest.mark.process, pytest.mark.model]

STARTED = ("type", "job_id", "model", "started_at", "seed", "prompt_tokens", "cached_tokens")
TOKEN = ("type", "t", "i")
METRICS = ("type", "tokens_per_sec", "vram_bytes", "job_id", "tokens_out", "decode_time_ms")
OUTPUT = ("type", "tokens_out", "decode_time_ms", "stop_reason")
COSTS = ("tokens_sampled", "prompt_tokens", "time_to_first_token_ms")
END = (*OUTPUT, *COSTS)
STOPPED = (*OUTPUT, "stop_sequence_matched", *COSTS)
CUT = (*END, "context_full")
ERROR = ("type", "code", "message", "retriable")

CONTEXT = 256
MAX_TOKENS_IN = 200


LIMITS = ("--ctx-size", str(CONTEXT), "--max-tokens-in", str(MAX_TOKENS_IN), "--max-tokens-out", "100")
narrow = serving("any_model", "--parallel", "1", *LIMITS, "--sse-event-names")
"""Every limit of a job made small, and `event:` lines on."""


def post(worker: WorkerProcess, request: Event, **headers: str) -> httpx2.Response:
    return worker.post("/execute", json=request, headers=headers)


def short(**fields: object) -> Event:
    return request_of("short-job", max_tokens=4, **fields)


# ── frames ───────────────────────────────────────────────────────────────────────────────────────


def test_a_stream_is_compact_json_in_data_frames_and_nothing_else(worker: WorkerProcess) -> None:
    """TV-115, TV-119, TV-123, TV-129: started, tokens 0, 1, 2, …, end; no `event:`, no `id:`, no `[DONE]`."""
    body = post(worker, short()).content.decode()
    assert body.endswith("\n\n")
    events = events_in(body)
    check_order(events)
    for frame, event in zip(body.split("\n\n")[:-1], events, strict=True):
        assert frame == "data: " + json.dumps(event, ensure_ascii=False, separators=(",", ":"))
    keys = {event["type"]: tuple(event) for event in events}
    assert keys | {"metrics": METRICS} == {"started": STARTED, "token": TOKEN, "metrics": METRICS, "end": END}


def test_a_stream_has_the_headers_of_one(worker: WorkerProcess) -> None:
    """TV-122, TV-131."""
    headers = post(worker, short()).headers
    assert headers["content-type"] == "text/event-stream"
    assert headers["cache-control"] == "no-cache"
    assert headers["x-accel-buffering"] == "no"
    assert "content-length" not in headers


@pytest.mark.parametrize("media_type", ["application/jsonl", "application/x-ndjson"])
def test_accept_turns_the_same_objects_into_lines(worker: WorkerProcess, media_type: str) -> None:
    response = post(worker, short(), accept=media_type)
    assert response.headers["content-type"].partition(";")[0] == media_type
    lines = response.content.decode().split("\n")
    assert lines.pop() == ""
    events = [json.loads(line) for line in lines]
    check_order(events)
    assert tuple(events[0]) == STARTED
    assert text_of(events) == text_of(events_in(post(worker, short()).text))


@pytest.mark.parametrize("accept", ["*/*", "text/html", "application/json", "text/event-stream, application/jsonl"])
def test_any_other_accept_gets_server_sent_events(worker: WorkerProcess, accept: str) -> None:
    response = post(worker, short(), accept=accept)
    assert (response.status_code, response.headers["content-type"]) == (200, "text/event-stream")


def test_event_names_are_written_for_old_readers_when_asked(narrow: WorkerProcess) -> None:
    """TV-112."""
    for frame in post(narrow, short()).text.split("\n\n")[:-1]:
        name, data = frame.split("\n")
        assert name == "event: " + json.loads(data.removeprefix("data: "))["type"]


def test_line_breaks_and_emoji_stay_inside_one_data_line(eloquent: WorkerProcess) -> None:
    """TV-108, TV-126, TV-132: a character split over tokens comes whole, in raw UTF-8, a line break as an escape."""
    emoji = post(eloquent, short(prompt="🌍🌍🌍🌍") | {"max_tokens": 9}).content.decode()
    lines = post(eloquent, short(prompt="1\n2\n3\n4\n")).content.decode()
    assert '"t":"🌍"' in emoji
    assert "\ufffd" not in emoji
    assert '"t":"\\n"' in lines
    assert all(line.startswith("data: ") for line in (emoji + lines).split("\n") if line)


# ── events ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.usefixtures("default_model")
def test_started_reports_the_model_of_health_and_an_rfc_3339_time(worker: WorkerProcess) -> None:
    before = datetime.now(UTC) - timedelta(seconds=1)
    started = worker.run(prompt=" world" * 13, max_tokens=1)[0]
    assert started["model"] == worker.health()["model"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)", started["started_at"])
    assert before <= datetime.fromisoformat(started["started_at"]) <= datetime.now(UTC)
    assert (started["prompt_tokens"], started["cached_tokens"]) == (13, 0)


@pytest.mark.parametrize("absent", [{}, {"seed": None}])
def test_without_a_seed_one_is_drawn_and_reported_and_repeats_the_answer(
    worker: WorkerProcess, absent: dict[str, None]
) -> None:
    creative = {"prompt": "Once upon a time", "max_tokens": 8, "temperature": 1.5}
    first, second = (worker.run(**creative, **absent) for _ in range(2))
    assert first[0]["seed"] != second[0]["seed"]
    assert worker.text(**creative, seed=first[0]["seed"]) == text_of(first)


def test_a_job_longer_than_a_second_reports_its_speed_every_second(eloquent: WorkerProcess) -> None:
    """TV-117. `tokens_out` is the number of token events before it."""
    with Stream(eloquent.url, request_of("metrics-job")) as stream:
        events = [*stream.until("metrics"), *stream.until("metrics")]
    first, second = (event for event in events if event["type"] == "metrics")
    assert tuple(first) == tuple(second) == METRICS
    assert second["decode_time_ms"] - first["decode_time_ms"] >= 999
    assert first["decode_time_ms"] >= 999
    assert second["tokens_out"] == sum(event["type"] == "token" for event in events)
    assert (first["job_id"], first["vram_bytes"]) == ("metrics-job", 0)
    assert first["tokens_per_sec"] > 0


def test_a_stop_at_the_first_token_leaves_started_and_end(worker: WorkerProcess) -> None:
    """TV-118. Nothing of the stop is shown; it is named as the request spelled it."""
    token = worker.run(prompt=COUNT, max_tokens=1)[1]["t"]
    started, end = worker.run(prompt=COUNT, stop=["no such text", token])
    assert (started["type"], tuple(end)) == ("started", STOPPED)
    assert (end["stop_reason"], end["stop_sequence_matched"]) == ("STOP_SEQUENCE", token)
    assert (end["tokens_out"], end["tokens_sampled"]) == (0, 1)


def test_the_models_own_end_is_eos(eloquent: WorkerProcess) -> None:
    """TV-113. The end-of-generation token is drawn, counted, and not shown."""
    chat = "<|im_start|>user\nWhat is 2+2?<|im_end|>\n<|im_start|>assistant\n"
    events = eloquent.run(prompt=chat, max_tokens=60)
    assert events[-1]["stop_reason"] == "EOS"
    assert events[-1]["tokens_sampled"] > events[-1]["tokens_out"]
    assert "<|im_end|>" not in text_of(events)


# ── limits ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.usefixtures("default_model")
def test_a_prompt_must_leave_space_for_one_token(worker: WorkerProcess) -> None:
    with Stream(worker.url, request_of("fits", prompt=" hello" * 4095)) as stream:
        assert stream.until("started")[0]["prompt_tokens"] == 4095
    message = "prompt has 4096 tokens and needs room for one more; the context is 4096"
    error = {"field": "prompt", "constraint": "context_length(4096)", "message": message}
    response = post(worker, request_of("does-not-fit", prompt=" hello" * 4096))
    assert (response.status_code, response.headers["content-type"]) == (400, "application/json")
    assert response.json() == {"errors": [error]}


@pytest.mark.usefixtures("default_model")
def test_a_job_after_a_prompt_beyond_the_context_runs(narrow: WorkerProcess) -> None:
    """TV-285."""
    message = "prompt has 300 tokens and needs room for one more; the context is 256"
    response = post(narrow, short(prompt=" hello" * 300))
    assert response.json()["errors"] == [
        {"field": "prompt", "constraint": f"context_length({CONTEXT})", "message": message}
    ]
    check_order(narrow.run(prompt="Hello", max_tokens=10))


@pytest.mark.usefixtures("default_model")
def test_the_operators_limit_on_prompts_is_named(narrow: WorkerProcess) -> None:
    response = post(narrow, short(prompt=" hello" * (MAX_TOKENS_IN + 1)))
    (error,) = response.json()["errors"]
    assert (response.status_code, error["field"]) == (400, "prompt")
    assert error["constraint"] == f"max_tokens_in({MAX_TOKENS_IN})"
    assert "201" in error["message"]
    assert "200" in error["message"]


@pytest.mark.usefixtures("default_model")
def test_tokens_beyond_the_context_are_cut_and_the_end_says_so(narrow: WorkerProcess) -> None:
    events = narrow.run(prompt=" hello" * MAX_TOKENS_IN, max_tokens=100)
    end = events[-1]
    assert tuple(end) == CUT
    assert (end["stop_reason"], end["context_full"]) == ("MAX_TOKENS", True)
    assert end["prompt_tokens"] + end["tokens_sampled"] == CONTEXT


# ── time ─────────────────────────────────────────────────────────────────────────────────────────


def past_and_future() -> tuple[list[str], list[str]]:
    now, hour = datetime.now(UTC), timedelta(hours=1)
    past = [str(int((now - hour).timestamp() * 1000)), (now - hour).isoformat(), "0", "2001-01-01", "2001-01-01T00:00Z"]
    future = [str(int((now + hour).timestamp() * 1000)), (now + hour).isoformat(), "999999999999999"]
    return past, future


def test_a_deadline_in_the_past_is_504_before_any_work(worker: WorkerProcess) -> None:
    """TV-284."""
    steps = worker.metrics()['worker_steps_total{kind="prefill"}']
    for deadline in past_and_future()[0]:
        response = post(worker, short(), **{"x-deadline": deadline})
        body = response.json()
        assert (response.status_code, list(body)) == (504, ["code", "message", "retriable"])
        assert (body["code"], body["retriable"]) == ("DEADLINE_EXCEEDED", False)
    assert worker.metrics()['worker_steps_total{kind="prefill"}'] == steps


@pytest.mark.parametrize("deadline", ["soon", "-1", "1e12", "12:00", "1234567890123456", ""])
def test_an_unreadable_deadline_is_400(worker: WorkerProcess, deadline: str) -> None:
    response = post(worker, short(), **{"x-deadline": deadline})
    assert (response.status_code, response.json()["code"]) == (400, "INVALID_REQUEST")
    assert response.json()["message"].startswith("Invalid request: X-Deadline ")
    assert response.json()["retriable"] is False


def test_a_future_deadline_has_no_effect_until_it_passes(worker: WorkerProcess) -> None:
    for deadline in past_and_future()[1]:
        check_order(events_in(post(worker, short(), **{"x-deadline": deadline}).text))


def test_a_deadline_that_passes_ends_the_stream_with_timeout(eloquent: WorkerProcess) -> None:
    deadline = str(int((time.time() + 3) * 1000))
    with Stream(eloquent.url, request_of("deadline-soon"), {"x-deadline": deadline}) as stream:
        events = list(stream)
    check_order(events)
    assert tuple(events[-1]) == ERROR
    assert (events[-1]["code"], events[-1]["retriable"]) == ("TIMEOUT", True)


def test_jobs_run_together(worker: WorkerProcess) -> None:
    """TV-283, as docs/protocol.md#older-clients has it: the second starts and ends while the first goes on."""
    with Stream(worker.url, request_of("together")) as first:
        first.until("token")
        check_order(worker.run(prompt=COUNT, max_tokens=3))
        first.until("token")
