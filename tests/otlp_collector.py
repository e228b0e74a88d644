"""A collector of OpenTelemetry's on the loopback, which keeps what it is sent: OTLP over HTTP, in protobuf.

`with OtlpCollector() as collector: ... collector.url`. A silent one takes requests and never answers.
"""

import threading
from types import TracebackType
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.loopback import LoopbackServer, QuietHandler

PATIENCE_S = 60.0


class OtlpCollector(LoopbackServer):
    def __init__(self, *, is_silent: bool = False) -> None:
        self.bodies: list[bytes] = []
        """The bodies as they came."""
        self.paths: list[str] = []
        self._is_silent = is_silent
        self._has_news = threading.Condition()
        self._is_over = threading.Event()
        collector = self

        class Handler(QuietHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                collector._take(self.path, body)
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

        super().__init__(Handler)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over.set()
        super().__exit__(kind, error, trace)

    def _take(self, path: str, body: bytes) -> None:
        with self._has_news:
            self.paths.append(path)
            self.bodies.append(body)
            self._has_news.notify_all()
        if self._is_silent:
            self._is_over.wait(PATIENCE_S)

    def wait_until_asked(self) -> None:
        with self._has_news:
            assert self._has_news.wait_for(lambda: self.bodies, PATIENCE_S)

    def requests(self) -> list[ExportTraceServiceRequest]:
        with self._has_news:
            return [ExportTraceServiceRequest.FromString(body) for body in self.bodies]

    def resource(self) -> dict[str, Any]:
        """The attributes of what sends."""
        (first, *_) = self.requests()
        return attributes_of(first.resource_spans[0].resource.attributes)

    def spans(self) -> list[Span]:
        """All that came, in the order of their beginnings."""
        found = [
            span
            for request in self.requests()
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]
        return sorted(found, key=lambda span: span.start_time_unix_nano)


def attributes_of(attributes: Any) -> dict[str, Any]:
    return {each.key: _plain(each.value) for each in attributes if isinstance(each, KeyValue)}


def _plain(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    return [_plain(each) for each in value.array_value.values] if kind == "array_value" else getattr(value, str(kind))
