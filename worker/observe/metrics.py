"""The worker's Prometheus series (docs/protocol.md 8), all of them there from the start, at zero.

Owns: names, types, labels, buckets, and a registry of its own. Methods are named for what happened.
Refuses to know: jobs, requests and HTTP; label values are closed sets, never a job_id.
Called on the front's event loop.
"""

import platform
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from importlib.metadata import version
from typing import Literal, get_args

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, exposition
from prometheus_client.metrics_core import CounterMetricFamily, Metric
from prometheus_client.openmetrics.exposition import ALLOWUTF8, UNDERSCORES
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from worker import __version__
from worker.observe.buckets import FIRST_TOKEN_S, REQUEST_S, TOKEN_S
from worker.observe.vllm_metrics import EndedJob, VllmMetrics
from worker.wire.jobs import StepDone, StepKind
from worker.wire.load import Loaded

Outcome = Literal["success", "error", "cancelled", "timeout", "rejected"]

REFUSAL_CODES = (
    *("INVALID_REQUEST", "UNAUTHORIZED", "NOT_FOUND", "METHOD_NOT_ALLOWED", "BODY_TOO_LARGE", "UNSUPPORTED_MEDIA_TYPE"),
    *("DUPLICATE_JOB", "DEADLINE_EXCEEDED", "WORKER_BUSY", "WORKER_LOADING", "WORKER_DRAINING", "WORKER_UNHEALTHY"),
    *("CUDA_ERROR", "VRAM_OOM", "INFERENCE_FAILED", "INTERNAL"),
)
"""The reasons for refusing a request: the codes of docs/protocol.md 3, and others for refusals whose bodies have no
code."""

_NO_PROCESS = "none"
"""A folder that /proc does not have, for an engine that does not run."""


class Metrics:
    """The series of `/metrics`. `clock` gives seconds and never goes back; the log's writer counts dropped lines."""

    def __init__(
        self,
        worker_id: str,
        clock: Callable[[], float] = time.monotonic,
        *,
        n_log_lines_dropped: Callable[[], int] = lambda: 0,
    ) -> None:
        # No time stamp beside each series; the library only has a switch for the whole process.
        prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]  # the library's one gap
        self._registry = CollectorRegistry()
        self._worker_id = worker_id

        self._make_gauges_of_the_model()
        self._queue_depth = self._gauge("worker_queue_depth", "Accepted jobs that wait for a slot.")
        self._running = self._gauge("worker_requests_running", "Jobs in a slot.")
        self._cells_used = self._gauge("worker_kv_cells_used", "KV cells in use.")
        self._cells = self._gauge("worker_kv_cells", "KV cells in all.")
        self._cells_total = self._gauge("worker_kv_cells_total", "Legacy name of worker_kv_cells.")
        self._prefix_bytes = self._gauge(
            "worker_prefix_cache_bytes", "Main memory that holds KV cells of finished jobs, in bytes."
        )
        self._prefix_tokens = self._gauge(
            "worker_prefix_cache_tokens", "Tokens whose KV cells are in main memory for finished jobs."
        )
        self._threads = self._gauge("worker_compute_threads", "Threads that compute steps; 0 before the first.")
        self._ready = self._gauge("worker_ready", "1 while the worker accepts jobs, as /readyz reports, else 0.")
        self._slots = self._gauge("worker_slots", "Jobs that can run at once; 0 until the model is loaded.")
        self._slots_total = self._gauge("worker_slots_total", "Legacy name of worker_slots.")
        self._slots_busy = self._gauge("worker_slots_busy", "Slots with a job.")
        started_s = clock()
        self._gauge("worker_uptime_seconds", "Time since start.").set_function(lambda: clock() - started_s)

        self._make_counters()
        self._make_histograms()
        self._vllm = VllmMetrics(self._named_as_vllm_does())
        self._registry.register(self._vllm)

        build = Info("worker_build", "Versions of this worker and its parts.", ("worker_id",), registry=self._registry)
        build.labels(worker_id).info(_build())
        self._model = Info("worker_model", "The model, once it is loaded.", ("worker_id",), registry=self._registry)
        lost = "Log lines dropped because stderr was not read."
        self._count("worker_log_lines_dropped_total", lost, n_log_lines_dropped)
        self._registry.register(_Process(worker_id))
        self._engine_pid: int | None = None
        self._registry.register(_Process(worker_id, "worker_engine", lambda: self._engine_pid or _NO_PROCESS))

    def routes(self, offered: Iterable[tuple[str, str, int]]) -> None:
        """The route, method and status of success of everything there is to ask for; each series begins at zero."""
        for route, method, status in offered:
            self._http_requests.labels(self._worker_id, route, method, str(status))

    def loaded(self, facts: Loaded, model_ref: str, served_name: str) -> None:
        self._memory_bytes.set(facts.memory_bytes)
        for cells in (self._cells, self._cells_total):
            cells.set(facts.n_cells)
        for slots in (self._slots, self._slots_total):
            slots.set(facts.parallel)
        self._off_plan_bytes.set(sum(device.difference_bytes for device in facts.offload.off_plan))
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
        self._vllm.loaded(served_name, facts.n_cells)

    def load(
        self,
        *,
        vram_bytes: int,
        is_ready: bool,
        queue_depth: int,
        running: int,
        step: StepDone,
        engine_pid: int | None = None,
        is_resident: bool = False,
        is_certified: bool = False,
    ) -> None:
        """Set what the worker holds and how busy it is now; `step` is the engine's last report."""
        self._engine_pid = engine_pid
        self._vram_bytes.set(vram_bytes)
        self._ready.set(is_ready)
        self._resident.set(is_resident)
        self._certified.set(is_certified)
        self._queue_depth.set(queue_depth)
        self._running.set(running)
        self._slots_busy.set(running)
        self._threads.set(step.n_threads)
        self._cells_used.set(step.cells_used)
        self._vllm.load(step.cells_used)
        self._prefix_tokens.set(step.prefix_tokens)
        self._prefix_bytes.set(step.prefix_bytes)

    def step(self, step: StepDone) -> None:
        """The engine reported; `kind` is None when no decode ran."""
        if step.kind is not None:
            self._steps[step.kind].inc()
        if step.n_drafted:
            self._draft_tokens.inc(step.n_drafted)
            self._draft_tokens_accepted.inc(step.n_accepted)
        if step.n_preempted:
            self._preemptions.inc(step.n_preempted)
        if step.n_yielded:
            self._yields.inc(step.n_yielded)

    def started(self, *, queued_s: float, n_prompt: int, n_cached: int) -> None:
        """A job got its slot, and `n_cached` tokens of its prompt need not be computed."""
        self._queue_s.observe(queued_s)
        self._prompt_tokens.inc(n_prompt)
        self._prefix_tokens_reused.inc(n_cached)

    def first_token(self, *, waited_s: float) -> None:
        self._n_drawn += 1
        self._first_token_s.observe(waited_s)

    def next_token(self, *, gap_s: float) -> None:
        self._n_drawn += 1
        self._inter_token_s.observe(gap_s)

    def finished(self, outcome: Outcome, job: EndedJob) -> None:
        """A job ended, however it did, but was not refused."""
        self._requests[outcome].inc()
        self._tokens_in.inc(job.prompt_tokens)
        self._duration_ms.observe(job.duration_s * 1000)
        self._duration_s.observe(job.duration_s)
        self._vllm.finished(job)

    def rejected(self) -> None:
        """A request was refused, before it became a job or by the engine."""
        self._requests["rejected"].inc()

    def answered(self, *, route: str, method: str, status: int) -> None:
        """An HTTP exchange is over. The labels are closed sets: a route that is offered, never a path as asked for."""
        self._http_requests.labels(self._worker_id, route, method, str(status)).inc()

    def refused(self, code: str) -> None:
        """An HTTP request got an error, one of REFUSAL_CODES, instead of what it asked for."""
        self._refusals[code].inc()

    def kv_events_published(self) -> None:
        self._kv_event_batches.inc()

    def engine_restarted(self) -> None:
        self._engine_restarts.inc()

    def render(self, accept: str | None) -> tuple[bytes, str]:
        """The body and its content type: Prometheus text 0.0.4, or what the Accept header asks for, as OpenMetrics."""
        try:
            encode, content_type = exposition.choose_encoder(accept or "")
        except (TypeError, ValueError):  # a version in the header that is not a number
            encode, content_type = exposition.choose_encoder("")
        if isinstance(encode, partial) and encode.keywords["escaping"] == UNDERSCORES:
            # No name here needs escaping, but the library would do it to the colons of vLLM's:
            # https://github.com/prometheus/client_python/issues/1177
            encode = partial(encode, escaping=ALLOWUTF8)
        return encode(self._registry), content_type

    def _drawn(self) -> int:
        return self._n_drawn

    def _make_counters(self) -> None:
        requests = self._labelled("worker_requests_total", "Requests by outcome.", "outcome")
        self._requests = {outcome: requests.labels(self._worker_id, outcome) for outcome in get_args(Outcome)}
        self._tokens_in = self._counter("worker_tokens_in_total", "Prompt tokens of accepted jobs that have ended.")
        self._n_drawn = 0
        self._count("worker_tokens_generated_total", "Tokens drawn.", self._drawn)
        self._prompt_tokens = Counter("prompt_tokens", "Prompt tokens of jobs that got a slot.", registry=None)
        self._engine_restarts = self._counter(
            "worker_engine_restarts_total", "Engine processes that had to be replaced."
        )
        steps = self._labelled("worker_steps_total", "Decode calls by kind.", "kind")
        self._steps = {kind: steps.labels(self._worker_id, kind) for kind in get_args(StepKind)}
        self._prefix_tokens_reused = self._counter(
            "worker_prefix_tokens_reused_total", "Prompt tokens served from the KV cache."
        )
        self._preemptions = self._counter("worker_preemptions_total", "Jobs paused because the KV cache was full.")
        self._yields = self._counter("worker_yields_total", "Jobs paused to give another job its fair share.")
        self._draft_tokens = self._counter("worker_draft_tokens_total", "Draft tokens verified.")
        self._draft_tokens_accepted = self._counter("worker_draft_tokens_accepted_total", "Draft tokens accepted.")
        self._kv_event_batches = self._counter("worker_kv_event_batches_total", "Batches of KV events published.")
        refusals = self._labelled("worker_refusals_total", "HTTP requests refused, by code.", "code")
        self._refusals = {code: refusals.labels(self._worker_id, code) for code in REFUSAL_CODES}
        self._http_requests = self._labelled(
            "worker_http_requests_total", "HTTP requests answered.", "route", "method", "status"
        )

    def _make_histograms(self) -> None:
        self._duration_ms = self._histogram(
            "worker_inference_duration_ms",
            "Time from a job's arrival to its end, in milliseconds.",
            tuple(bound * 1000 for bound in REQUEST_S),
        )
        self._duration_s = self._histogram(
            "worker_inference_duration_seconds", "Time from a job's arrival to its end.", REQUEST_S
        )
        self._first_token_s = self._histogram(
            "worker_time_to_first_token_seconds", "Time from a job's arrival to its first token.", FIRST_TOKEN_S
        )
        self._inter_token_s = self._histogram(
            "worker_inter_token_latency_seconds", "Time from one token of a job to its next.", TOKEN_S
        )
        self._queue_s = self._histogram(
            "worker_queue_time_seconds", "Time from a job's arrival to its slot.", REQUEST_S
        )

    def _named_as_vllm_does(self) -> dict[str, Collector]:
        return {
            "num_requests_running": self._running,
            "num_requests_waiting": self._queue_depth,
            "num_preemptions": self._preemptions,
            "prompt_tokens": self._prompt_tokens,
            "prefix_cache_queries": self._prompt_tokens,
            "gpu_prefix_cache_queries": self._prompt_tokens,
            "prompt_tokens_cached": self._prefix_tokens_reused,
            "prefix_cache_hits": self._prefix_tokens_reused,
            "gpu_prefix_cache_hits": self._prefix_tokens_reused,
            "generation_tokens": _Count("tokens_generated", "Tokens drawn.", self._drawn, {}),
            "spec_decode_num_draft_tokens": self._draft_tokens,
            "spec_decode_num_accepted_tokens": self._draft_tokens_accepted,
            "time_to_first_token_seconds": self._first_token_s,
            "inter_token_latency_seconds": self._inter_token_s,
            "e2e_request_latency_seconds": self._duration_s,
            "request_queue_time_seconds": self._queue_s,
        }

    def _gauge(self, name: str, help: str) -> Gauge:
        return Gauge(name, help, ("worker_id",), registry=self._registry).labels(self._worker_id)

    def _counter(self, name: str, help: str) -> Counter:
        return self._labelled(name, help).labels(self._worker_id)

    def _count(self, name: str, help: str, count: Callable[[], int]) -> None:
        self._registry.register(_Count(name, help, count, {"worker_id": self._worker_id}))

    def _labelled(self, name: str, help: str, *labels: str) -> Counter:
        return Counter(name, help, ("worker_id", *labels), registry=self._registry)

    def _histogram(self, name: str, help: str, buckets: tuple[float, ...]) -> Histogram:
        histogram = Histogram(name, help, ("worker_id",), registry=self._registry, buckets=buckets)
        return histogram.labels(self._worker_id)

    def _make_gauges_of_the_model(self) -> None:
        self._vram_bytes = self._gauge("worker_vram_bytes", "Device memory this worker holds; 0 on a CPU.")
        self._memory_bytes = self._gauge("worker_memory_bytes", "Memory for weights, KV cache and compute buffers.")
        self._off_plan_bytes = self._gauge(
            "worker_memory_off_plan_bytes", "Difference between what devices hold and the memory plan, in bytes."
        )
        self._resident = self._gauge("worker_resident", "1 while the whole model is on the device asked for, else 0.")
        self._certified = self._gauge(
            "worker_parity_certified", "1 if a parity report covers the model as it runs, else 0."
        )


def _build() -> dict[str, str]:
    """The binding's version stands for llama.cpp's, which it pins; the library itself is never loaded here."""
    return {
        "version": __version__,
        "llama_cpp_python": version("llama-cpp-python"),
        "python": platform.python_version(),
    }


class _Count(Collector):
    """A counter that is kept elsewhere, and asked for at every scrape."""

    def __init__(self, name: str, help: str, count: Callable[[], int], labels: Mapping[str, str]) -> None:
        self._name, self._help = name, help
        self._count = count
        self._labels = labels

    def collect(self) -> Iterable[Metric]:
        family = CounterMetricFamily(self._name, self._help, labels=tuple(self._labels))
        family.add_metric(tuple(self._labels.values()), self._count())
        yield family


class _Process(Collector):
    """The library's figures of a process (CPU seconds, memory, descriptors; on Linux only), with our label."""

    def __init__(self, worker_id: str, namespace: str = "", pid: Callable[[], int | str] = lambda: "self") -> None:
        self._worker_id = worker_id
        self._collector = ProcessCollector(namespace, pid, registry=None)

    def collect(self) -> Iterable[Metric]:
        for family in self._collector.collect():
            family.samples = [_with_worker(sample, self._worker_id) for sample in family.samples]
            yield family


def _with_worker(sample: Sample, worker_id: str) -> Sample:
    return sample._replace(labels={"worker_id": worker_id, **sample.labels})
