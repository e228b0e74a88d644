"""Log lines and series of served jobs add up and contain no texts (docs/protocol.md#metrics-and-logs)."""

import json
import time

import pytest

from tests.server.web.wire import COUNT, request_of
from tests.worker_process import ONE_SLOT, Event, Stream, WorkerProcess, check_order, eventually, serving

pytestmark = [pytest.mark.process, pytest.mark.model]

KNOWN = "550e8400-e29b-41d4-a716-446655440000"
WORKER_ID = "watched-worker:1"
SECRET = "mellifluous xylophone"

HISTOGRAMS = ("inference_duration_ms", "inference_duration_seconds", "time_to_first_token_seconds")
HISTOGRAMS += ("inter_token_latency_seconds", "queue_time_seconds")
GAUGES_OF_WORK = ("worker_queue_depth", "worker_requests_running", "worker_kv_cells_used", "worker_slots_busy")

NAMES = ("--worker-id", WORKER_ID, "--model-ref", "hf:org/repo")
watched = serving("default_model", *ONE_SLOT, "--ctx-size", "1024", "--prompt-lookup", "off", *NAMES, scope="function")
"""A fresh worker: its counters begin at zero. All layers and no drafts, so that a long job takes its time."""


def chosen(samples: dict[str, float], *names: str) -> dict[str, float]:
    return {name: samples[name] for name in names}


def test_before_the_first_job_the_series_say_what_health_says_and_nothing_is_counted(watched: WorkerProcess) -> None:
    """Names and types are in tests/record and tests/observe."""
    samples = watched.metrics()
    counts = [f"worker_{name}_{part}" for name in HISTOGRAMS for part in ("count", "sum")]
    assert set(chosen(samples, *GAUGES_OF_WORK, *counts, "worker_tokens_in_total").values()) == {0.0}
    assert samples["worker_vram_bytes"] == watched.health()["vram_bytes"]
    assert samples["worker_memory_bytes"] == watched.health()["memory_bytes"] > 0
    assert samples["worker_kv_cells_total"] == 1024
    assert (samples["worker_ready"], samples["worker_slots_total"]) == (1, 1)
    assert (samples["worker_resident"], samples["worker_parity_certified"]) == (1, 0)
    assert samples['worker_http_requests_total{method="POST",route="/execute",status="200"}'] == 0
    assert samples["worker_uptime_seconds"] > 0
    for line in watched.get("/metrics").text.splitlines():
        assert line.startswith(("#", "vllm:")) or f'worker_id="{WORKER_ID}"' in line


def test_series_add_up_over_jobs_of_every_outcome(watched: WorkerProcess) -> None:
    """Two successes, one cancelled while it waits, one cancelled while it runs, one time-out, two refusals."""
    ends = [watched.run(prompt=COUNT, max_tokens=n)[-1] for n in (5, 1)]
    with Stream(watched.url, request_of("runs", max_tokens=900)) as running:
        running.until("token")
        with Stream(watched.url, request_of("waits", max_tokens=900)) as waiting:
            assert chosen(watched.metrics(), *GAUGES_OF_WORK[:2]) == dict.fromkeys(GAUGES_OF_WORK[:2], 1.0)
            assert watched.metrics()["worker_kv_cells_used"] > 0
            watched.post("/cancel/waits")
            list(waiting)
        watched.post("/cancel/runs")
        list(running)
    deadline = {"x-deadline": str(int((time.time() + 3) * 1000))}
    with Stream(watched.url, request_of("late", max_tokens=900), deadline) as late:
        assert list(late)[-1]["code"] == "TIMEOUT"
    assert watched.post("/execute", json=request_of("")).status_code == 400
    assert watched.post("/execute", json=request_of("long", prompt=" hello" * 1024)).status_code == 400
    eventually(watched.is_idle)
    samples, lines = watched.metrics(), ended(watched)
    outcomes = {"success": 2, "error": 0, "cancelled": 2, "timeout": 1, "rejected": 2}
    counted = {name: samples[f'worker_requests_total{{outcome="{name}"}}'] for name in outcomes}
    assert counted == outcomes
    assert samples["worker_tokens_in_total"] == sum(line["tokens_in"] for line in lines) == 5 * 13
    drawn = sum(end["tokens_sampled"] for end in ends) + sum(line["tokens_out"] for line in lines[2:])
    assert samples["worker_tokens_generated_total"] >= drawn
    counts = [samples[f"worker_{name}_count"] for name in HISTOGRAMS]
    assert counts[:3] == [5, 5, 4]
    assert counts[2] + counts[3] == samples["worker_tokens_generated_total"]
    assert counts[4] == 4, "one never had a slot"
    assert set(chosen(samples, *GAUGES_OF_WORK).values()) == {0.0}


def ended(worker: WorkerProcess) -> list[Event]:
    """The worker's execute_end lines; it is gone afterwards."""
    worker.terminate()
    assert worker.exit_code() == 0
    return [entry for entry in worker.log if entry["event"] == "execute_end"]


def test_the_life_of_a_worker_is_logged_in_order_and_in_json(watched: WorkerProcess) -> None:
    check_order(watched.run(prompt=COUNT, max_tokens=1))
    ended(watched)
    kinds = [entry["event"] for entry in watched.log if entry["event"] != "model_load_progress"]
    before = ["startup", "listening", "model_load_start", "model_load_complete", "ready"]
    assert kinds == [*before, "execute_start", "execute_end", "shutdown", "shutdown"]
    percents = [entry["percent"] for entry in watched.log if entry["event"] == "model_load_progress"]
    assert percents == sorted(set(percents))
    assert percents[-1] == 100
    for entry in watched.log:
        assert (entry["worker_id"], entry["level"]) == (WORKER_ID, "info")
        assert entry["timestamp"].endswith("Z")
    by_event = {entry["event"]: entry for entry in watched.log}
    listening = by_event["listening"]
    assert listening["url"] == f"http://{listening['host']}:{listening['port']}"
    for event in ("startup", "model_load_start", "ready", "execute_end"):
        assert by_event[event]["model_ref"] == "hf:org/repo"
    assert by_event["ready"]["device"]
    assert by_event["ready"]["attention"] == "cpu"


def test_a_job_is_two_lines_that_carry_its_ids_and_its_figures(watched: WorkerProcess) -> None:
    headers = {"x-correlation-id": KNOWN}
    with Stream(watched.url, request_of("told", max_tokens=5), headers) as stream:
        end = list(stream)[-1]
    refused = watched.post("/execute", json=request_of("refused", prompt=" hello" * 1024))
    assert refused.status_code == 400
    told, not_taken = ended(watched)
    starts = {entry["job_id"]: entry for entry in watched.log if entry["event"] == "execute_start"}
    assert starts["told"]["correlation_id"] == told["correlation_id"] == KNOWN
    assert starts["refused"]["correlation_id"] == refused.headers["x-correlation-id"] == not_taken["correlation_id"]
    names = ("job_id", "outcome", "code", "tokens_in", "cached_tokens", "tokens_out", "decode_time_ms")
    figures = {name: told[name] for name in (*names, "time_to_first_token_ms")}
    assert figures == {
        "job_id": "told",
        "code": None,
        "cached_tokens": 0,
        "time_to_first_token_ms": end["time_to_first_token_ms"],
        "outcome": "success",
        "tokens_in": end["prompt_tokens"],
        "tokens_out": end["tokens_out"],
        "decode_time_ms": end["decode_time_ms"],
    }
    assert told["queue_time_ms"] >= 0
    assert (not_taken["job_id"], not_taken["outcome"], not_taken["tokens_in"]) == ("refused", "rejected", 0)
    assert not_taken["code"] == "INVALID_REQUEST"


def test_control_characters_of_a_client_stay_inside_their_line(watched: WorkerProcess) -> None:
    evil = 'a"\n{"event":"ready"}\r\n\x1b[31m\x00\x7f\x9b\u2028\u202e'
    check_order(watched.run(job_id=evil, prompt=COUNT, max_tokens=1))
    (end,) = ended(watched)
    assert end["job_id"] == evil
    for line in watched.stderr:
        assert json.loads(line)
        assert line.removesuffix("\n").isprintable()


def test_prompts_answers_and_stops_are_never_logged(watched: WorkerProcess) -> None:
    said = watched.text(prompt=f"{SECRET} is", max_tokens=20, stop=[SECRET])
    with Stream(watched.url, request_of("left", prompt=SECRET)) as stream:
        stream.until("token")
    for broken in ({"max_tokens": 0}, {"max_tokens": SECRET}, {"prompt": SECRET * 1000}, {"stop": [SECRET] * 5}):
        request = request_of("broken", prompt=SECRET) | broken
        assert watched.post("/execute", json=request).status_code in {400, 422}
    watched.post("/execute", content=SECRET.encode(), headers={"content-type": "application/json"})
    eventually(watched.is_idle)
    ended(watched)
    log = "".join(watched.stderr)
    assert len(said) > 20
    assert said not in log
    assert json.dumps(said)[1:-1] not in log
    assert not any(word in log for word in SECRET.split())
