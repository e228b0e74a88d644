"""The rows of the worker's Prometheus series (docs/protocol.md#metrics-and-logs): names, meanings, labels, buckets;
and how they are written.

Label values are closed sets, never a job_id.
"""

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Literal, get_args

from prometheus_client import CollectorRegistry, exposition
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.exposition import ALLOWUTF8, UNDERSCORES
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from worker.wire.jobs import StepKind

Outcome = Literal["success", "error", "cancelled", "timeout", "rejected"]
FinishReason = Literal["stop", "length", "abort", "error"]

REFUSAL_CODES = (
    *("INVALID_REQUEST", "UNAUTHORIZED", "FORBIDDEN", "WRONG_HOST", "NOT_FOUND", "METHOD_NOT_ALLOWED"),
    *("BODY_TOO_LARGE", "UNSUPPORTED_MEDIA_TYPE"),
    *("DUPLICATE_JOB", "DEADLINE_EXCEEDED", "WORKER_BUSY", "WORKER_LOADING", "WORKER_DRAINING", "WORKER_UNHEALTHY"),
    *("CUDA_ERROR", "VRAM_OOM", "INFERENCE_FAILED", "INTERNAL"),
)
"""The reasons for refusing a request: the codes of docs/protocol.md#http, and others for refusals whose bodies have no
code."""

# The bounds of the histograms' buckets. Each set has vLLM's, so that one query reads a fleet of both; for first tokens
# and tokens they begin as OpenTelemetry's do (gen_ai.server.time_to_first_token, gen_ai.server.time_per_output_token).
# More stand below, because a small model is faster than those sets distinguish.

FIRST_TOKEN_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
    *(20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
TOKEN_S = (
    *(0.001, 0.0025, 0.005),
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5),
    *(5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
REQUEST_S = (
    *(0.01, 0.02, 0.04, 0.08, 0.16),
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0),
    *(960.0, 1920.0, 7680.0),
)
"""Below vLLM's first bound they are OpenTelemetry's (gen_ai.server.request.duration)."""
TOKENS = tuple(digit * 10**power for power in range(6) for digit in (1, 2, 5))
"""vLLM's, which end at the model's context length, to half a million."""

ADAPTERS = {"max_lora": "0", "running_lora_adapters": "", "waiting_lora_adapters": ""}
"""The labels of vLLM's series of adapters, and their values here."""

COUNTERS: dict[str, tuple[str, ...]] = {
    "worker_requests_total": ("Requests by outcome.", "outcome"),
    "worker_tokens_in_total": ("Prompt tokens of accepted jobs that have ended.",),
    "worker_tokens_generated_total": ("Tokens drawn.",),
    "worker_engine_restarts_total": ("Engine processes that had to be replaced.",),
    "worker_steps_total": ("Decode calls by kind.", "kind"),
    "worker_prefix_tokens_reused_total": ("Prompt tokens served from the KV cache.",),
    "worker_preemptions_total": ("Jobs paused because the KV cache was full.",),
    "worker_yields_total": ("Jobs paused to give another job its fair share.",),
    "worker_draft_tokens_total": ("Draft tokens verified.",),
    "worker_draft_tokens_accepted_total": ("Draft tokens accepted.",),
    "worker_kv_event_batches_total": ("Batches of KV events published.",),
    "worker_refusals_total": ("HTTP requests refused, by code.", "code"),
    "worker_http_requests_total": ("HTTP requests answered.", "route", "method", "status"),
    "prompt_tokens": ("Prompt tokens of jobs that got a slot.",),
    "request_success": ("Jobs that have ended, by finish reason.", "finished_reason"),
}
"""name → meaning, labels; so in each table. A series without `worker_` has a name of vLLM's alone."""

FROM_THE_START: dict[str, tuple[str, ...]] = {
    "worker_requests_total": get_args(Outcome),
    "worker_steps_total": get_args(StepKind),
    "worker_refusals_total": REFUSAL_CODES,
    "request_success": get_args(FinishReason),
}
"""The values of a counter's label."""

GAUGES: dict[str, tuple[str, ...]] = {
    "worker_vram_bytes": ("Device memory this worker holds; 0 on a CPU.",),
    "worker_memory_bytes": ("Memory for weights, KV cache and compute buffers.",),
    "worker_memory_off_plan_bytes": ("Difference between what devices hold and the memory plan, in bytes.",),
    "worker_resident": ("1 while the whole model is on the device asked for, else 0.",),
    "worker_parity_certified": ("1 if a parity report covers the model as it runs, else 0.",),
    "worker_queue_depth": ("Accepted jobs that wait for a slot.",),
    "worker_requests_running": ("Jobs in a slot.",),
    "worker_kv_cells_used": ("KV cells in use.",),
    "worker_kv_cells": ("KV cells in all.",),
    "worker_kv_cells_total": ("Legacy name of worker_kv_cells.",),
    "worker_prefix_cache_bytes": ("Main memory that holds KV cells of finished jobs, in bytes.",),
    "worker_prefix_cache_tokens": ("Tokens whose KV cells are in main memory for finished jobs.",),
    "worker_compute_threads": ("Threads that compute steps; 0 before the first.",),
    "worker_ready": ("1 while the worker accepts jobs, as /readyz reports, else 0.",),
    "worker_slots": ("Jobs that can run at once; 0 until the model is loaded.",),
    "worker_slots_total": ("Legacy name of worker_slots.",),
    "worker_slots_busy": ("Slots with a job.",),
    "worker_uptime_seconds": ("Time since start.",),
    "kv_cache_usage_perc": ("KV cells that running jobs hold, as a part of all: 0 to 1.",),
    "cache_config_info": ("The KV cells, as blocks.", "block_size", "num_gpu_blocks"),
    "lora_requests_info": ("LoRA adapters; there are none.", *ADAPTERS),
}

HISTOGRAMS: dict[str, tuple[str, tuple[float, ...]]] = {
    "worker_inference_duration_ms": (
        "Time from a job's arrival to its end, in milliseconds.",
        tuple(bound * 1000 for bound in REQUEST_S),
    ),
    "worker_inference_duration_seconds": ("Time from a job's arrival to its end.", REQUEST_S),
    "worker_time_to_first_token_seconds": ("Time from a job's arrival to its first token.", FIRST_TOKEN_S),
    "worker_inter_token_latency_seconds": ("Time from one token of a job to its next.", TOKEN_S),
    "worker_queue_time_seconds": ("Time from a job's arrival to its slot.", REQUEST_S),
    "request_prefill_time_seconds": ("Time from a job's slot to its first token.", REQUEST_S),
    "request_decode_time_seconds": ("Time from a job's first token to its last.", REQUEST_S),
    "request_inference_time_seconds": ("Time from a job's slot to its last token.", REQUEST_S),
    "request_time_per_output_token_seconds": ("A job's mean time from one token to its next.", TOKEN_S),
    "request_prompt_tokens": ("Tokens of a job's prompt.", TOKENS),
    "request_prefill_kv_computed_tokens": ("Tokens of a job's prompt that were not cached.", TOKENS),
    "request_generation_tokens": ("Tokens drawn for a job.", TOKENS),
    "request_params_max_tokens": ("A job's max_tokens.", TOKENS),
    "request_params_n": ("Number of answers requested for one prompt.", (1, 2, 5, 10, 20)),
}
"""name → meaning, the buckets' bounds"""

UNDER_VLLMS_NAMES = {
    "num_requests_running": "worker_requests_running",
    "num_requests_waiting": "worker_queue_depth",
    "num_preemptions": "worker_preemptions_total",
    "prompt_tokens": "prompt_tokens",
    "prefix_cache_queries": "prompt_tokens",
    "gpu_prefix_cache_queries": "prompt_tokens",
    "prompt_tokens_cached": "worker_prefix_tokens_reused_total",
    "prefix_cache_hits": "worker_prefix_tokens_reused_total",
    "gpu_prefix_cache_hits": "worker_prefix_tokens_reused_total",
    "generation_tokens": "worker_tokens_generated_total",
    "spec_decode_num_draft_tokens": "worker_draft_tokens_total",
    "spec_decode_num_accepted_tokens": "worker_draft_tokens_accepted_total",
    "time_to_first_token_seconds": "worker_time_to_first_token_seconds",
    "inter_token_latency_seconds": "worker_inter_token_latency_seconds",
    "e2e_request_latency_seconds": "worker_inference_duration_seconds",
    "request_queue_time_seconds": "worker_queue_time_seconds",
    "kv_cache_usage_perc": "kv_cache_usage_perc",
    "gpu_cache_usage_perc": "kv_cache_usage_perc",
    **{name: name for name in ("cache_config_info", "lora_requests_info", "request_success")},
    **{name: name for name in HISTOGRAMS if name.startswith("request_")},
}
"""vLLM's name without `vllm:` → the series, in their order"""


def encoded(registry: CollectorRegistry, accept: str | None) -> tuple[bytes, str]:
    """The body and its content type: Prometheus text 0.0.4, or what the Accept header asks for, as OpenMetrics."""
    try:
        encode, content_type = exposition.choose_encoder(accept or "")
    except (TypeError, ValueError):  # a version in the header that is not a number
        encode, content_type = exposition.choose_encoder("")
    if isinstance(encode, partial) and encode.keywords["escaping"] == UNDERSCORES:
        # No name here needs escaping, but the library would do it to the colons of vLLM's:
        # https://github.com/prometheus/client_python/issues/1177
        encode = partial(encode, escaping=ALLOWUTF8)
    return encode(registry), content_type


class Labelled(Collector):
    """Series with the worker's label, which none of them needs to know."""

    def __init__(self, unlabelled: CollectorRegistry, worker_id: str) -> None:
        self._unlabelled, self._label = unlabelled, {"worker_id": worker_id}

    def collect(self) -> Iterable[Metric]:
        for family in self._unlabelled.collect():
            family.samples = [sample._replace(labels=self._label | sample.labels) for sample in family.samples]
            yield family


class VllmNames(Collector):
    """Series under vLLM's names. They have no values before the model has a name."""

    def __init__(self, families: Mapping[str, Collector]) -> None:
        self._families = families
        self.model_name: str | None = None

    def collect(self) -> Iterable[Metric]:
        labels = {"model_name": self.model_name or "", "engine": "0"}
        for name, source in self._families.items():
            for family in source.collect():
                renamed = Metric(f"vllm:{name}", family.documentation, family.type)
                if self.model_name is not None:
                    renamed.samples = [
                        Sample(sample.name.replace(family.name, renamed.name, 1), labels | sample.labels, sample.value)
                        for sample in family.samples
                    ]
                yield renamed
