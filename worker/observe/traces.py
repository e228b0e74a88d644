"""A span for each job, and for each request that was refused, sent to an OpenTelemetry collector (docs/operating.md).

server/front/admission.py has what is said of a job, which is never a prompt, an output or a secret. Needs the extra
`otel`. A thread of the SDK sends spans, and drops them if they are not taken.
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
from worker.errors import UsageError

SPAN: Final = "llm_request"
"""vLLM's name."""

FLUSH_S: Final = 2.0
"""The longest that the end of the worker waits for the last spans to leave."""

Value = str | int | float | list[str]


class Traces:
    """Call `close` at the end."""

    def __init__(self, worker_id: str) -> None:
        """Raises: UsageError for a variable of the SDK's that has no meaning."""
        self._continued = TraceContextTextMapPropagator()
        own = {"service.name": "llorch-worker", "service.version": __version__, "service.instance.id": worker_id}
        try:
            resource = Resource.create(own).merge(OTELResourceDetector().detect())
            self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
            self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        except (ValueError, OSError) as error:
            raise UsageError(f"the variables of OpenTelemetry do not make an exporter of traces: {error}") from error
        self._tracer = self._provider.get_tracer("llorch-worker", __version__)

    def add(
        self,
        trace: Mapping[str, str],
        correlation_id: str,
        began_s: float,
        code: str | None,
        attributes: Mapping[str, Value | None],
    ) -> None:
        """Send a span that began at `began_s` of the monotonic clock and ends now; `code` says why it failed."""
        now_ns = time.time_ns()
        own = {"gen_ai.provider.name": "llama.cpp", "llorch.correlation_id": correlation_id, "error.type": code}
        span = self._tracer.start_span(
            SPAN,
            context=self._continued.extract(trace),
            kind=SpanKind.SERVER,
            attributes={name: value for name, value in {**attributes, **own}.items() if value is not None},
            start_time=now_ns - round((time.monotonic() - began_s) * 1e9),
        )
        if code is not None:
            span.set_status(Status(StatusCode.ERROR))
        span.end(now_ns)

    def close(self) -> None:
        """Send what is there, if that takes no longer than FLUSH_S."""
        closing = threading.Thread(target=self._provider.shutdown, name="traces", daemon=True)
        closing.start()
        closing.join(FLUSH_S)
