"""The worker's figures under vLLM's names, for routers, autoscalers and boards (docs/protocol.md#metrics-and-logs).

Owns: these names with their labels, and the figures that have no name of the worker's own. What has one is counted
once, and gets its second name at each scrape.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from prometheus_client import Counter, Gauge, Histogram
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

FinishReason = Literal["stop", "length", "abort", "error"]

BLOCK_TOKENS = 16
"""The block size to report. KV cells have no blocks, but routers calculate in blocks and multiply the two figures."""


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

ANSWERS = (1, 2, 5, 10, 20)


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedJob:
    """The figures of a job that has ended and was not refused."""

    reason: FinishReason
    had_slot: bool
    n_answers: int | None
    """The number of answers, as in JobRequest.n_answers."""
    max_tokens: int
    prompt_tokens: int
    cached_tokens: int
    tokens_generated: int
    duration_s: float
    """The time from its arrival to its end."""
    prefill_s: float | None
    """The time from its slot to its first token; None without one."""
    decode_s: float
    """The time from its first token to its last."""


class VllmMetrics(Collector):
    """Nothing has a value before the model has a name."""

    def __init__(self) -> None:
        self._families: list[tuple[str, Collector]] = []
        self._model_name: str | None = None
        self._n_cells = 0
        self._kv_usage = self._gauge(
            "kv_cache_usage_perc", "KV cells that running jobs hold, as a part of all: 0 to 1."
        )
        self._families.append(("gpu_cache_usage_perc", self._kv_usage))
        self._blocks = self._gauge("cache_config_info", "The KV cells, as blocks.", "block_size", "num_gpu_blocks")
        adapters = ("max_lora", "running_lora_adapters", "waiting_lora_adapters")
        self._gauge("lora_requests_info", "LoRA adapters; there are none.", *adapters).labels("0", "", "")
        ended = Counter(
            "request_success", "Jobs that have ended, by finish reason.", ("finished_reason",), registry=None
        )
        self._families.append(("request_success", ended))
        self._ended = {reason: ended.labels(reason) for reason in get_args(FinishReason)}
        self._prefill_s = self._histogram(
            "request_prefill_time_seconds", "Time from a job's slot to its first token.", REQUEST_S
        )
        self._decode_s = self._histogram(
            "request_decode_time_seconds", "Time from a job's first token to its last.", REQUEST_S
        )
        self._inference_s = self._histogram(
            "request_inference_time_seconds", "Time from a job's slot to its last token.", REQUEST_S
        )
        self._mean_gap_s = self._histogram(
            "request_time_per_output_token_seconds", "A job's mean time from one token to its next.", TOKEN_S
        )
        self._prompt_tokens = self._histogram("request_prompt_tokens", "Tokens of a job's prompt.", TOKENS)
        self._computed_tokens = self._histogram(
            "request_prefill_kv_computed_tokens", "Tokens of a job's prompt that were not cached.", TOKENS
        )
        self._tokens_generated = self._histogram("request_generation_tokens", "Tokens drawn for a job.", TOKENS)
        self._max_tokens = self._histogram("request_params_max_tokens", "A job's max_tokens.", TOKENS)
        self._n_answers = self._histogram("request_params_n", "Number of answers requested for one prompt.", ANSWERS)

    def share(self, figures: Mapping[str, Collector]) -> None:
        """Give figures with names of the worker's own vLLM's names, too."""
        self._families = [*figures.items(), *self._families]

    def loaded(self, model_name: str, n_cells: int) -> None:
        self._model_name, self._n_cells = model_name, n_cells
        self._blocks.labels(str(BLOCK_TOKENS), str(n_cells // BLOCK_TOKENS)).set(1)

    def load(self, cells_used: int) -> None:
        self._kv_usage.set(cells_used / self._n_cells if self._n_cells else 0)

    def finished(self, job: EndedJob) -> None:
        self._ended[job.reason].inc()
        if job.had_slot:
            self._prompt_tokens.observe(job.prompt_tokens)
            self._computed_tokens.observe(job.prompt_tokens - job.cached_tokens)
            self._tokens_generated.observe(job.tokens_generated)
            self._max_tokens.observe(job.max_tokens)
            if job.n_answers is not None:
                self._n_answers.observe(job.n_answers)
        if job.prefill_s is not None:
            self._prefill_s.observe(job.prefill_s)
            self._decode_s.observe(job.decode_s)
            self._inference_s.observe(job.prefill_s + job.decode_s)
        if job.tokens_generated > 1:
            self._mean_gap_s.observe(job.decode_s / (job.tokens_generated - 1))

    def collect(self) -> Iterable[Metric]:
        for name, source in self._families:
            for family in source.collect():
                renamed = Metric(f"vllm:{name}", family.documentation, family.type)
                if self._model_name is not None:
                    labels = {"model_name": self._model_name, "engine": "0"}
                    renamed.samples = [
                        Sample(sample.name.replace(family.name, renamed.name, 1), labels | sample.labels, sample.value)
                        for sample in family.samples
                    ]
                yield renamed

    def _gauge(self, name: str, meaning: str, *labels: str) -> Gauge:
        gauge = Gauge(name, meaning, labels, registry=None)
        self._families.append((name, gauge))
        return gauge

    def _histogram(self, name: str, meaning: str, buckets: tuple[float, ...]) -> Histogram:
        histogram = Histogram(name, meaning, registry=None, buckets=buckets)
        self._families.append((name, histogram))
        return histogram
