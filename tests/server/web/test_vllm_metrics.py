"""The series under vLLM's names, scraped and parsed as a router does, against what clients of both doors counted."""

from dataclasses import dataclass

import pytest
from prometheus_client import parser
from prometheus_client.samples import Sample

from tests.observe.test_vllm_metrics import VLLM_SERIES
from tests.server.web.openai_client import CHAT, COMPLETIONS, Json, ask
from tests.server.web.wire import request_of
from tests.worker_process import ONE_SLOT, Stream, WorkerProcess, eventually, serving, text_of

pytestmark = [pytest.mark.process, pytest.mark.model]

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
worker = serving("any_model", *FLAGS, scope="function")
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


def test_a_router_scrapes_the_numbers_that_clients_of_both_apis_counted(worker: WorkerProcess) -> None:
    before = scraped(worker)
    bare = {name.partition("_bucket")[0].removesuffix("_sum").removesuffix("_count") for name in before}
    assert bare == {name.removeprefix("vllm:") for name in VLLM_SERIES}
    check(before, [])
    assert value(before, "cache_config_info", block_size="16", num_gpu_blocks=str(N_CELLS // 16)) == 1
    no_adapters = {"max_lora": "0", "running_lora_adapters": "", "waiting_lora_adapters": ""}
    assert value(before, "lora_requests_info", **no_adapters) == 0

    cut, first = by_execute(worker, 1)
    stopped, _ = by_execute(worker, 9, first)
    assert stopped.n_cached > 0, "the prompt was shared"
    jobs = [cut, stopped]
    plain = {"prompt": STORY, "max_tokens": 24, "temperature": 0}
    jobs.append(by_v1(ask(worker, COMPLETIONS, plain), 24))
    talk = {"messages": [{"role": "user", "content": OTHER}], "max_tokens": 12, "temperature": 0}
    jobs.append(by_v1(ask(worker, CHAT, talk), 12))
    nothing = {"prompt": OTHER, "max_tokens": 0, "echo": True, "logprobs": 0}
    jobs.append(by_v1(ask(worker, COMPLETIONS, nothing), 0))
    assert worker.post(COMPLETIONS, json={"prompt": "x", "max_tokens": -1}).status_code == 400
    assert worker.post(COMPLETIONS, json={"prompt": " hello" * N_CELLS}).status_code == 400
    eventually(worker.is_idle)
    check(scraped(worker), jobs)
    check_times(scraped(worker))

    several = ask(worker, COMPLETIONS, {"prompt": [OTHER, STORY], "n": 2, "max_tokens": 1, "temperature": 0})
    eventually(worker.is_idle)
    found = scraped(worker)
    n_more = 2 * several["usage"]["prompt_tokens"]
    assert value(found, "prompt_tokens_total") == sum(job.n_prompt for job in jobs) + n_more
    assert value(found, "request_params_n_count") == len(jobs) + 2, "one for each prompt"
    assert value(found, "request_params_n_sum") == len(jobs) + 4
    assert (
        value(found, "request_success_total", finished_reason="length") == sum(j.reason == "length" for j in jobs) + 4
    )


def test_running_waiting_and_cancelled_jobs_agree_with_health(worker: WorkerProcess) -> None:
    with Stream(worker.url, request_of("runs", max_tokens=900)) as running:
        started, *_ = running.until("token")
        with Stream(worker.url, request_of("waits", max_tokens=900)) as waiting:
            found, health = scraped(worker), worker.health()
            assert value(found, "num_requests_running") == health["slots_busy"] == 1
            assert value(found, "num_requests_waiting") == health["queue_depth"] == 1
            assert value(found, "generation_tokens_total") > 0, "tokens count as they are drawn"
            used = value(found, "kv_cache_usage_perc")
            # The cell of the first token is computed by the step behind it.
            assert started["prompt_tokens"] / N_CELLS <= used <= 1
            assert value(found, "gpu_cache_usage_perc") == used
            worker.post("/cancel/waits")
            list(waiting)
        worker.post("/cancel/runs")
        seen = list(running)
    assert seen[-1]["code"] == "CANCELLED"
    eventually(worker.is_idle)
    found = scraped(worker)
    for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"):
        assert value(found, name) == 0
    assert value(found, "request_success_total", finished_reason="abort") == 2
    assert value(found, "e2e_request_latency_seconds_count") == 2
    assert value(found, "request_queue_time_seconds_count") == 1, "the other never had a slot"
    assert value(found, "request_prompt_tokens_sum") == value(found, "prompt_tokens_total") == started["prompt_tokens"]
    assert value(found, "request_generation_tokens_sum") == value(found, "generation_tokens_total")
    n_shown = sum(event["type"] == "token" for event in seen)
    assert value(found, "generation_tokens_total") > n_shown
