"""The series under vLLM's names: which there are, that those of two names are the same, and what the others count."""

from collections.abc import Mapping

import pytest
from prometheus_client import parser

from tests.observe.ended import ended
from tests.server.front.rehearsal import FACTS
from worker.observe.metrics import Metrics
from worker.observe.series import FIRST_TOKEN_S, REQUEST_S, TOKEN_S, TOKENS
from worker.wire.jobs import StepDone

VLLM_SERIES = {
    **dict.fromkeys(
        (
            *("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"),
            *("vllm:cache_config_info", "vllm:lora_requests_info"),
        ),
        "gauge",
    ),
    **dict.fromkeys(
        (
            *("vllm:prompt_tokens_total", "vllm:prompt_tokens_cached_total", "vllm:generation_tokens_total"),
            *("vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total"),
            *("vllm:gpu_prefix_cache_queries_total", "vllm:gpu_prefix_cache_hits_total"),
            *("vllm:num_preemptions_total", "vllm:request_success_total"),
            *("vllm:spec_decode_num_draft_tokens_total", "vllm:spec_decode_num_accepted_tokens_total"),
        ),
        "counter",
    ),
    **dict.fromkeys(
        (
            *("vllm:time_to_first_token_seconds", "vllm:inter_token_latency_seconds"),
            *("vllm:request_time_per_output_token_seconds", "vllm:e2e_request_latency_seconds"),
            *("vllm:request_queue_time_seconds", "vllm:request_prefill_time_seconds"),
            *("vllm:request_decode_time_seconds", "vllm:request_inference_time_seconds"),
            *("vllm:request_prompt_tokens", "vllm:request_generation_tokens"),
            *("vllm:request_prefill_kv_computed_tokens", "vllm:request_params_n", "vllm:request_params_max_tokens"),
        ),
        "histogram",
    ),
    "vllm:gpu_cache_usage_perc": "gauge",
}
"""The series that llm-d's router, production-stack's, GPUStack and KEDA ask for."""

SAME = {
    "vllm:num_requests_running": "worker_requests_running",
    "vllm:num_requests_waiting": "worker_queue_depth",
    "vllm:num_preemptions_total": "worker_preemptions_total",
    "vllm:prefix_cache_hits_total": "worker_prefix_tokens_reused_total",
    "vllm:gpu_prefix_cache_hits_total": "worker_prefix_tokens_reused_total",
    "vllm:prompt_tokens_cached_total": "worker_prefix_tokens_reused_total",
    "vllm:generation_tokens_total": "worker_tokens_generated_total",
    "vllm:spec_decode_num_draft_tokens_total": "worker_draft_tokens_total",
    "vllm:spec_decode_num_accepted_tokens_total": "worker_draft_tokens_accepted_total",
    "vllm:time_to_first_token_seconds": "worker_time_to_first_token_seconds",
    "vllm:inter_token_latency_seconds": "worker_inter_token_latency_seconds",
    "vllm:e2e_request_latency_seconds": "worker_inference_duration_seconds",
    "vllm:request_queue_time_seconds": "worker_queue_time_seconds",
}

VLLM_BOUNDS = {
    FIRST_TOKEN_S: "0.001 0.005 0.01 0.02 0.04 0.06 0.08 0.1 0.25 0.5 0.75 1 2.5 5 7.5 10 20 40 80 160 640 2560",
    TOKEN_S: "0.01 0.025 0.05 0.075 0.1 0.15 0.2 0.3 0.4 0.5 0.75 1 2.5 5 7.5 10 20 40 80",
    REQUEST_S: "0.3 0.5 0.8 1 1.5 2 2.5 5 10 15 20 30 40 50 60 120 240 480 960 1920 7680",
    TOKENS: "1 2 5 10 20 50 100 200 500 1000 2000 5000 10000 20000 50000 100000",
}
"""vLLM's, of vllm/v1/metrics/loggers.py, for a model of 131,072 tokens."""

Labels = frozenset[tuple[str, str]]


@pytest.fixture
def metrics() -> Metrics:
    """Loaded, and after some work."""
    made = Metrics("w-1")
    made.loaded(FACTS, "hf:org/repo", "toy")
    return made


def shown(metrics: Metrics) -> dict[str, dict[Labels, float]]:
    """name → labels → value; without the worker's own label, and vLLM's two."""
    found: dict[str, dict[Labels, float]] = {}
    for family in parser.text_string_to_metric_families(metrics.render(None)[0].decode()):
        for sample in family.samples:
            rest = {k: v for k, v in sample.labels.items() if k not in ("worker_id", "model_name", "engine")}
            found.setdefault(sample.name, {})[frozenset(rest.items())] = sample.value
    return found


def value(metrics: Metrics, name: str, **labels: str) -> float:
    return shown(metrics)[f"vllm:{name}"][frozenset(labels.items())]


def test_nothing_has_a_value_before_the_model_has_a_name() -> None:
    assert [name for name in shown(Metrics("w-1")) if name.startswith("vllm:")] == []


@pytest.mark.parametrize(
    "accept",
    [
        None,
        "application/openmetrics-text",
        "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5",
        "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,text/plain;version=1.0.0;q=0.5",
        "text/plain;version=1.0.0;escaping=underscores",
    ],
)
def test_every_sample_has_the_models_name_and_the_engines_number(metrics: Metrics, accept: str | None) -> None:
    """This holds in every format: Prometheus' own wishes, of now and of before, are among these."""
    lines = [line for line in metrics.render(accept)[0].decode().splitlines() if line.startswith("vllm:")]
    assert len(lines) > len(VLLM_SERIES)
    assert all('engine="0"' in line and 'model_name="toy"' in line and "worker_id" not in line for line in lines)


def work(metrics: Metrics) -> None:
    for n in range(4):
        metrics.started(queued_s=n / 3, n_prompt=20, n_cached=5 * n)
        metrics.first_token(waited_s=n / 2)
        for at in range(n):
            metrics.next_token(gap_s=0.004 * at)
        metrics.finished("success", **ended(duration_s=n))
    metrics.step(StepDone(kind="decode", n_drafted=4, n_accepted=3, n_victims=2, n_preempted=1))
    metrics.load(StepDone(cells_used=1024), queue_depth=3, requests_running=2)


@pytest.mark.parametrize(("name", "own"), SAME.items())
def test_what_is_counted_once_has_two_names(metrics: Metrics, name: str, own: str) -> None:
    work(metrics)
    found = shown(metrics)
    parts = [part for part in ("", "_bucket", "_sum", "_count") if own + part in found]
    assert parts
    assert [found[name + part] for part in parts] == [found[own + part] for part in parts]
    assert sum(found[own + parts[-1]].values()) > 0, "something was counted"


@pytest.mark.parametrize("bounds", VLLM_BOUNDS)
def test_every_bound_of_vllms_is_one_of_ours(bounds: tuple[float, ...]) -> None:
    assert set(map(float, VLLM_BOUNDS[bounds].split())) <= set(bounds)
    assert list(bounds) == sorted(set(bounds))


def test_the_bounds_that_opentelemetry_recommends_are_among_ours() -> None:
    first = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
    each = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
    assert set(first) <= set(FIRST_TOKEN_S)
    assert set(each) <= set(TOKEN_S)


def test_prompts_count_in_tokens_when_their_jobs_get_slots(metrics: Metrics) -> None:
    metrics.started(queued_s=0.0, n_prompt=300, n_cached=0)
    metrics.started(queued_s=0.0, n_prompt=310, n_cached=290)
    for name in ("prompt_tokens", "prefix_cache_queries", "gpu_prefix_cache_queries"):
        assert value(metrics, f"{name}_total") == 610
    for name in ("prompt_tokens_cached", "prefix_cache_hits", "gpu_prefix_cache_hits"):
        assert value(metrics, f"{name}_total") == 290


def test_the_usage_of_the_cache_is_a_part_of_its_cells_which_are_reported_as_blocks(metrics: Metrics) -> None:
    work(metrics)
    assert value(metrics, "kv_cache_usage_perc") == value(metrics, "gpu_cache_usage_perc") == 1024 / FACTS.n_cells
    assert shown(metrics)["vllm:cache_config_info"] == {
        frozenset({("block_size", "16"), ("num_gpu_blocks", str(FACTS.n_cells // 16))}): 1
    }


def test_there_are_no_adapters(metrics: Metrics) -> None:
    labels = {("max_lora", "0"), ("running_lora_adapters", ""), ("waiting_lora_adapters", "")}
    assert shown(metrics)["vllm:lora_requests_info"] == {frozenset(labels): 0}


def sums(metrics: Metrics) -> Mapping[str, tuple[float, float]]:
    """name → count and sum of each histogram that vLLM alone has a name for."""
    found = shown(metrics)
    names = [name for name, kind in VLLM_SERIES.items() if kind == "histogram" and name not in SAME]
    plain: Labels = frozenset()
    return {name.removeprefix("vllm:"): (found[f"{name}_count"][plain], found[f"{name}_sum"][plain]) for name in names}


def test_a_job_that_ends_leaves_its_account(metrics: Metrics) -> None:
    metrics.finished("success", **ended(reason="length", n_answers=4, cached_tokens=7))
    assert value(metrics, "request_success_total", finished_reason="length") == 1
    assert sums(metrics) == {
        "request_time_per_output_token_seconds": (1, 0.125),
        "request_prefill_time_seconds": (1, 0.25),
        "request_decode_time_seconds": (1, 0.5),
        "request_inference_time_seconds": (1, 0.75),
        "request_prompt_tokens": (1, 10),
        "request_generation_tokens": (1, 5),
        "request_prefill_kv_computed_tokens": (1, 3),
        "request_params_n": (1, 4),
        "request_params_max_tokens": (1, 16),
    }


def test_what_a_job_never_came_to_is_not_in_its_account(metrics: Metrics) -> None:
    """One that never had a slot, one that never had a token, one that had a single one, the second of n."""
    metrics.finished("cancelled", **ended(reason="abort", had_slot=False, tokens_generated=0, prefill_s=None))
    assert {count for count, _ in sums(metrics).values()} == {0}
    metrics.finished("timeout", **ended(reason="abort", tokens_generated=0, prefill_s=None))
    assert {name for name, (count, _) in sums(metrics).items() if not count} == {
        *("request_time_per_output_token_seconds", "request_prefill_time_seconds"),
        *("request_decode_time_seconds", "request_inference_time_seconds"),
    }
    metrics.finished("success", **ended(tokens_generated=1, decode_s=0.0))
    assert sums(metrics)["request_decode_time_seconds"] == (1, 0)
    assert sums(metrics)["request_time_per_output_token_seconds"] == (0, 0)
    n_asked = sums(metrics)["request_params_n"]
    metrics.finished("success", **ended(n_answers=None))
    assert sums(metrics)["request_params_n"] == n_asked
    reasons = {reason: value(metrics, "request_success_total", finished_reason=reason) for reason in REASONS}
    assert reasons == {"stop": 2, "length": 0, "abort": 2, "error": 0}


REASONS = ("stop", "length", "abort", "error")
