"""The worker's Prometheus series (docs/protocol.md#metrics-and-logs), all of them there from the start, at zero.

Owns: names, types, labels, buckets, and a registry of its own. Methods are named for what happened. Label values are
closed sets, never a job_id.
"""

import platform
import time
from collections.abc import Callable, Iterable
from functools import partial

import prometheus_client
from prometheus_client import Gauge, Info, exposition
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics.exposition import ALLOWUTF8, UNDERSCORES
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from worker import __version__
from worker.models.upstream.layouts import PINNED_VERSION
from worker.observe.counters import Count, Counters
from worker.wire.jobs import StepDone
from worker.wire.load import Loaded

_NO_PROCESS = "none"
"""A folder that /proc does not have, for an engine that does not run."""


class Metrics(Counters):
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
        super().__init__(worker_id)
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

        self._vllm.share(self._named_as_vllm_does())
        self._registry.register(self._vllm)

        build = Info("worker_build", "Versions of this worker and its parts.", ("worker_id",), registry=self._registry)
        build.labels(worker_id).info(_build())
        self._model = Info("worker_model", "The model, once it is loaded.", ("worker_id",), registry=self._registry)
        lost = "Log lines dropped because stderr was not read."
        self._count("worker_log_lines_dropped_total", lost, n_log_lines_dropped)
        self._registry.register(_Process(worker_id))
        self._engine_pid: int | None = None
        self._registry.register(_Process(worker_id, "worker_engine", lambda: self._engine_pid or _NO_PROCESS))

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
            "generation_tokens": Count("tokens_generated", "Tokens drawn.", self._drawn, {}),
            "spec_decode_num_draft_tokens": self._draft_tokens,
            "spec_decode_num_accepted_tokens": self._draft_tokens_accepted,
            "time_to_first_token_seconds": self._first_token_s,
            "inter_token_latency_seconds": self._inter_token_s,
            "e2e_request_latency_seconds": self._duration_s,
            "request_queue_time_seconds": self._queue_s,
        }

    def _gauge(self, name: str, help: str) -> Gauge:
        return Gauge(name, help, ("worker_id",), registry=self._registry).labels(self._worker_id)

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
    """The binding's version stands for llama.cpp's, which it pins; the library itself is never loaded here.

    The engine refuses any other version.
    """
    return {
        "version": __version__,
        "llama_cpp_python": PINNED_VERSION,
        "python": platform.python_version(),
    }


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
