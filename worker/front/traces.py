"""A span for each job, and for each request that was refused, sent to an OpenTelemetry collector (docs/operating.md).

Owns: what a span says, which is never a prompt, an output or a secret. Needs the extra `otel`. Spans are made on the
front's event loop, when all is over; a thread of the SDK sends them, and drops them when nobody takes them.
"""

import threading
import time
from collections.abc import Mapping
from typing import Final

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from worker import __version__
from worker.config.settings import Settings
from worker.errors import UsageError
from worker.front.job import Job
from worker.logs.redaction import Secrets
from worker.wire.messages import Conversation

SPAN: Final = "llm_request"
"""vLLM's name."""

PROVIDER: Final = "llama.cpp"

MAX_CHARS: Final = 256
"""Of a text that a client chose, such as its job_id."""

FLUSH_S: Final = 2.0
"""How long the end of the worker waits for the last spans to leave."""

Value = str | int | float | list[str]


class Traces:
    """Call `close` at the end."""

    def __init__(self, settings: Settings) -> None:
        """Raises: UsageError for a variable of the SDK's that has no meaning."""
        self._settings = settings
        self._secrets = Secrets(settings.api_key)
        self._continued = TraceContextTextMapPropagator()
        own = {
            "service.name": "llorch-worker",
            "service.version": __version__,
            "service.instance.id": settings.worker_id,
        }
        try:
            resource = Resource.create(own).merge(OTELResourceDetector().detect())
            self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
            self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        except (ValueError, OSError) as error:
            raise UsageError(f"the variables of OpenTelemetry do not make an exporter of traces: {error}") from error
        self._tracer = self._provider.get_tracer("llorch-worker", __version__)

    def ended(self, job: Job, name_in_file: str) -> None:
        """A job has its outcome."""
        request, sampling = job.request, job.request.submit.sampling
        has_token = job.time_to_first_token_s is not None
        decode_s = job.decode_time_s if has_token else None
        served = self._settings.served_name(name_in_file)
        attributes: dict[str, Value | None] = {
            "gen_ai.operation.name": "chat" if isinstance(request.submit.prompt, Conversation) else "text_completion",
            "gen_ai.request.id": self._shown(request.job_id),
            "gen_ai.request.model": self._shown(request.model or served),
            "gen_ai.request.max_tokens": request.submit.max_tokens,
            "gen_ai.request.temperature": sampling.temperature,
            "gen_ai.request.top_p": sampling.top_p,
            "gen_ai.response.model": served,
            "gen_ai.response.finish_reasons": None if job.finish_reason is None else [job.finish_reason],
            "gen_ai.usage.prompt_tokens": job.prompt_tokens,
            "gen_ai.usage.input_tokens": job.prompt_tokens,
            "gen_ai.usage.cache_read.input_tokens": job.cached_tokens,
            "gen_ai.usage.completion_tokens": job.tokens_sampled,
            "gen_ai.usage.output_tokens": job.tokens_sampled,
            "gen_ai.latency.time_in_queue": job.queue_time_s,
            "gen_ai.latency.time_to_first_token": job.time_to_first_token_s,
            "gen_ai.latency.time_in_model_prefill": job.prefill_time_s,
            "gen_ai.latency.time_in_model_decode": decode_s,
            "gen_ai.latency.e2e": job.age_s,
        }
        self._add(request.trace, request.correlation_id, request.arrived_s, job.code, attributes)

    def refused(
        self, trace: Mapping[str, str], correlation_id: str, began_s: float, code: str, operation: str | None
    ) -> None:
        """A request was refused before it became a job; `operation` is None where only the body would have told."""
        self._add(trace, correlation_id, began_s, code, {"gen_ai.operation.name": operation})

    def close(self) -> None:
        """Send what is there, if that takes no longer than FLUSH_S."""
        closing = threading.Thread(target=self._provider.shutdown, name="traces", daemon=True)
        closing.start()
        closing.join(FLUSH_S)

    def _shown(self, text: str) -> str:
        """Masked before it is cut: a client may send the API key as its job_id."""
        return self._secrets.mask_known(text)[:MAX_CHARS]

    def _add(
        self,
        trace: Mapping[str, str],
        correlation_id: str,
        began_s: float,
        code: str | None,
        attributes: Mapping[str, Value | None],
    ) -> None:
        now_ns = time.time_ns()
        all_of_it = {
            **attributes,
            "gen_ai.provider.name": PROVIDER,
            "llorch.correlation_id": correlation_id,
            "error.type": code,
        }
        span = self._tracer.start_span(
            SPAN,
            context=self._continued.extract(trace),
            kind=SpanKind.SERVER,
            attributes={name: value for name, value in all_of_it.items() if value is not None},
            start_time=now_ns - round((time.monotonic() - began_s) * 1e9),
        )
        if code is not None:
            span.set_status(Status(StatusCode.ERROR))
        span.end(now_ns)
