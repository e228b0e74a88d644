"""The limits of a request where no flag names one, and where flags do: at `/v1` the context decides, `/execute` keeps
the protocol's numbers. And a full worker: who is refused, how and in which order; accepted jobs notice nothing."""

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest

from tests.clients.v1 import user
from tests.server.web.openai_client import CHAT, COMPLETIONS, Json, ask, refusal, streamed
from tests.server.web.wire import JSON, request_of, standing_still
from tests.worker_process import (
    ONE_SLOT,
    Event,
    Stream,
    WorkerProcess,
    altered,
    check_order,
    eventually,
    serve_default,
    serving,
    text_of,
)

pytestmark = [pytest.mark.process, pytest.mark.model]

NARROW_CONTEXT = 512
LONG = " information" * 3500
"""42,000 characters, and fewer than 4,000 tokens."""
MAX_TOKENS_OUT = 5

KNOWN_WORDS = re.compile(
    r"This model's maximum context length is (\d+) tokens\. However, your (messages|prompt) resulted in (\d+) tokens"
)
"""The words that agents search for; OpenAI's own server says `messages`."""

LENGTH = ("max_tokens", "max_completion_tokens")


free = serving("default_model", "--parallel", "2")
"""No limit is given; the context is the model's."""
narrow = serving("default_model", "--parallel", "2", "--ctx-size", str(NARROW_CONTEXT))
"""A small context, and no other limit."""
bounded = serving(
    "default_model", "--ctx-size", "512", "--max-tokens-in", "300", "--max-tokens-out", str(MAX_TOKENS_OUT)
)


def chat(text: str, **fields: object) -> Json:
    return {"messages": user(text), "temperature": 0, **fields}


def n_tokens(worker: WorkerProcess, path: str, fields: Json) -> int:
    rendered = worker.post(f"{path}/render", json=fields).json()
    return len((rendered if path == CHAT else rendered[0])["token_ids"])


# ── characters ───────────────────────────────────────────────────────────────────────────────────


def test_characters_are_no_limit_where_tokens_fit(free: WorkerProcess) -> None:
    assert free.post("/execute", json=request_of("long", prompt=LONG)).status_code == 400
    for path, fields in ((CHAT, chat(LONG)), (COMPLETIONS, {"prompt": LONG})):
        answer = ask(free, path, {**fields, "max_tokens": 1})
        assert answer["usage"]["prompt_tokens"] == n_tokens(free, path, fields) > 3000
    for field in ("content", "prompt"):
        assert ask(free, "/tokenize", {field: LONG * 3})["count"] > 9000, "a question has no room to keep to"


# ── the answer's length ──────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_more_tokens_than_the_context_leaves_are_cut_and_reported(path: str, narrow: WorkerProcess) -> None:
    """A prompt that leaves little room, so that an answer reaches the end."""
    text = " hello" * (NARROW_CONTEXT - 60)
    fields = chat(text, ignore_eos=True) if path == CHAT else {"prompt": text, "ignore_eos": True}
    room = NARROW_CONTEXT - n_tokens(narrow, path, fields)
    assert 0 < room <= 60
    for asked, n_drawn, cut in (
        (32_000, room, str(room)),
        (room + 1, room, str(room)),
        (room, room, None),
        (None, room if path == CHAT else 16, None),
    ):
        response = narrow.post(path, json={**fields, "max_tokens": asked})
        assert response.headers.get("x-max-tokens-cut") == cut
        assert response.json()["choices"][0]["finish_reason"] == "length"
        assert response.json()["usage"]["completion_tokens"] == n_drawn


@pytest.mark.parametrize("name", LENGTH)
def test_more_tokens_than_the_flag_allows_are_cut_at_v1_and_refused_at_execute(
    name: str, bounded: WorkerProcess
) -> None:
    asked = chat("Count to one hundred.", ignore_eos=True)
    for more in (MAX_TOKENS_OUT + 1, 32_000, 2**31):
        response = bounded.post(CHAT, json={**asked, name: more})
        assert response.headers["x-max-tokens-cut"] == str(MAX_TOKENS_OUT)
        assert response.json()["usage"]["completion_tokens"] == MAX_TOKENS_OUT
        assert response.json()["choices"][0]["finish_reason"] == "length"
        with streamed(bounded, CHAT, {**asked, name: more}) as (stream, found):
            assert stream.headers["x-max-tokens-cut"] == str(MAX_TOKENS_OUT)
            assert [each for each in found if each != "[DONE]"][-1]["choices"][0]["finish_reason"] == "length"
    refused = bounded.post("/execute", json=request_of("more", max_tokens=MAX_TOKENS_OUT + 1)).json()
    (error,) = refused["errors"]
    assert (error["constraint"], error["value"]) == (f"range(1..={MAX_TOKENS_OUT})", str(MAX_TOKENS_OUT + 1))
    allowed = bounded.post(CHAT, json={**asked, name: MAX_TOKENS_OUT})
    assert "x-max-tokens-cut" not in allowed.headers


def test_the_smallest_space_of_several_prompts_is_reported(narrow: WorkerProcess) -> None:
    short, longer = "Hello", "Hello, how are you today?"
    room = NARROW_CONTEXT - n_tokens(narrow, COMPLETIONS, {"prompt": longer})
    response = narrow.post(COMPLETIONS, json={"prompt": [short, longer], "max_tokens": 10**6, "stop": [" ", "."]})
    assert response.headers["x-max-tokens-cut"] == str(room)


# ── a prompt that does not fit ───────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_an_overflow_has_the_words_that_agents_search_for(
    path: str, narrow: WorkerProcess, bounded: WorkerProcess
) -> None:
    field = "messages" if path == CHAT else "prompt"
    for worker, n_words, most in ((narrow, 512, 512), (bounded, 600, 512), (bounded, 400, 300)):
        text = " hello" * n_words
        fields = chat(text) if path == CHAT else {"prompt": text}
        response = worker.post(path, json=fields)
        error = refusal(response)
        assert (response.status_code, error["code"], error["param"]) == (400, "context_length_exceeded", field)
        found = KNOWN_WORDS.match(error["message"])
        assert found is not None, error["message"]
        assert (int(found[1]), found[2], int(found[3])) == (most, field, n_tokens(worker, path, fields))
        assert "hello" not in response.text


# ── time ─────────────────────────────────────────────────────────────────────────────────────────


def test_a_stream_at_v1_outlives_the_time_limit_of_execute(default_model: Path) -> None:
    command = altered(constants={"config.settings.DEFAULT_TIMEOUT_SEC": 1.0})
    with serve_default(default_model, "--parallel", "2", command=command) as worker:
        asked = {"prompt": "Once", "ignore_eos": True, "max_tokens": 5000}
        with streamed(worker.ready(), COMPLETIONS, asked) as (_, found):
            next(found)
            last = worker.run(**request_of("slow", max_tokens=2000, ignore_eos=True))[-1]
            assert last["code"] == "TIMEOUT"
            assert "choices" in next(found)


def test_a_configured_time_limit_applies_to_both_apis(default_model: Path) -> None:
    with serve_default(default_model, "--parallel", "2", "--inference-timeout-sec", "1") as worker:
        with streamed(worker.ready(), COMPLETIONS, {"prompt": "Once", "ignore_eos": True, "max_tokens": 5000}) as (
            _,
            found,
        ):
            assert list(found)[-1]["error"]["code"] == "timeout"
        events = worker.run(**request_of("slow", max_tokens=2000, ignore_eos=True))
        check_order(events)
        assert (events[-1]["code"], events[-1]["retriable"]) == ("TIMEOUT", True)
        check_order(worker.run(prompt="Once", max_tokens=1))


# ── a full worker ────────────────────────────────────────────────────────────────────────────────

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
