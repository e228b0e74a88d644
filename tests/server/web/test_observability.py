"""Log lines and series of served jobs add up and contain no texts (docs/protocol.md#metrics-and-logs).

Series under vLLM's names say what clients of both APIs counted.
"""

import json
import time
from dataclasses import dataclass

import pytest
from prometheus_client import parser
from prometheus_client.samples import Sample

from tests.observe.test_metrics import VLLM_SERIES
from tests.server.web.openai_client import CHAT, COMPLETIONS, Json, ask
from tests.server.web.wire import COUNT, request_of
from tests.worker_process import ONE_SLOT, Event, Stream, WorkerProcess, check_order, eventually, serving, text_of

pytestmark = [pytest.mark.process, pytest.mark.model]

KNOWN = "550e8400-e29b-41d4-a716-446655440000"
WORKER_ID = "watched-worker:1"
SECRET = "mellifluous xylophone"

HISTOGRAMS = (
    *("inference_duration_ms", "inference_duration_seconds", "time_to_first_token_seconds"),
    *("inter_token_latency_seconds", "queue_time_seconds"),
)
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


def test_answers_are_never_logged(watched: WorkerProcess) -> None:
    """Nor are prompts and stops: tests/record looks for its own in the log of every worker."""
    said = watched.text(prompt=f"{SECRET} is", max_tokens=20, stop=[SECRET])
    ended(watched)
    log = "".join(watched.stderr)
    assert len(said) > 20
    assert said not in log
    assert json.dumps(said)[1:-1] not in log
    assert not any(word in log for word in SECRET.split())


# ── under vLLM's names, scraped and parsed as a router does ──────────────────────────────────────

MODEL = "fleet/model"
LABELS = {"model_name": MODEL, "engine": "0"}
N_CELLS = 1024
STORY = "One two three four five six seven eight nine ten, and again: " * 6
OTHER = "Somewhere else, something quite different was said about the weather. " * 4


@dataclass(frozen=True)
class Job:
    """One job as its client counted it; `n` of the first of several answers to a prompt only."""

    reason: str
    n_prompt: int
    n_cached: int
    n_drawn: int
    max_tokens: int
    n: int | None = 1
    n_drafted: int = 0
    n_accepted: int = 0


FLAGS = (*ONE_SLOT, "--ctx-size", str(N_CELLS), "--served-model-name", MODEL)
fleets = serving("any_model", *FLAGS, scope="function")
"""A fresh one for each test."""


def scraped(worker: WorkerProcess) -> dict[str, list[Sample]]:
    """The samples under vLLM's names, by name without the prefix."""
    found: dict[str, list[Sample]] = {}
    for family in parser.text_string_to_metric_families(worker.get("/metrics").text):
        for sample in family.samples:
            if sample.name.startswith("vllm:"):
                found.setdefault(sample.name.removeprefix("vllm:"), []).append(sample)
    return found


def value(found: dict[str, list[Sample]], name: str, **labels: str) -> float:
    (value,) = [sample.value for sample in found[name] if sample.labels == LABELS | labels]
    return value


def by_execute(worker: WorkerProcess, max_tokens: int, *stop: str) -> tuple[Job, str]:
    """The job and its text. It ends with its first token, so that nothing is drafted."""
    events = worker.run(prompt=STORY, max_tokens=max_tokens, stop=stop)
    started, end = events[0], events[-1]
    reason = {"MAX_TOKENS": "length", "STOP_SEQUENCE": "stop"}[end["stop_reason"]]
    job = Job(reason, end["prompt_tokens"], started["cached_tokens"], end["tokens_sampled"], max_tokens)
    return job, text_of(events)


def by_v1(answer: Json, max_tokens: int) -> Job:
    usage, (choice,) = answer["usage"], answer["choices"]
    details = usage["completion_tokens_details"]
    return Job(
        choice["finish_reason"],
        usage["prompt_tokens"],
        usage["prompt_tokens_details"]["cached_tokens"],
        usage["completion_tokens"],
        max_tokens,
        n_drafted=details["accepted_prediction_tokens"] + details["rejected_prediction_tokens"],
        n_accepted=details["accepted_prediction_tokens"],
    )


def check(found: dict[str, list[Sample]], jobs: list[Job]) -> None:
    """Every count and every sum of tokens is what the clients say."""
    n_prompt, n_drawn = sum(job.n_prompt for job in jobs), sum(job.n_drawn for job in jobs)
    n_cached = sum(job.n_cached for job in jobs)
    asked = [job.n for job in jobs if job.n is not None]
    counters = {
        **dict.fromkeys(("prompt_tokens", "prefix_cache_queries", "gpu_prefix_cache_queries"), n_prompt),
        **dict.fromkeys(("prompt_tokens_cached", "prefix_cache_hits", "gpu_prefix_cache_hits"), n_cached),
        "generation_tokens": n_drawn,
        "num_preemptions": 0,
        "spec_decode_num_draft_tokens": sum(job.n_drafted for job in jobs),
        "spec_decode_num_accepted_tokens": sum(job.n_accepted for job in jobs),
    }
    assert {name: value(found, f"{name}_total") for name in counters} == counters
    for reason in ("stop", "length", "abort", "error"):
        n_ended = sum(job.reason == reason for job in jobs)
        assert value(found, "request_success_total", finished_reason=reason) == n_ended
    sums = {
        "request_prompt_tokens": (len(jobs), n_prompt),
        "request_prefill_kv_computed_tokens": (len(jobs), n_prompt - n_cached),
        "request_generation_tokens": (len(jobs), n_drawn),
        "request_params_max_tokens": (len(jobs), sum(job.max_tokens for job in jobs)),
        "request_params_n": (len(asked), sum(asked)),
    }
    assert {name: (value(found, f"{name}_count"), value(found, f"{name}_sum")) for name in sums} == sums
    n_with_token, n_with_two = sum(job.n_drawn > 0 for job in jobs), sum(job.n_drawn > 1 for job in jobs)
    times = {
        **dict.fromkeys(("e2e_request_latency", "request_queue_time"), len(jobs)),
        **dict.fromkeys(("time_to_first_token", "request_prefill_time", "request_decode_time"), n_with_token),
        "request_inference_time": n_with_token,
        "request_time_per_output_token": n_with_two,
        "inter_token_latency": n_drawn - n_with_token,
    }
    assert {name: value(found, f"{name}_seconds_count") for name in times} == times


def check_times(found: dict[str, list[Sample]]) -> None:
    """The reported times add up."""

    def total(name: str) -> float:
        return value(found, f"{name}_seconds_sum")

    assert total("request_inference_time") == pytest.approx(
        total("request_prefill_time") + total("request_decode_time")
    )
    assert total("inter_token_latency") == pytest.approx(total("request_decode_time"))
    assert 0 < total("request_prefill_time") < total("e2e_request_latency")
    assert total("time_to_first_token") + total("request_decode_time") <= total("e2e_request_latency")


def test_a_router_scrapes_the_numbers_that_clients_of_both_apis_counted(fleets: WorkerProcess) -> None:
    before = scraped(fleets)
    bare = {name.partition("_bucket")[0].removesuffix("_sum").removesuffix("_count") for name in before}
    assert bare == {name.removeprefix("vllm:") for name in VLLM_SERIES}
    check(before, [])
    assert value(before, "cache_config_info", block_size="16", num_gpu_blocks=str(N_CELLS // 16)) == 1
    no_adapters = {"max_lora": "0", "running_lora_adapters": "", "waiting_lora_adapters": ""}
    assert value(before, "lora_requests_info", **no_adapters) == 0

    cut, first = by_execute(fleets, 1)
    stopped, _ = by_execute(fleets, 9, first)
    assert stopped.n_cached > 0, "the prompt was shared"
    jobs = [cut, stopped]
    plain = {"prompt": STORY, "max_tokens": 24, "temperature": 0}
    jobs.append(by_v1(ask(fleets, COMPLETIONS, plain), 24))
    talk = {"messages": [{"role": "user", "content": OTHER}], "max_tokens": 12, "temperature": 0}
    jobs.append(by_v1(ask(fleets, CHAT, talk), 12))
    nothing = {"prompt": OTHER, "max_tokens": 0, "echo": True, "logprobs": 0}
    jobs.append(by_v1(ask(fleets, COMPLETIONS, nothing), 0))
    assert fleets.post(COMPLETIONS, json={"prompt": "x", "max_tokens": -1}).status_code == 400
    assert fleets.post(COMPLETIONS, json={"prompt": " hello" * N_CELLS}).status_code == 400
    eventually(fleets.is_idle)
    check(scraped(fleets), jobs)
    check_times(scraped(fleets))

    several = ask(fleets, COMPLETIONS, {"prompt": [OTHER, STORY], "n": 2, "max_tokens": 1, "temperature": 0})
    eventually(fleets.is_idle)
    found = scraped(fleets)
    n_more = 2 * several["usage"]["prompt_tokens"]
    assert value(found, "prompt_tokens_total") == sum(job.n_prompt for job in jobs) + n_more
    assert value(found, "request_params_n_count") == len(jobs) + 2, "one for each prompt"
    assert value(found, "request_params_n_sum") == len(jobs) + 4
    assert (
        value(found, "request_success_total", finished_reason="length") == sum(j.reason == "length" for j in jobs) + 4
    )


def test_running_waiting_and_cancelled_jobs_agree_with_health(fleets: WorkerProcess) -> None:
    with Stream(fleets.url, request_of("runs", max_tokens=900)) as running:
        started, *_ = running.until("token")
        with Stream(fleets.url, request_of("waits", max_tokens=900)) as waiting:
            found, health = scraped(fleets), fleets.health()
            assert value(found, "num_requests_running") == health["slots_busy"] == 1
            assert value(found, "num_requests_waiting") == health["queue_depth"] == 1
            assert value(found, "generation_tokens_total") > 0, "tokens count as they are drawn"
            used = value(found, "kv_cache_usage_perc")
            # The cell of the first token is computed by the step behind it.
            assert started["prompt_tokens"] / N_CELLS <= used <= 1
            assert value(found, "gpu_cache_usage_perc") == used
            fleets.post("/cancel/waits")
            list(waiting)
        fleets.post("/cancel/runs")
        seen = list(running)
    assert seen[-1]["code"] == "CANCELLED"
    eventually(fleets.is_idle)
    found = scraped(fleets)
    for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"):
        assert value(found, name) == 0
    assert value(found, "request_success_total", finished_reason="abort") == 2
    assert value(found, "e2e_request_latency_seconds_count") == 2
    assert value(found, "request_queue_time_seconds_count") == 1, "the other never had a slot"
    assert value(found, "request_prompt_tokens_sum") == value(found, "prompt_tokens_total") == started["prompt_tokens"]
    assert value(found, "request_generation_tokens_sum") == value(found, "generation_tokens_total")
    n_shown = sum(event["type"] == "token" for event in seen)
    assert value(found, "generation_tokens_total") > n_shown
