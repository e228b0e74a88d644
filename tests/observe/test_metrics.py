"""The series of docs/protocol.md#metrics-and-logs: names, types, labels, and what moves them."""

import os
import sys

import pytest
from msgspec.structs import replace
from prometheus_client import parser
from prometheus_client.openmetrics import parser as openmetrics_parser
from prometheus_client.samples import Sample

from tests.observe.ended import ended
from tests.observe.test_vllm_metrics import VLLM_SERIES
from tests.server.front.rehearsal import FACTS
from worker import __version__, errors
from worker.observe.metrics import Metrics
from worker.observe.series import REFUSAL_CODES
from worker.wire.jobs import StepDone
from worker.wire.load import Offload, OffPlan

WORKER = {"worker_id"}

PROTOCOL_SERIES = {
    "worker_vram_bytes": ("gauge", WORKER),
    "worker_memory_bytes": ("gauge", WORKER),
    "worker_requests_total": ("counter", WORKER | {"outcome"}),
    "worker_tokens_in_total": ("counter", WORKER),
    "worker_tokens_generated_total": ("counter", WORKER),
    "worker_inference_duration_ms": ("histogram", WORKER),
    "worker_uptime_seconds": ("gauge", WORKER),
    "worker_time_to_first_token_seconds": ("histogram", WORKER),
    "worker_inter_token_latency_seconds": ("histogram", WORKER),
    "worker_queue_time_seconds": ("histogram", WORKER),
    "worker_queue_depth": ("gauge", WORKER),
    "worker_requests_running": ("gauge", WORKER),
    "worker_kv_cells_used": ("gauge", WORKER),
    "worker_compute_threads": ("gauge", WORKER),
    "worker_kv_cells": ("gauge", WORKER),
    "worker_kv_cells_total": ("gauge", WORKER),
    "worker_prefix_tokens_reused_total": ("counter", WORKER),
    "worker_preemptions_total": ("counter", WORKER),
    "worker_yields_total": ("counter", WORKER),
    "worker_engine_restarts_total": ("counter", WORKER),
}
OWN_SERIES = {
    "worker_inference_duration_seconds": ("histogram", WORKER),
    "worker_ready": ("gauge", WORKER),
    "worker_resident": ("gauge", WORKER),
    "worker_parity_certified": ("gauge", WORKER),
    "worker_memory_off_plan_bytes": ("gauge", WORKER),
    "worker_slots": ("gauge", WORKER),
    "worker_slots_total": ("gauge", WORKER),
    "worker_slots_busy": ("gauge", WORKER),
    "worker_refusals_total": ("counter", WORKER | {"code"}),
    "worker_log_lines_dropped_total": ("counter", WORKER),
    "worker_steps_total": ("counter", WORKER | {"kind"}),
    "worker_prefix_cache_bytes": ("gauge", WORKER),
    "worker_prefix_cache_tokens": ("gauge", WORKER),
    "worker_draft_tokens_total": ("counter", WORKER),
    "worker_draft_tokens_accepted_total": ("counter", WORKER),
    "worker_kv_event_batches_total": ("counter", WORKER),
}
LATER_SERIES = {"worker_http_requests_total": "counter", "worker_build_info": "gauge", "worker_model_info": "gauge"}
"""These are not at zero from the start: the web side registers its routes, and an info is always 1."""

OF_A_PROCESS = (
    *("cpu_seconds_total", "resident_memory_bytes", "virtual_memory_bytes", "start_time_seconds"),
    *("open_fds", "max_fds"),
)
PROCESS_SERIES = {f"{prefix}process_{name}" for prefix in ("", "worker_engine_") for name in OF_A_PROCESS}


@pytest.fixture
def metrics() -> Metrics:
    return Metrics("w-1")


def text(metrics: Metrics, accept: str | None = None) -> str:
    return metrics.render(accept)[0].decode()


def samples(metrics: Metrics) -> list[Sample]:
    return [sample for family in parser.text_string_to_metric_families(text(metrics)) for sample in family.samples]


def value(metrics: Metrics, name: str, **labels: str) -> float:
    (found,) = [s.value for s in samples(metrics) if s.name == name and s.labels == {"worker_id": "w-1", **labels}]
    return found


def types(rendered: str) -> dict[str, str]:
    return dict(line.split()[2:4] for line in rendered.splitlines() if line.startswith("# TYPE "))


def test_every_series_exists_from_the_start_with_its_type(metrics: Metrics) -> None:
    shown = {name: kind for name, kind in types(text(metrics)).items() if name not in PROCESS_SERIES}
    own = {name: kind for name, (kind, _) in (PROTOCOL_SERIES | OWN_SERIES).items()}
    assert shown == own | LATER_SERIES | VLLM_SERIES


@pytest.mark.parametrize(("name", "kind", "labels"), [(n, *rest) for n, rest in (PROTOCOL_SERIES | OWN_SERIES).items()])
def test_every_sample_is_zero_at_the_start_and_has_exactly_its_labels(
    metrics: Metrics, name: str, kind: str, labels: set[str]
) -> None:
    own = [s for s in samples(metrics) if s.name in (name, f"{name}_bucket", f"{name}_sum", f"{name}_count")]
    assert {s.value for s in own} == {0.0}
    assert {frozenset(set(s.labels) - {"le"}) for s in own} == {frozenset(labels)}
    assert {s.labels["worker_id"] for s in own} == {"w-1"}
    expected = {f"{name}_bucket", f"{name}_sum", f"{name}_count"} if kind == "histogram" else {name}
    assert {s.name for s in own} == expected


def test_a_gauge_with_a_counters_ending_is_the_legacy_name_of_another(metrics: Metrics) -> None:
    metrics.loaded(replace(FACTS, n_cells=4096, parallel=9), "hf:org/repo", "toy")
    rendered = text(metrics)
    legacy = {name for name, kind in types(rendered).items() if kind == "gauge" and name.endswith("_total")}
    assert legacy == {"worker_kv_cells_total", "worker_slots_total"}
    for old in legacy:
        new = old.removesuffix("_total")
        assert value(metrics, old) == value(metrics, new) > 0
        assert f"# HELP {old} Legacy name of {new}." in rendered


def test_all_outcomes_exist_at_zero(metrics: Metrics) -> None:
    outcomes = {s.labels["outcome"] for s in samples(metrics) if s.name == "worker_requests_total"}
    assert outcomes == {"success", "error", "cancelled", "timeout", "rejected"}


@pytest.mark.parametrize("accept", [None, "application/openmetrics-text"])
def test_no_series_reports_when_it_was_created(metrics: Metrics, accept: str | None) -> None:
    assert "_created" not in text(metrics, accept)


def test_a_finished_job_counts_by_outcome_with_its_tokens_and_duration(metrics: Metrics) -> None:
    metrics.finished("success", **ended(prompt_tokens=5, duration_s=1.2))
    metrics.finished("timeout", **ended(reason="abort", prompt_tokens=3, duration_s=300.0))
    assert value(metrics, "worker_requests_total", outcome="success") == 1
    assert value(metrics, "worker_requests_total", outcome="timeout") == 1
    assert value(metrics, "worker_tokens_in_total") == 8
    assert value(metrics, "worker_inference_duration_ms_count") == 2
    assert value(metrics, "worker_inference_duration_ms_sum") == 301_200
    assert value(metrics, "worker_inference_duration_seconds_sum") == pytest.approx(301.2)


def test_the_duration_in_seconds_has_the_buckets_of_the_one_in_milliseconds(metrics: Metrics) -> None:
    for duration_s in (0.009, 0.01, 0.011, 0.7, 10_000.0):
        metrics.finished("success", **ended(duration_s=duration_s))
    buckets = [
        {float(s.labels["le"]) * scale: s.value for s in samples(metrics) if s.name == f"{name}_bucket"}
        for name, scale in (("worker_inference_duration_ms", 1), ("worker_inference_duration_seconds", 1000))
    ]
    assert buckets[0] == buckets[1]


def test_a_rejected_request_counts_and_has_no_duration(metrics: Metrics) -> None:
    metrics.rejected()
    assert value(metrics, "worker_requests_total", outcome="rejected") == 1
    assert value(metrics, "worker_inference_duration_ms_count") == 0


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


def test_gauges_show_the_last_state_and_restarts_add_up(metrics: Metrics) -> None:
    metrics.loaded(replace(FACTS, memory_bytes=9_000_000_000, n_cells=4096, parallel=9), "hf:org/repo", "toy")
    metrics.load(StepDone(), vram_bytes=8_000_000_000, ready=False, queue_depth=3, requests_running=8, slots_busy=8)
    step = StepDone(n_threads=2, cells_used=65, prefix_tokens=7, prefix_bytes=700)
    metrics.load(step, vram_bytes=7_000_000_000, ready=True, queue_depth=2, uptime_seconds=7.5)
    metrics.step(StepDone(kind="prefill"))
    metrics.step(StepDone(kind="decode"))
    metrics.step(StepDone())
    metrics.engine_restarted()
    shown = {s.name: s.value for s in samples(metrics) if set(s.labels) == WORKER}
    assert shown["worker_vram_bytes"] == 7_000_000_000
    assert shown["worker_uptime_seconds"] == 7.5
    assert shown["worker_memory_bytes"] == 9_000_000_000
    assert shown["worker_kv_cells_total"] == 4096
    assert (shown["worker_queue_depth"], shown["worker_requests_running"]) == (2, 8)
    assert (shown["worker_ready"], shown["worker_slots_total"], shown["worker_slots_busy"]) == (1, 9, 8)
    assert (shown["worker_compute_threads"], shown["worker_kv_cells_used"]) == (2, 65)
    assert (shown["worker_prefix_cache_tokens"], shown["worker_prefix_cache_bytes"]) == (7, 700)
    assert shown["worker_engine_restarts_total"] == 1
    assert (
        value(metrics, "worker_steps_total", kind="prefill") == value(metrics, "worker_steps_total", kind="decode") == 1
    )


def test_what_need_not_be_computed_what_was_drafted_and_who_was_paused_add_up(metrics: Metrics) -> None:
    for n_cached in (0, 300, 12):
        metrics.started(queued_s=0.0, n_prompt=300, n_cached=n_cached)
    for step in (
        StepDone(n_drafted=5, n_accepted=3, n_victims=1),
        StepDone(n_drafted=2),
        StepDone(),
        StepDone(n_victims=2, n_preempted=4),
    ):
        metrics.step(step)
    counters = ("prefix_tokens_reused", "draft_tokens", "draft_tokens_accepted", "preemptions", "yields")
    assert [value(metrics, f"worker_{name}_total") for name in counters] == [312, 7, 3, 3, 4]


@pytest.mark.parametrize(
    ("devices", "off_bytes"),
    [
        ((), 0),
        ((OffPlan("gpu", planned_bytes=100, allocated_bytes=130),), 30),
        ((OffPlan("gpu", planned_bytes=100, allocated_bytes=40),), 60),
        ((OffPlan("gpu", planned_bytes=100, allocated_bytes=100, taken_bytes=20),), 80),
        ((OffPlan("0", 100, 130), OffPlan("1", 100, 60)), 70),
    ],
)
def test_memory_off_the_plan_is_added_over_the_devices(
    metrics: Metrics, devices: tuple[OffPlan, ...], off_bytes: int
) -> None:
    metrics.loaded(replace(FACTS, offload=Offload(off_plan=devices)), "hf:org/repo", "served")
    assert value(metrics, "worker_memory_off_plan_bytes") == off_bytes


@pytest.mark.parametrize(
    "accept",
    [None, "", "*/*", "text/plain;version=0.0.4", "text/html", "application/openmetrics-text;version=x", ";;="],
)
def test_without_a_wish_the_format_is_text_0_0_4(metrics: Metrics, accept: str | None) -> None:
    body, content_type = metrics.render(accept)
    assert content_type == "text/plain; version=0.0.4; charset=utf-8"
    assert body.endswith(b"\n")


def test_prometheus_gets_openmetrics_when_it_asks(metrics: Metrics) -> None:
    accept = "application/openmetrics-text;version=1.0.0;q=0.6,text/plain;version=0.0.4;q=0.3,*/*;q=0.1"
    body, content_type = metrics.render(accept)
    assert content_type.startswith("application/openmetrics-text; version=1.0.0")
    families = openmetrics_parser.text_string_to_metric_families(body.decode())  # type: ignore[no-untyped-call]  # theirs
    names = {family.name for family in families} - {name.removesuffix("_total") for name in PROCESS_SERIES}
    kinds = {name: kind for name, (kind, _) in (PROTOCOL_SERIES | OWN_SERIES).items()} | VLLM_SERIES | LATER_SERIES
    infos = {"worker_build_info", "worker_model_info"}
    assert names == {
        name.removesuffix("_total") if kind == "counter" else name.removesuffix("_info") if name in infos else name
        for name, kind in kinds.items()
    }


def test_two_workers_in_one_process_do_not_meet() -> None:
    first, second = Metrics("w-1"), Metrics("w-2")
    first.rejected()
    assert 'worker_requests_total{outcome="rejected",worker_id="w-2"} 0.0' in text(second)
    assert "w-1" not in text(second)


# ── what the worker is, and what is asked of it ──────────────────────────────────────────────────


def info(metrics: Metrics, name: str) -> list[dict[str, str]]:
    return [sample.labels for sample in samples(metrics) if sample.name == name and sample.value == 1]


def test_the_build_is_reported_from_the_start_and_the_model_once_it_is_loaded(metrics: Metrics) -> None:
    (build,) = info(metrics, "worker_build_info")
    assert (build["worker_id"], build["version"]) == ("w-1", __version__)
    assert {"llama_cpp_python", "python"} < set(build)
    assert info(metrics, "worker_model_info") == []
    metrics.loaded(FACTS, "hf:org/repo", "toy")
    assert info(metrics, "worker_model_info") == [
        {
            "worker_id": "w-1",
            "model": FACTS.name,
            "model_ref": "hf:org/repo",
            "quant_kind": FACTS.quant_kind,
            "tokenizer_kind": FACTS.tokenizer_kind,
            "backend": FACTS.backend,
            "device": FACTS.device_name,
            "context_length": str(FACTS.context_length),
        }
    ]


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
    counted = {
        (s.labels["route"], s.labels["method"], s.labels["status"]): s.value
        for s in samples(metrics)
        if s.name == "worker_http_requests_total"
    }
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
        return {s.name for s in samples(metrics) if s.name in PROCESS_SERIES and s.labels == {"worker_id": "w-1"}}

    assert processes() == {name for name in PROCESS_SERIES if name.startswith("process_")}
    metrics.load(StepDone(), os.getpid())
    assert processes() == PROCESS_SERIES
    assert value(metrics, "worker_engine_process_start_time_seconds") == value(metrics, "process_start_time_seconds")
    metrics.load(StepDone(), 2**22 + 1)
    assert processes() == {name for name in PROCESS_SERIES if name.startswith("process_")}, "it is gone"
