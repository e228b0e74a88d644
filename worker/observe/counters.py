"""The series of `/metrics` that count jobs, steps and answers as they come; metrics.py adds what a scrape looks up."""

from collections.abc import Callable, Iterable, Mapping
from typing import Literal, get_args

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.metrics_core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from worker.observe.vllm_metrics import FIRST_TOKEN_S, REQUEST_S, TOKEN_S, EndedJob, VllmMetrics
from worker.wire.jobs import StepDone, StepKind

Outcome = Literal["success", "error", "cancelled", "timeout", "rejected"]

REFUSAL_CODES = (
    *("INVALID_REQUEST", "UNAUTHORIZED", "FORBIDDEN", "WRONG_HOST", "NOT_FOUND", "METHOD_NOT_ALLOWED"),
    *("BODY_TOO_LARGE", "UNSUPPORTED_MEDIA_TYPE"),
    *("DUPLICATE_JOB", "DEADLINE_EXCEEDED", "WORKER_BUSY", "WORKER_LOADING", "WORKER_DRAINING", "WORKER_UNHEALTHY"),
    *("CUDA_ERROR", "VRAM_OOM", "INFERENCE_FAILED", "INTERNAL"),
)
"""The reasons for refusing a request: the codes of docs/protocol.md#http, and others for refusals whose bodies have no
code."""


class Counters:
    """Counts events. Each series has the worker's id."""

    def __init__(self, worker_id: str) -> None:
        self._registry = CollectorRegistry()
        self._worker_id = worker_id
        self._vllm = VllmMetrics()
        self._make_counters()
        self._make_histograms()

    def step(self, step: StepDone) -> None:
        """The engine reported; `kind` is None when no decode ran. Preemptions are what vLLM calls so: pauses because
        the cells have run out. The engine's preemptions, which give another job its share, are yields."""
        if step.kind is not None:
            self._steps[step.kind].inc()
        if step.n_drafted:
            self._draft_tokens.inc(step.n_drafted)
            self._draft_tokens_accepted.inc(step.n_accepted)
        if step.n_victims:
            self._preemptions.inc(step.n_victims)
        if step.n_preempted:
            self._yields.inc(step.n_preempted)

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

    def routes(self, offered: Iterable[tuple[str, str, int]]) -> None:
        """The route, method and status of success of everything there is to ask for; each series begins at zero."""
        for route, method, status in offered:
            self._http_requests.labels(self._worker_id, route, method, str(status))

    def _counter(self, name: str, help: str) -> Counter:
        return self._labelled(name, help).labels(self._worker_id)

    def _count(self, name: str, help: str, count: Callable[[], int]) -> None:
        self._registry.register(Count(name, help, count, {"worker_id": self._worker_id}))

    def _labelled(self, name: str, help: str, *labels: str) -> Counter:
        return Counter(name, help, ("worker_id", *labels), registry=self._registry)

    def _histogram(self, name: str, help: str, buckets: tuple[float, ...]) -> Histogram:
        histogram = Histogram(name, help, ("worker_id",), registry=self._registry, buckets=buckets)
        return histogram.labels(self._worker_id)


class Count(Collector):
    """A counter that is kept elsewhere, and asked for at every scrape."""

    def __init__(self, name: str, help: str, count: Callable[[], int], labels: Mapping[str, str]) -> None:
        self._name, self._help = name, help
        self._count = count
        self._labels = labels

    def collect(self) -> Iterable[Metric]:
        family = CounterMetricFamily(self._name, self._help, labels=tuple(self._labels))
        family.add_metric(tuple(self._labels.values()), self._count())
        yield family
