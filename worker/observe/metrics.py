"""The series of `/metrics`, all of them there from the start, at zero.

Those with a name of vLLM's, for routers, autoscalers and boards, are counted once and get it at each scrape.
"""

import platform
from collections.abc import Callable, Iterable

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info
from prometheus_client.process_collector import ProcessCollector

from worker import __version__
from worker.models.upstream.numbers import PINNED_VERSION
from worker.observe import series
from worker.wire.jobs import StepDone
from worker.wire.load import Loaded

BLOCK_TOKENS = 16
"""The block size to report. KV cells have no blocks, but routers calculate in blocks and multiply the two figures."""

_NO_PROCESS = "none"
"""A folder that /proc does not have, for an engine that does not run."""


_VERSIONS = {"version": __version__, "llama_cpp_python": PINNED_VERSION, "python": platform.python_version()}
"""The binding's version stands for llama.cpp's, which it pins, and the engine refuses any other."""


class Metrics:
    """Methods are named for what happened. The log's writer counts dropped lines."""

    def __init__(self, worker_id: str, *, n_log_lines_dropped: Callable[[], int] = lambda: 0) -> None:
        # No time stamp beside each series; the library only has a switch for the whole process.
        prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]  # the library's one gap
        own, others = CollectorRegistry(), CollectorRegistry()

        def of(name: str) -> CollectorRegistry | None:
            return own if name.startswith("worker_") else None

        self._counters = {
            name: Counter(name, text, by, registry=of(name)) for name, (text, *by) in series.COUNTERS.items()
        }
        for name, values in series.FROM_THE_START.items():
            for value in values:
                self._counters[name].labels(value)
        self._histograms = {
            name: Histogram(name, text, buckets=bounds, registry=of(name))
            for name, (text, bounds) in series.HISTOGRAMS.items()
        }
        self._gauges = {name: Gauge(name, text, by, registry=of(name)) for name, (text, *by) in series.GAUGES.items()}
        self._gauges["lora_requests_info"].labels(**series.ADAPTERS)
        self._n_cells = 0
        Info("worker_build", "Versions of this worker and its parts.", registry=others).info(_VERSIONS)
        # Its own label, because an info without labels has a value at once.
        self._model = Info("worker_model", "The model, once it is loaded.", ("worker_id",), registry=others)
        self._worker_id = worker_id
        self._lost = Counter(
            "worker_log_lines_dropped_total", "Log lines dropped because stderr was not read.", registry=others
        )
        self._n_log_lines_dropped, self._n_lost = n_log_lines_dropped, 0
        ProcessCollector(registry=others)
        self._engine_pid: int | None = None
        ProcessCollector("worker_engine", lambda: self._engine_pid or _NO_PROCESS, registry=others)
        made = self._counters | self._gauges | self._histograms
        self._vllm = series.VllmNames({name: made[ours] for name, ours in series.UNDER_VLLMS_NAMES.items()})
        self._registry = CollectorRegistry()
        for collector in (series.Labelled(own, worker_id), self._vllm, series.Labelled(others, worker_id)):
            self._registry.register(collector)

    def step(self, step: StepDone) -> None:
        """The engine reported; `kind` is None when no decode ran. Preemptions are what vLLM calls so: pauses because
        the cells have run out. The engine's preemptions, which give another job its share, are yields."""
        if step.kind is not None:
            self._counters["worker_steps_total"].labels(step.kind).inc()
        if step.n_drafted:
            self._counters["worker_draft_tokens_total"].inc(step.n_drafted)
            self._counters["worker_draft_tokens_accepted_total"].inc(step.n_accepted)
        if step.n_victims:
            self._counters["worker_preemptions_total"].inc(step.n_victims)
        if step.n_preempted:
            self._counters["worker_yields_total"].inc(step.n_preempted)

    def started(self, *, queued_s: float, n_prompt: int, n_cached: int) -> None:
        """A job got its slot, and `n_cached` tokens of its prompt need not be computed."""
        self._histograms["worker_queue_time_seconds"].observe(queued_s)
        self._counters["prompt_tokens"].inc(n_prompt)
        self._counters["worker_prefix_tokens_reused_total"].inc(n_cached)

    def first_token(self, *, waited_s: float) -> None:
        self._counters["worker_tokens_generated_total"].inc()
        self._histograms["worker_time_to_first_token_seconds"].observe(waited_s)

    def next_token(self, *, gap_s: float) -> None:
        self._counters["worker_tokens_generated_total"].inc()
        self._histograms["worker_inter_token_latency_seconds"].observe(gap_s)

    def finished(
        self,
        outcome: series.Outcome,
        reason: series.FinishReason,
        *,
        duration_s: float,
        had_slot: bool,
        prompt_tokens: int,
        cached_tokens: int,
        tokens_generated: int,
        max_tokens: int,
        n_answers: int | None,
        prefill_s: float | None,
        decode_s: float,
    ) -> None:
        """A job ended, however it did, but was not refused. `prefill_s` is the time from its slot to its first token,
        None without one; `decode_s` that from its first token to its last; `n_answers` is None for all answers to a
        prompt but the first."""
        self._counters["worker_requests_total"].labels(outcome).inc()
        self._counters["worker_tokens_in_total"].inc(prompt_tokens)
        self._counters["request_success"].labels(reason).inc()
        figures: dict[str, float | None] = {
            "worker_inference_duration_ms": duration_s * 1000,
            "worker_inference_duration_seconds": duration_s,
        }
        if had_slot:
            figures |= {
                "request_prompt_tokens": prompt_tokens,
                "request_prefill_kv_computed_tokens": prompt_tokens - cached_tokens,
                "request_generation_tokens": tokens_generated,
                "request_params_max_tokens": max_tokens,
                "request_params_n": n_answers,
            }
        if prefill_s is not None:
            figures |= {
                "request_prefill_time_seconds": prefill_s,
                "request_decode_time_seconds": decode_s,
                "request_inference_time_seconds": prefill_s + decode_s,
            }
        if tokens_generated > 1:
            figures["request_time_per_output_token_seconds"] = decode_s / (tokens_generated - 1)
        for name, figure in figures.items():
            if figure is not None:
                self._histograms[name].observe(figure)

    def rejected(self) -> None:
        """A request was refused, before it became a job or by the engine."""
        self._counters["worker_requests_total"].labels("rejected").inc()

    def routes(self, offered: Iterable[tuple[str, str, int]]) -> None:
        """The route, method and status of success of everything there is to ask for; each series begins at zero."""
        for route, method, status in offered:
            self._counters["worker_http_requests_total"].labels(route, method, str(status))

    def answered(self, *, route: str, method: str, status: int) -> None:
        """An HTTP exchange is over. The labels are closed sets: a route that is offered, never a path as asked for."""
        self._counters["worker_http_requests_total"].labels(route, method, str(status)).inc()

    def refused(self, code: str) -> None:
        """An HTTP request got an error, one of REFUSAL_CODES, instead of what it asked for."""
        self._counters["worker_refusals_total"].labels(code).inc()

    def kv_events_published(self) -> None:
        self._counters["worker_kv_event_batches_total"].inc()

    def engine_restarted(self) -> None:
        self._counters["worker_engine_restarts_total"].inc()

    def loaded(self, facts: Loaded, model_ref: str, served_name: str) -> None:
        self._set(
            memory_bytes=facts.memory_bytes,
            kv_cells=facts.n_cells,
            kv_cells_total=facts.n_cells,
            slots=facts.parallel,
            slots_total=facts.parallel,
            memory_off_plan_bytes=sum(device.difference_bytes for device in facts.offload.off_plan),
        )
        labels = {
            "model": facts.name,
            "model_ref": model_ref,
            "quant_kind": facts.quant_kind,
            "tokenizer_kind": facts.tokenizer_kind,
            "backend": facts.backend,
            "device": facts.device_name,
            "context_length": str(facts.context_length),
        }
        self._model.labels(self._worker_id).info(labels)
        self.named_as_vllm_does(served_name, facts.n_cells)

    def named_as_vllm_does(self, model_name: str, n_cells: int) -> None:
        """Give the series under vLLM's names their values, which they do not have before the model has a name."""
        self._vllm.model_name, self._n_cells = model_name, n_cells
        self._gauges["cache_config_info"].labels(str(BLOCK_TOKENS), str(n_cells // BLOCK_TOKENS)).set(1)

    def load(self, step: StepDone, engine_pid: int | None = None, **figures: float) -> None:
        """Set what the worker holds and how busy it is now: gauges by their names without `worker_`, and what `step`,
        the engine's last report, says."""
        self._engine_pid = engine_pid
        self._gauges["kv_cache_usage_perc"].set(step.cells_used / self._n_cells if self._n_cells else 0)
        self._set(
            compute_threads=step.n_threads,
            kv_cells_used=step.cells_used,
            prefix_cache_tokens=step.prefix_tokens,
            prefix_cache_bytes=step.prefix_bytes,
            **figures,
        )

    def _set(self, **figures: float) -> None:
        for name, figure in figures.items():
            self._gauges[f"worker_{name}"].set(figure)

    def render(self, accept: str | None) -> tuple[bytes, str]:
        """The body and its content type: Prometheus text 0.0.4, or what the Accept header asks for, as OpenMetrics."""
        n_lost = self._n_log_lines_dropped()
        self._lost.inc(n_lost - self._n_lost)
        self._n_lost = n_lost
        return series.encoded(self._registry, accept)
