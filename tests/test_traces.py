"""Traces, by a real worker and a collector: a span for each job and each refusal, which harms nobody where nobody takes
it."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from tests.loopback import LoopbackServer, QuietHandler, reserved_port
from tests.server.web.openai_client import CHAT, COMPLETIONS
from tests.worker_process import PATIENCE_S, Event, Stream, WorkerProcess, eventually, own_environment, serve_default
from worker.observe.traces import FLUSH_S, SPAN

pytestmark = [pytest.mark.process, pytest.mark.model]

TRACE_ID = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT_ID = "00f067aa0ba902b7"
TRACED = {"traceparent": f"00-{TRACE_ID}-{PARENT_ID}-01", "tracestate": "vendor=opaque"}
CORRELATION = {"x-correlation-id": "550e8400-e29b-41d4-a716-446655440000"}
SECRET = "mellifluous xylophone"
API_KEY = "sesame-street-123"


class OtlpCollector(LoopbackServer):
    """A collector that keeps what it is sent: OTLP over HTTP, in protobuf. A silent one never answers."""

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
                self.answer(200)

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


@contextmanager
def traced(model: Path, endpoint: str, *arguments: str) -> Iterator[WorkerProcess]:
    environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "OTEL_BSP_SCHEDULE_DELAY": "20"}
    with serve_default(model, "--parallel", "1", "--ctx-size", "1024", *arguments, environment=environment) as worker:
        yield worker.ready()


@dataclass(frozen=True)
class Told:
    """The requests to a worker, the answers to its clients, its log, and the spans that the collector got."""

    run: list[Event]
    chat: Event
    texts: Event
    lines: dict[str, Event]
    """execute_end, by job_id."""
    spans: list[Span]
    resource: dict[str, Any]
    raw: bytes

    def span(self, **wanted: Any) -> Span:
        """The only one with these attributes, dots written as __."""
        pairs = {name.replace("__", "."): value for name, value in wanted.items()}
        (found,) = [span for span in self.spans if pairs.items() <= attributes_of(span.attributes).items()]
        return found


@pytest.fixture(scope="module")
def told(any_model: Path) -> Told:
    key = {"authorization": f"Bearer {API_KEY}"}
    flags = ("--served-model-name", "small", "--api-key", API_KEY, "--worker-id", "w-7")
    with OtlpCollector() as collector, traced(any_model, collector.url, *flags) as worker:

        def post(path: str, body: Event, **headers: str) -> Event:
            answer: Event = worker.post(path, json=body, headers={**key, **headers}).json()
            return answer

        job = {"job_id": "plain", "prompt": SECRET, "max_tokens": 4, "temperature": 0.0}
        with Stream(worker.url, job, {**key, **TRACED, **CORRELATION}) as stream:
            run = list(stream)
        messages = [{"role": "user", "content": SECRET}]
        chat = post(CHAT, {"model": "gpt-x", "messages": messages, "max_tokens": 3, "temperature": 0}, **TRACED)
        texts = post(COMPLETIONS, {"prompt": SECRET, "max_tokens": 2, "n": 2, "seed": 1})
        with Stream(worker.url, {"job_id": "left", "prompt": "1 2 3", "max_tokens": 900}, key) as stream:
            stream.until("token")
        post("/execute", {"job_id": f"long {API_KEY}", "prompt": f"{SECRET} " * 1024, "max_tokens": 1})
        post("/execute", {"job_id": "", "prompt": SECRET, "max_tokens": 1}, **TRACED)
        post(CHAT, {"messages": SECRET})
        worker.terminate()
        assert worker.exit_code() == 0
        lines = {line["job_id"]: line for line in worker.log if line["event"] == "execute_end"}
        assert not [line for line in worker.log if line["level"] not in ("info", "warning")]
        assert set(collector.paths) == {"/v1/traces"}
        return Told(run, chat, texts, lines, collector.spans(), collector.resource(), b"".join(collector.bodies))


def test_each_job_and_each_refusal_is_one_span_of_a_server(told: Told) -> None:
    assert len(told.spans) == len(told.lines) + 2 == 8
    assert {(span.name, span.kind) for span in told.spans} == {(SPAN, Span.SPAN_KIND_SERVER)}
    names = [attributes_of(span.attributes).get("gen_ai.request.id") for span in told.spans]
    assert sorted(filter(None, names)) == sorted(told.lines)
    assert told.resource["service.name"] == "llorch-worker"
    assert told.resource["service.instance.id"] == "w-7"


def test_a_span_has_the_figures_of_the_client_and_the_log(told: Told) -> None:
    started, end, line = told.run[0], told.run[-1], told.lines["plain"]
    span = told.span(gen_ai__request__id="plain")
    found = attributes_of(span.attributes)
    figures = {name: found.pop(f"gen_ai.latency.{name}") for name in LATENCIES}
    assert found == {
        "gen_ai.operation.name": "text_completion",
        "gen_ai.provider.name": "llama.cpp",
        "gen_ai.request.id": "plain",
        "gen_ai.request.model": "small",
        "gen_ai.request.max_tokens": 4,
        "gen_ai.request.temperature": 0.0,
        "gen_ai.request.top_p": 1.0,
        "gen_ai.response.model": "small",
        "gen_ai.response.finish_reasons": ["length"],
        "gen_ai.usage.prompt_tokens": started["prompt_tokens"],
        "gen_ai.usage.input_tokens": started["prompt_tokens"],
        "gen_ai.usage.cache_read.input_tokens": started["cached_tokens"],
        "gen_ai.usage.completion_tokens": end["tokens_sampled"],
        "gen_ai.usage.output_tokens": end["tokens_sampled"],
        "llorch.correlation_id": CORRELATION["x-correlation-id"],
    }
    assert round(figures["time_in_queue"] * 1000) == line["queue_time_ms"]
    assert round(figures["time_to_first_token"] * 1000) == end["time_to_first_token_ms"]
    assert round(figures["time_in_model_decode"] * 1000) == end["decode_time_ms"]
    first = figures["time_in_queue"] + figures["time_in_model_prefill"]
    assert first == pytest.approx(figures["time_to_first_token"])
    assert figures["time_to_first_token"] + figures["time_in_model_decode"] <= figures["e2e"]
    length_s = (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9
    assert length_s == pytest.approx(figures["e2e"], abs=0.05)
    assert span.status.code == Status.STATUS_CODE_UNSET


LATENCIES = ("time_in_queue", "time_to_first_token", "time_in_model_prefill", "time_in_model_decode", "e2e")


def test_a_chat_is_one_by_the_name_that_its_client_has_for_the_model(told: Told) -> None:
    found = attributes_of(told.span(gen_ai__operation__name="chat", gen_ai__request__model="gpt-x").attributes)
    assert found["gen_ai.response.model"] == "small" == told.chat["model"]
    assert found["gen_ai.request.id"] == told.chat["id"]
    assert found["gen_ai.usage.output_tokens"] == told.chat["usage"]["completion_tokens"]
    assert found["gen_ai.response.finish_reasons"] == [told.chat["choices"][0]["finish_reason"]]


def test_each_of_n_answers_has_a_span(told: Told) -> None:
    ids = [f"{told.texts['id']}-{at}" for at in range(2)]
    found = [attributes_of(told.span(gen_ai__request__id=job_id).attributes) for job_id in ids]
    assert sum(each["gen_ai.usage.output_tokens"] for each in found) == told.texts["usage"]["completion_tokens"]


def test_both_doors_go_on_with_the_trace_that_a_request_belongs_to(told: Told) -> None:
    belonging = [span for span in told.spans if span.trace_id.hex() == TRACE_ID]
    refused = next(span for span in belonging if not attributes_of(span.attributes).get("gen_ai.request.id"))
    plain, chat = told.span(gen_ai__request__id="plain"), told.span(gen_ai__request__id=told.chat["id"])
    assert {span.span_id for span in belonging} == {plain.span_id, chat.span_id, refused.span_id}
    assert {span.parent_span_id.hex() for span in belonging} == {PARENT_ID}
    assert {span.trace_state for span in belonging} == {"vendor=opaque"}
    others = [span for span in told.spans if span not in belonging]
    assert {span.parent_span_id for span in others} == {b""}
    assert len({span.trace_id for span in others}) == len(others)


def test_what_failed_says_why_by_its_code(told: Told) -> None:
    left = told.span(gen_ai__request__id="left", error__type="CANCELLED")
    assert attributes_of(left.attributes)["gen_ai.response.finish_reasons"] == ["abort"]
    too_long = told.span(gen_ai__request__id="long [REDACTED]", error__type="INVALID_REQUEST")
    at_doors = [
        span for span in told.spans if set(attributes_of(span.attributes)) <= {*REFUSED, "gen_ai.operation.name"}
    ]
    assert [attributes_of(span.attributes).get("gen_ai.operation.name") for span in at_doors] == [None, "chat"]
    for span in (left, too_long, *at_doors):
        assert span.status.code == Status.STATUS_CODE_ERROR
        assert span.status.message == ""


REFUSED = ("gen_ai.provider.name", "llorch.correlation_id", "error.type")


def test_no_prompt_no_output_and_no_secret_leaves_with_a_span(told: Told) -> None:
    text = "".join(event["t"] for event in told.run if event["type"] == "token")
    said = [text, told.chat["choices"][0]["message"]["content"], *(each["text"] for each in told.texts["choices"])]
    for each in (*SECRET.split(), API_KEY, *(words for words in said if len(words) > 3)):
        assert each.encode() not in told.raw


# ── when nobody takes them ───────────────────────────────────────────────────────────────────────


def test_without_a_collector_jobs_are_answered_and_the_log_says_so(any_model: Path) -> None:
    with reserved_port() as (port, _), traced(any_model, f"http://127.0.0.1:{port}") as worker:
        first = worker.text(prompt="1 2 3 4", max_tokens=8)
        assert worker.text(prompt="1 2 3 4", max_tokens=8) == first
        assert worker.health()["status"] == "healthy"
        worker.terminate()
        assert worker.exit_code() == 0
    assert all(line["event"] for line in worker.log), "every line is a log line"
    assert [line for line in worker.log if str(line.get("logger", "")).startswith("opentelemetry")]


def test_a_collector_that_never_answers_holds_up_nothing_but_the_very_end(any_model: Path) -> None:
    with OtlpCollector(is_silent=True) as collector, traced(any_model, collector.url) as worker:
        first = worker.text(prompt="1 2 3 4", max_tokens=8)
        collector.wait_until_asked()
        assert worker.text(prompt="1 2 3 4", max_tokens=8) == first
        eventually(worker.is_idle)
        worker.terminate()
        assert worker.exit_code() == 0, f"though spans were left for {FLUSH_S} s"


# ── what prevents a start ────────────────────────────────────────────────────────────────────────


WITHOUT = "import sys; sys.modules['opentelemetry'] = None; from worker.__main__ import main; main()"


@pytest.mark.parametrize(
    ("command", "variables", "says"),
    [
        (("-c", WITHOUT), {}, "pip install -e '.[otel]'"),
        (
            ("-m", "worker"),
            {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"},
            "OTEL_EXPORTER_OTLP_PROTOCOL='grpc' is not supported",
        ),
        (("-m", "worker"), {"OTEL_BSP_MAX_QUEUE_SIZE": "-1"}, "max_queue_size"),
    ],
)
def test_traces_that_cannot_be_sent_are_one_line_before_anything_starts(
    command: tuple[str, ...], variables: dict[str, str], says: str
) -> None:
    found = subprocess.run(
        [sys.executable, *command, "--model", "no-such-model"],
        env={**own_environment(), "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318", **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (found.returncode, found.stdout, found.stderr.count("\n")) == (2, "", 1), found.stderr
    assert says in found.stderr


def test_nothing_of_opentelemetry_is_loaded_unless_a_setting_asks_for_it() -> None:
    script = "import sys, worker.serve, worker.cli; print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert [name for name in found.stdout.split() if name.startswith("opentelemetry")] == []
