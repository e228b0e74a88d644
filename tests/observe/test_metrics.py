"""The series of docs/protocol.md#metrics-and-logs, and those under vLLM's names: types, labels, and what moves them."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from prometheus_client import parser
from prometheus_client.openmetrics import parser as openmetrics_parser

from tests.record.rows import read
from tests.server.front.rehearsal import FACTS
from worker import __version__, errors
from worker.observe import series
from worker.observe.metrics import Metrics
from worker.observe.series import FIRST_TOKEN_S, REFUSAL_CODES, REQUEST_S, TOKEN_S, TOKENS
from worker.wire.jobs import StepDone
from worker.wire.load import Offload, OffPlan


def types(page: str) -> dict[str, str]:
    return dict(line.split()[2:4] for line in page.splitlines() if line.startswith("# TYPE "))


RECORD = read(Path(__file__).parents[1] / "record" / "routes.jsonl")
RECORDED = types(next(row["answer"]["body"] for row in RECORD if row["ask"]["path"] == "/metrics"))
"""The series of a worker with their types."""
VLLM_SERIES = {name: kind for name, kind in RECORDED.items() if name.startswith("vllm:")}
"""They are what llm-d's router, production-stack's, GPUStack and KEDA ask for."""
LABELS = {"worker_requests_total": "outcome", "worker_refusals_total": "code", "worker_steps_total": "kind"}
"""The label beside the worker's."""
LATER_SERIES = {"worker_http_requests_total", "worker_build_info", "worker_model_info"}
"""These are not at zero from the start: the web side registers its routes, and an info is always 1."""

OF_A_PROCESS = (
    *("cpu_seconds_total", "resident_memory_bytes", "virtual_memory_bytes", "start_time_seconds"),
    *("open_fds", "max_fds"),
)
OF_THE_FRONT = {f"process_{name}" for name in OF_A_PROCESS}
OF_THE_ENGINE = {f"worker_engine_process_{name}" for name in OF_A_PROCESS}

VLLM_BOUNDS = {
    FIRST_TOKEN_S: "0.001 0.005 0.01 0.02 0.04 0.06 0.08 0.1 0.25 0.5 0.75 1 2.5 5 7.5 10 20 40 80 160 640 2560",
    TOKEN_S: "0.01 0.025 0.05 0.075 0.1 0.15 0.2 0.3 0.4 0.5 0.75 1 2.5 5 7.5 10 20 40 80",
    REQUEST_S: "0.3 0.5 0.8 1 1.5 2 2.5 5 10 15 20 30 40 50 60 120 240 480 960 1920 7680",
    TOKENS: "1 2 5 10 20 50 100 200 500 1000 2000 5000 10000 20000 50000 100000",
}
"""vLLM's, of vllm/v1/metrics/loggers.py, for a model of 131,072 tokens; those of first tokens and of tokens begin as
OpenTelemetry recommends.
"""

Labels = frozenset[tuple[str, str]]


@pytest.fixture
def metrics() -> Metrics:
    return Metrics("w-1")


@pytest.fixture
def loaded() -> Metrics:
    made = Metrics("w-1")
    made.loaded(FACTS, "hf:org/repo", "toy")
    return made


def text(metrics: Metrics, accept: str | None = None) -> str:
    return metrics.render(accept)[0].decode()


def shown(metrics: Metrics) -> dict[str, dict[Labels, float]]:
    """name → labels → value; without the worker's own label, and vLLM's two."""
    found: dict[str, dict[Labels, float]] = {}
    for family in parser.text_string_to_metric_families(text(metrics)):
        for sample in family.samples:
            rest = {k: v for k, v in sample.labels.items() if k not in ("worker_id", "model_name", "engine")}
            found.setdefault(sample.name, {})[frozenset(rest.items())] = sample.value
    return found


def value(metrics: Metrics, name: str, **labels: str) -> float:
    return shown(metrics)[name][frozenset(labels.items())]


def finish(metrics: Metrics, outcome: series.Outcome = "success", **changes: Any) -> None:
    """A job ends. `reason` may change, too."""
    told: dict[str, Any] = {"reason": "stop", "had_slot": True, "n_answers": 1, "max_tokens": 16, "prompt_tokens": 10}
    told |= {"cached_tokens": 0, "tokens_generated": 5, "duration_s": 1.0, "prefill_s": 0.25, "decode_s": 0.5}
    metrics.finished(outcome, **told | changes)


def test_every_series_exists_from_the_start_with_its_type_and_its_labels_at_zero(metrics: Metrics) -> None:
    own = {name: kind for name, kind in types(text(metrics)).items() if name not in OF_THE_FRONT}
    assert own == {name: kind for name, kind in RECORDED.items() if name not in OF_THE_FRONT | OF_THE_ENGINE}
    for family in parser.text_string_to_metric_families(text(metrics)):
        for sample in family.samples:
            if sample.name not in LATER_SERIES | OF_THE_FRONT:
                assert sample.value == 0
                assert set(sample.labels) - {"le"} == {"worker_id", *filter(None, [LABELS.get(sample.name)])}
                assert sample.labels["worker_id"] == "w-1"
    outcomes = {dict(labels)["outcome"] for labels in shown(metrics)["worker_requests_total"]}
    assert outcomes == {"success", "error", "cancelled", "timeout", "rejected"}


def test_a_gauge_with_a_counters_ending_is_the_legacy_name_of_another(loaded: Metrics) -> None:
    legacy = {name for name, kind in RECORDED.items() if kind == "gauge" and name.endswith("_total")}
    assert legacy == {"worker_kv_cells_total", "worker_slots_total"}
    for old in legacy:
        new = old.removesuffix("_total")
        assert value(loaded, old) == value(loaded, new) > 0
        assert f"# HELP {old} Legacy name of {new}." in text(loaded)


@pytest.mark.parametrize(
    "accept",
    [None, "", "*/*", "text/plain;version=0.0.4", "text/html", "application/openmetrics-text;version=x", ";;="],
)
def test_without_a_wish_the_format_is_text_0_0_4(metrics: Metrics, accept: str | None) -> None:
    body, content_type = metrics.render(accept)
    assert content_type == "text/plain; version=0.0.4; charset=utf-8"
    assert body.endswith(b"\n")
    assert b"_created" not in body


def test_prometheus_gets_openmetrics_when_it_asks(metrics: Metrics) -> None:
    accept = "application/openmetrics-text;version=1.0.0;q=0.6,text/plain;version=0.0.4;q=0.3,*/*;q=0.1"
    body, content_type = metrics.render(accept)
    assert content_type.startswith("application/openmetrics-text; version=1.0.0")
    assert b"_created" not in body
    families = openmetrics_parser.text_string_to_metric_families(body.decode())  # type: ignore[no-untyped-call]  # theirs
    infos = {"worker_build_info", "worker_model_info"}
    assert {family.name for family in families} == {
        name.removesuffix("_total") if kind == "counter" else name.removesuffix("_info") if name in infos else name
        for name, kind in types(text(metrics)).items()
    }


def test_two_workers_in_one_process_do_not_meet() -> None:
    first, second = Metrics("w-1"), Metrics("w-2")
    first.rejected()
    assert 'worker_requests_total{outcome="rejected",worker_id="w-2"} 0.0' in text(second)
    assert "w-1" not in text(second)


@pytest.mark.parametrize("bounds", VLLM_BOUNDS)
def test_every_bound_of_vllms_is_one_of_ours(bounds: tuple[float, ...]) -> None:
    assert set(map(float, VLLM_BOUNDS[bounds].split())) <= set(bounds)
    assert list(bounds) == sorted(set(bounds))


def test_a_finished_job_counts_by_outcome_with_its_tokens_and_duration(metrics: Metrics) -> None:
    finish(metrics, prompt_tokens=5, duration_s=1.2)
    finish(metrics, "timeout", reason="abort", prompt_tokens=3, duration_s=300.0)
    metrics.rejected()
    outcomes = {dict(labels)["outcome"]: n for labels, n in shown(metrics)["worker_requests_total"].items()}
    assert outcomes == {"success": 1, "error": 0, "cancelled": 0, "timeout": 1, "rejected": 1}
    assert value(metrics, "worker_tokens_in_total") == 8
    assert value(metrics, "worker_inference_duration_ms_count") == 2, "a refusal has no duration"
    assert value(metrics, "worker_inference_duration_ms_sum") == 301_200
    assert value(metrics, "worker_inference_duration_seconds_sum") == pytest.approx(301.2)


def test_what_the_front_measures_lands_in_its_histogram(metrics: Metrics) -> None:
    metrics.started(queued_s=0.2, n_prompt=1, n_cached=0)
    metrics.first_token(waited_s=0.3)
    metrics.next_token(gap_s=0.02)
    metrics.next_token(gap_s=0.03)
    assert value(metrics, "worker_queue_time_seconds_sum") == 0.2
    assert value(metrics, "worker_time_to_first_token_seconds_sum") == 0.3
    assert value(metrics, "worker_inter_token_latency_seconds_count") == 2
    assert value(metrics, "worker_inter_token_latency_seconds_bucket", le="0.025") == 1
    assert value(metrics, "worker_tokens_generated_total") == 3, "each is a job's first token or another's next"


def test_gauges_show_the_last_state_and_what_happened_adds_up(metrics: Metrics) -> None:
    metrics.loaded(replace(FACTS, memory_bytes=9_000_000_000, n_cells=4096, parallel=9), "hf:org/repo", "toy")
    metrics.load(StepDone(), vram_bytes=8_000_000_000, ready=False, queue_depth=3, requests_running=8, slots_busy=8)
    step = StepDone(n_threads=2, cells_used=65, prefix_tokens=7, prefix_bytes=700)
    metrics.load(step, vram_bytes=7_000_000_000, ready=True, queue_depth=2, uptime_seconds=7.5)
    for n_cached in (0, 300, 12):
        metrics.started(queued_s=0.0, n_prompt=300, n_cached=n_cached)
    for step in (
        StepDone(kind="prefill", n_drafted=5, n_accepted=3, n_victims=1),
        StepDone(kind="decode", n_drafted=2),
        StepDone(),
        StepDone(n_victims=2, n_preempted=4),
    ):
        metrics.step(step)
    metrics.engine_restarted()
    gauges: dict[str, float] = {"vram_bytes": 7_000_000_000, "memory_bytes": 9_000_000_000}
    gauges |= {"kv_cells": 4096, "kv_cells_used": 65}
    gauges |= {"queue_depth": 2, "requests_running": 8, "ready": 1, "slots": 9, "slots_busy": 8, "uptime_seconds": 7.5}
    gauges |= {"compute_threads": 2, "prefix_cache_tokens": 7, "prefix_cache_bytes": 700}
    counters = {"prefix_tokens_reused": 312, "draft_tokens": 7, "draft_tokens_accepted": 3, "preemptions": 3}
    counters |= {"yields": 4, "engine_restarts": 1}
    expected = gauges | {f"{name}_total": n for name, n in counters.items()}
    assert {name: value(metrics, f"worker_{name}") for name in expected} == expected
    steps = {dict(labels)["kind"]: n for labels, n in shown(metrics)["worker_steps_total"].items()}
    assert (steps["prefill"], steps["decode"], sum(steps.values())) == (1, 1, 2)


def test_memory_off_the_plan_is_added_over_the_devices(metrics: Metrics) -> None:
    off = (OffPlan("0", 100, 130), OffPlan("1", 100, 40), OffPlan("2", 100, 100, taken_bytes=20))
    metrics.loaded(replace(FACTS, offload=Offload(off_plan=off)), "hf:org/repo", "served")
    assert value(metrics, "worker_memory_off_plan_bytes") == 30 + 60 + 80


def test_the_build_is_reported_from_the_start_and_the_model_once_it_is_loaded(metrics: Metrics) -> None:
    ((build, _),) = shown(metrics)["worker_build_info"].items()
    assert dict(build)["version"] == __version__
    assert {"llama_cpp_python", "python"} < set(dict(build))
    assert "worker_model_info" not in shown(metrics)
    metrics.loaded(FACTS, "hf:org/repo", "toy")
    told = {name: getattr(FACTS, name) for name in ("quant_kind", "tokenizer_kind", "backend")}
    told |= {"model": FACTS.name, "model_ref": "hf:org/repo", "device": FACTS.device_name}
    told["context_length"] = str(FACTS.context_length)
    assert shown(metrics)["worker_model_info"] == {frozenset(told.items()): 1}


def test_every_code_a_client_can_be_refused_with_has_a_series(metrics: Metrics) -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.WorkerError)]
    ends_the_process = (errors.StartupError, errors.UsageError)
    assert {kind.code for kind in kinds if not issubclass(kind, ends_the_process)} <= set(REFUSAL_CODES)
    for code in REFUSAL_CODES:
        metrics.refused(code)
        assert value(metrics, "worker_refusals_total", code=code) == 1


def test_what_can_be_asked_for_is_at_zero_and_exchanges_add_up(metrics: Metrics) -> None:
    metrics.routes([("/execute", "POST", 200), ("/health", "GET", 200)])
    metrics.answered(route="/execute", method="POST", status=200)
    metrics.answered(route="/execute", method="POST", status=503)
    found = shown(metrics)["worker_http_requests_total"]
    counted = {(ask["route"], ask["method"], ask["status"]): n for ask, n in ((dict(k), n) for k, n in found.items())}
    assert counted == {("/execute", "POST", "200"): 1, ("/execute", "POST", "503"): 1, ("/health", "GET", "200"): 0}


def test_lost_log_lines_are_asked_for_at_every_scrape() -> None:
    lost = [0]
    metrics = Metrics("w-1", n_log_lines_dropped=lambda: lost[0])
    assert value(metrics, "worker_log_lines_dropped_total") == 0
    lost[0] = 7
    assert value(metrics, "worker_log_lines_dropped_total") == 7


@pytest.mark.skipif(sys.platform != "linux", reason="the figures come from /proc")
def test_the_front_and_the_engine_are_reported_as_processes_with_our_label(metrics: Metrics) -> None:
    def processes() -> set[str]:
        return (OF_THE_FRONT | OF_THE_ENGINE) & shown(metrics).keys()

    assert processes() == OF_THE_FRONT
    assert 'process_open_fds{worker_id="w-1"}' in text(metrics)
    metrics.load(StepDone(), os.getpid())
    assert processes() == OF_THE_FRONT | OF_THE_ENGINE
    assert value(metrics, "worker_engine_process_start_time_seconds") == value(metrics, "process_start_time_seconds")
    metrics.load(StepDone(), 2**22 + 1)
    assert processes() == OF_THE_FRONT, "it is gone"


def test_nothing_has_a_value_before_the_model_has_a_name(metrics: Metrics) -> None:
    assert [name for name in shown(metrics) if name.startswith("vllm:")] == []


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
def test_every_sample_has_the_models_name_and_the_engines_number(loaded: Metrics, accept: str | None) -> None:
    """This holds in every format: Prometheus' own wishes, of now and of before, are among these."""
    lines = [line for line in text(loaded, accept).splitlines() if line.startswith("vllm:")]
    assert len(lines) > len(VLLM_SERIES)
    assert all('engine="0"' in line and 'model_name="toy"' in line and "worker_id" not in line for line in lines)


def test_what_is_counted_once_has_two_names_and_usage_is_a_part_of_the_cells(loaded: Metrics) -> None:
    for n in range(4):
        loaded.started(queued_s=n / 3, n_prompt=20, n_cached=5 * n)
        loaded.first_token(waited_s=n / 2)
        for at in range(n):
            loaded.next_token(gap_s=0.004 * at)
        finish(loaded, duration_s=n)
    loaded.step(StepDone(kind="decode", n_drafted=4, n_accepted=3, n_victims=2, n_preempted=1))
    loaded.load(StepDone(cells_used=1024), queue_depth=3, requests_running=2)
    found = shown(loaded)
    for theirs, own in series.UNDER_VLLMS_NAMES.items():
        if own.startswith("worker_"):
            name = f"vllm:{theirs}_total" if own.endswith("_total") else f"vllm:{theirs}"
            parts = [part for part in ("", "_bucket", "_sum", "_count") if own + part in found]
            assert parts
            assert [found[name + part] for part in parts] == [found[own + part] for part in parts]
            assert sum(found[own + parts[-1]].values()) > 0, "something was counted"
    usage = [value(loaded, f"vllm:{name}_usage_perc") for name in ("kv_cache", "gpu_cache")]
    assert usage == [1024 / FACTS.n_cells] * 2
    blocks = {("block_size", "16"), ("num_gpu_blocks", str(FACTS.n_cells // 16))}
    assert found["vllm:cache_config_info"] == {frozenset(blocks): 1}
    adapters = {("max_lora", "0"), ("running_lora_adapters", ""), ("waiting_lora_adapters", "")}
    assert found["vllm:lora_requests_info"] == {frozenset(adapters): 0}, "there are none"


def sums(metrics: Metrics) -> Mapping[str, tuple[float, float]]:
    """name → count and sum of each histogram that vLLM alone has a name for."""
    names = [name for name in series.HISTOGRAMS if name.startswith("request_")]
    found = {name: [value(metrics, f"vllm:{name}_{part}") for part in ("count", "sum")] for name in names}
    return {name.removeprefix("request_"): (count, total) for name, (count, total) in found.items()}


def test_a_job_that_ends_leaves_its_account(loaded: Metrics) -> None:
    finish(loaded, reason="length", n_answers=4, cached_tokens=7)
    assert value(loaded, "vllm:request_success_total", finished_reason="length") == 1
    assert sums(loaded) == {
        "time_per_output_token_seconds": (1, 0.125),
        "prefill_time_seconds": (1, 0.25),
        "decode_time_seconds": (1, 0.5),
        "inference_time_seconds": (1, 0.75),
        "prompt_tokens": (1, 10),
        "generation_tokens": (1, 5),
        "prefill_kv_computed_tokens": (1, 3),
        "params_n": (1, 4),
        "params_max_tokens": (1, 16),
    }


def test_what_a_job_never_came_to_is_not_in_its_account(loaded: Metrics) -> None:
    """One that never had a slot, one that never had a token, one that had a single one, the second of n."""
    finish(loaded, "cancelled", reason="abort", had_slot=False, tokens_generated=0, prefill_s=None)
    assert {count for count, _ in sums(loaded).values()} == {0}
    finish(loaded, "timeout", reason="abort", tokens_generated=0, prefill_s=None)
    assert {name for name, (count, _) in sums(loaded).items() if not count} == {
        *("time_per_output_token_seconds", "prefill_time_seconds", "decode_time_seconds", "inference_time_seconds")
    }
    finish(loaded, tokens_generated=1, decode_s=0.0)
    assert sums(loaded)["decode_time_seconds"] == (1, 0)
    assert sums(loaded)["time_per_output_token_seconds"] == (0, 0)
    n_asked = sums(loaded)["params_n"]
    finish(loaded, n_answers=None)
    assert sums(loaded)["params_n"] == n_asked
    reasons = {dict(labels)["finished_reason"]: n for labels, n in shown(loaded)["vllm:request_success_total"].items()}
    assert reasons == {"stop": 2, "length": 0, "abort": 2, "error": 0}
