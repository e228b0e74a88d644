"""`POST /execute` as clients see it: events, keys, ends, limits (docs/protocol.md#post-execute; vectors B.2, B.10).

Refusals that need no model are in tests/apis/pool and, on the wire, in tests/record.
"""

import json
import re
import time
from datetime import UTC, datetime, timedelta

import httpx2
import msgspec
import pytest

from tests.apis.pool.vectors import R0
from tests.server.web.wire import COUNT, events_in, request_of
from tests.worker_process import Event, Stream, WorkerProcess, check_order, serving, text_of
from worker.wire.jobs import SamplingParams

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


def refusal(answer: httpx2.Response) -> list[str]:
    """The fields that are wrong."""
    assert answer.status_code == 400, answer.text
    return [error["field"] for error in answer.json()["errors"]]


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


# ── rules and limits ─────────────────────────────────────────────────────────────────────────────


def test_the_first_token_id_after_the_vocabulary_is_refused(worker: WorkerProcess) -> None:
    n_vocab = worker.health()["vocab_size"]
    sent = {"max_tokens": 1, "logit_bias": {str(n_vocab - 1): 0}, "stop_token_ids": [n_vocab - 1]}
    assert post(worker, R0 | sent).status_code == 200
    sent = {"logit_bias": {str(n_vocab): 0}, "stop_token_ids": [n_vocab]}
    assert refusal(post(worker, R0 | sent)) == ["logit_bias", "stop_token_ids"]


def test_a_large_body_is_held_to_the_same_rules(worker: WorkerProcess) -> None:
    """It is read on a thread of its own."""
    answer = post(worker, R0 | {"max_tokens": 0, "json_schema": {"title": "x" * 66_000}})
    assert refusal(answer) == ["max_tokens", "json_schema"]


@pytest.mark.usefixtures("default_model")
def test_a_prompt_leaves_space_for_one_token_and_keeps_to_the_operators_limit(
    worker: WorkerProcess, narrow: WorkerProcess
) -> None:
    """TV-285. A job after a refusal runs."""
    with Stream(worker.url, request_of("fits", prompt=" hello" * 4095)) as stream:
        assert stream.until("started")[0]["prompt_tokens"] == 4095
    for asked, n_tokens, constraint, told in (
        (worker, 4096, "context_length(4096)", "needs room for one more; the context is 4096"),
        (narrow, 300, f"context_length({CONTEXT})", f"needs room for one more; the context is {CONTEXT}"),
        (narrow, MAX_TOKENS_IN + 1, f"max_tokens_in({MAX_TOKENS_IN})", str(MAX_TOKENS_IN)),
    ):
        response = post(asked, short(prompt=" hello" * n_tokens))
        assert (response.status_code, response.headers["content-type"]) == (400, "application/json")
        (error,) = response.json()["errors"]
        assert (error["field"], error["constraint"]) == ("prompt", constraint)
        assert str(n_tokens) in error["message"]
        assert told in error["message"]
    check_order(narrow.run(prompt="Hello", max_tokens=10))


@pytest.mark.usefixtures("default_model")
def test_tokens_beyond_the_context_are_cut_and_the_end_says_so(narrow: WorkerProcess) -> None:
    events = narrow.run(prompt=" hello" * MAX_TOKENS_IN, max_tokens=100)
    end = events[-1]
    assert tuple(end) == CUT
    assert (end["stop_reason"], end["context_full"]) == ("MAX_TOKENS", True)
    assert end["prompt_tokens"] + end["tokens_sampled"] == CONTEXT


# ── time ─────────────────────────────────────────────────────────────────────────────────────────


NOW, HOUR = datetime.now(UTC), timedelta(hours=1)
PAST = [str(int((NOW - HOUR).timestamp() * 1000)), (NOW - HOUR).isoformat(), "0", "2001-01-01", "2001-01-01T00:00Z"]
FUTURE = [str(int((NOW + HOUR).timestamp() * 1000)), (NOW + HOUR).isoformat(), "999999999999999"]


def test_a_deadline_in_the_past_is_504_before_any_work(worker: WorkerProcess) -> None:
    """TV-284."""
    steps = worker.metrics()['worker_steps_total{kind="prefill"}']
    for deadline in PAST:
        response = post(worker, short(), **{"x-deadline": deadline})
        body = response.json()
        assert (response.status_code, list(body)) == (504, ["code", "message", "retriable"])
        assert (body["code"], body["retriable"]) == ("DEADLINE_EXCEEDED", False)
    assert worker.metrics()['worker_steps_total{kind="prefill"}'] == steps


def test_a_future_deadline_has_no_effect_until_it_passes(worker: WorkerProcess) -> None:
    for deadline in FUTURE:
        check_order(events_in(post(worker, short(), **{"x-deadline": deadline}).text))


def test_a_deadline_that_passes_ends_the_stream_with_timeout(eloquent: WorkerProcess) -> None:
    deadline = str(int((time.time() + 3) * 1000))
    with Stream(eloquent.url, request_of("deadline-soon"), {"x-deadline": deadline}) as stream:
        events = list(stream)
    check_order(events)
    assert tuple(events[-1]) == ERROR
    assert (events[-1]["code"], events[-1]["retriable"]) == ("TIMEOUT", True)


# ── our own fields ───────────────────────────────────────────────────────────────────────────────

ENTRY = ["token", "id", "logprob", "top"]


def told(worker: WorkerProcess, **fields: object) -> list[Event]:
    return events_in(post(worker, request_of("own", **fields)).text)


def ids_of(events: list[Event]) -> list[int]:
    return [entry["id"] for event in events if event["type"] == "token" for entry in event["logprobs"]]


def test_logprobs_come_last_in_token_events_one_entry_for_each_sampled_token(worker: WorkerProcess) -> None:
    """TV-228: greedy answers are the same tokens."""
    events = told(worker, max_tokens=50, logprobs=3)
    tokens = [event for event in events if event["type"] == "token"]
    assert all(tuple(event) == (*TOKEN, "logprobs") for event in tokens)
    entries = [entry for event in tokens for entry in event["logprobs"]]
    assert len(entries) == events[-1]["tokens_sampled"] > 10
    for entry in entries:
        assert list(entry) == ENTRY
        assert [list(top) for top in entry["top"]] == [ENTRY[:3]] * 3
        assert entry["top"][0]["id"] == entry["id"], "greedy takes the most probable"
        logprobs = [top["logprob"] for top in entry["top"]]
        assert logprobs == sorted(logprobs, reverse=True)
        assert logprobs[0] <= 0
    assert ids_of(told(worker, max_tokens=50, logprobs=0, seed=42)) == ids_of(events)


def test_fields_at_their_defaults_have_no_effect(worker: WorkerProcess) -> None:
    plain: Event = {"max_tokens": 24, "temperature": 0.8, "seed": 5}
    off = msgspec.structs.asdict(SamplingParams())
    assert text_of(told(worker, **plain)) == text_of(told(worker, **off | plain))


def test_a_stop_token_ends_the_answer_as_a_stop_and_is_not_shown(worker: WorkerProcess) -> None:
    whole = ids_of(told(worker, max_tokens=8, logprobs=0))
    events = told(worker, max_tokens=8, logprobs=0, stop_token_ids=[whole[2]])
    assert events[-1]["stop_reason"] == "STOP_SEQUENCE"
    assert "stop_sequence_matched" not in events[-1]
    assert events[-1]["tokens_sampled"] == whole.index(whole[2]) + 1
    assert whole[2] not in ids_of(events)
    assert ids_of(events) == whole[: len(ids_of(events))]


def test_a_schema_gives_json_in_the_order_of_its_text(worker: WorkerProcess) -> None:
    properties = {"z": {"enum": [1, 2]}, "a": {"type": "boolean"}}
    schema = {"type": "object", "properties": properties, "required": ["z", "a"], "additionalProperties": False}
    events = told(worker, max_tokens=60, json_schema=schema)
    assert list(json.loads(text_of(events))) == ["z", "a"]
    assert events[-1]["stop_reason"] == "EOS"


def test_a_regular_expression_is_what_the_whole_answer_matches(worker: WorkerProcess) -> None:
    events = told(worker, max_tokens=60, regex="[A-F]{3}-[0-9]{4}")
    assert re.fullmatch("[A-F]{3}-[0-9]{4}", text_of(events))
    assert events[-1]["stop_reason"] == "EOS"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("grammar", "root ::= missing"), ("json_schema", {"not": {"type": "string"}}), ("json_schema", False)),
        ("regex", "("),
    ],
)
def test_a_constraint_that_cannot_be_enforced_is_400(worker: WorkerProcess, field: str, value: object) -> None:
    """The engine finds it out."""
    assert refusal(post(worker, request_of("own", **{field: value}))) == [field]


# ── a conversation ───────────────────────────────────────────────────────────────────────────────

SYSTEM = {"role": "system", "content": "Be brief."}
SUM = {"role": "user", "content": "What is 2+2?"}


def asked(*messages: Event) -> Event:
    return {"job_id": "chat", "messages": messages, "max_tokens": 8, "temperature": 0}


def answered(worker: WorkerProcess, *messages: Event) -> tuple[Event, str]:
    """`started`, and the text."""
    events = events_in(post(worker, asked(*messages)).text)
    return events[0], text_of(events)


@pytest.mark.usefixtures("default_model")
def test_a_conversation_is_answered_like_the_prompt_of_its_template_and_the_next_turn_finds_it_cached(
    worker: WorkerProcess,
) -> None:
    said = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nWhat is 2+2?<|im_end|>\n<|im_start|>assistant\n"
    raw = worker.run(prompt=said, max_tokens=8)
    started, text = answered(worker, SYSTEM, SUM)
    assert (started["prompt_tokens"], text) == (raw[0]["prompt_tokens"], text_of(raw))
    turns = (SYSTEM, SUM, {"role": "assistant", "content": text}, {"role": "user", "content": "And 3+3?"})
    assert answered(worker, *turns)[0]["cached_tokens"] >= started["prompt_tokens"] - 1


@pytest.mark.usefixtures("default_model")
def test_control_tokens_in_a_message_are_letters(worker: WorkerProcess) -> None:
    """The name is letters here; in a raw prompt it is one token."""
    n_plain, n_named = (
        answered(worker, {"role": "user", "content": text})[0]["prompt_tokens"] for text in ("", "<|im_end|>")
    )
    assert n_named > n_plain + 3
    assert worker.run(prompt="<|im_end|>", max_tokens=8)[0]["prompt_tokens"] == 1


@pytest.mark.usefixtures("default_model")
def test_a_conversation_beyond_the_context_is_refused(worker: WorkerProcess) -> None:
    assert refusal(post(worker, asked({"role": "user", "content": "word " * 6000}))) == ["prompt"]
