"""The routes of docs/protocol.md 3: decode, call the front, encode. No rule of the worker's own lives here.

Runs on the front's event loop; nothing here waits but for the client.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import msgspec
from litestar import Litestar, Response, Router, get, post
from litestar.exceptions import HTTPException, MethodNotAllowedException
from litestar.openapi import OpenAPIConfig
from litestar.openapi.plugins import JsonRenderPlugin
from litestar.openapi.spec import OpenAPIMediaType, Operation, RequestBody, Schema
from litestar.response.base import ASGIResponse
from litestar.types import ASGIApp

from worker import __version__
from worker.errors import InternalError, WorkerBusy, WorkerError, WorkerLoading
from worker.front import Front
from worker.logs import get_logger
from worker.phase import Phase
from worker.protocol.bodies import CancelBody, encode_error, shutdown_body
from worker.protocol.events import choose_dialect
from worker.protocol.field_errors import FieldsRefused, encode_violations
from worker.protocol.headers import is_json_content_type
from worker.protocol.request import BodyRejected, ExecuteRequest, parse_cancel, parse_execute
from worker.protocol.request_schema import request_schema
from worker.protocol.rules import violations
from worker.web.bodies import AnyRequest, Bodies
from worker.web.connection import has_too_many, is_crowded
from worker.web.edge import Edge
from worker.web.exchange import note_refusal
from worker.web.streaming import JobStream

log = get_logger()

Decoded = TypeVar("Decoded")
Failure = TypeVar("Failure", bound=Exception)

_TEXT = "text/plain"
_STREAM = (
    "The job's events: `started`, then `token` and `metrics`, at last `end` or `error`. A `token` event is "
    '{"type":"token","t":TEXT,"i":INDEX}. For a request with `logprobs` it ends in "logprobs", a list with one entry '
    'per sampled token it covers: {"token","id","logprob","top":[{"token","id","logprob"}]}, natural logarithms under '
    "the softmax of the raw logits, the most probable first in `top`. Tokens without text come with the next that has."
)


def create_app(front: Front) -> ASGIApp:
    """The whole HTTP side of the worker as one ASGI application."""
    bodies = Bodies(front.settings.max_body_bytes)
    app = Litestar(
        route_handlers=[*_state_routes(front), _execute_route(front, bodies), *_control_routes(front, bodies)],
        exception_handlers={
            WorkerError: _noting(render_error),
            HTTPException: _noting(_render_http_error),
            Exception: _noting(_render_unexpected),
        },
        openapi_config=OpenAPIConfig(
            title="llorch-worker",
            version=__version__,
            render_plugins=[JsonRenderPlugin()],
            openapi_router=Router("/openapi", route_handlers=[], include_in_schema=False, after_request=_without_page),
        ),
        request_max_body_size=front.settings.max_body_bytes,
        logging_config=None,
    )
    return Edge(app, front.settings, front.metrics)


# ── routes ───────────────────────────────────────────────────────────────────────────────────────


def _state_routes(front: Front) -> list[Any]:
    @get(["/health", "/v1/health"], sync_to_thread=False)
    def health() -> Response[bytes]:
        """Cached state; 503 only before the first ready."""
        return _json(front.health(), 503 if front.phase is Phase.STARTING else 200)

    @get("/v1/ready", sync_to_thread=False)
    def ready() -> Response[bytes]:
        return _json(front.readiness())

    @get("/readyz", sync_to_thread=False)
    def readyz() -> Response[bytes]:
        """Ready to take jobs; ignores the length of the queue."""
        return _text("ready" if front.phase is Phase.READY else "not ready", 200 if front.phase is Phase.READY else 503)

    @get("/livez", sync_to_thread=False)
    def livez() -> Response[bytes]:
        """The front's own loop turns; a worker about to exit is not alive."""
        is_live = front.phase is not Phase.FAILED
        return _text("alive" if is_live else "failed", 200 if is_live else 503)

    @get("/metrics", sync_to_thread=False)
    def metrics(request: AnyRequest) -> Response[bytes]:
        body, content_type = front.scrape(request.headers.get("accept"))
        return Response(body, headers={"content-type": content_type})

    return [health, ready, readyz, livez, metrics]


def _execute_operation(max_prompt_chars: int) -> type[Operation]:
    """The request body is decoded by protocol/, so the schema is stated here. Litestar wants a class."""
    body = Schema(**request_schema(max_prompt_chars=max_prompt_chars))

    @dataclass  # Operation is one, and has no __post_init__ to override
    class ExecuteOperation(Operation):
        def __post_init__(self) -> None:
            self.request_body = RequestBody(content={"application/json": OpenAPIMediaType(schema=body)}, required=True)

    return ExecuteOperation


def _execute_route(front: Front, bodies: Bodies) -> Any:
    operation = _execute_operation(front.settings.max_prompt_chars)

    @post("/execute", status_code=200, operation_class=operation, response_description=_STREAM)
    async def execute(request: AnyRequest) -> ASGIResponse:
        """Stream a job's tokens as server-sent events, or as JSON lines where Accept asks for them."""
        try:
            if has_too_many(request.scope):
                raise WorkerBusy("too many requests come from this address; try again later", retry_after_s=1)
            asked = await _decoded(request, bodies, partial(_read_execute, front=front))
            job = front.open_job(
                asked,
                choose_dialect(request.headers.get("accept"), sse_event_names=front.settings.sse_event_names),
                request.headers.get("x-deadline"),
                request.scope["state"]["correlation_id"],
                is_crowded=is_crowded(request.scope),
            )
        except (WorkerError, HTTPException):
            front.metrics.rejected()
            raise
        return JobStream(front, job, render_error)

    return execute


def _read_execute(body: bytearray, front: Front) -> ExecuteRequest:
    """Raises: BodyRejected, FieldsRefused."""
    request = parse_execute(body)
    vocab_size = front.facts.vocab_size if front.facts is not None else None
    settings = front.settings
    broken = violations(request, settings.max_tokens_out, vocab_size, max_prompt_chars=settings.max_prompt_chars)
    if broken:
        raise FieldsRefused(broken)
    return request


def _control_routes(front: Front, bodies: Bodies) -> list[Any]:
    @post("/cancel", status_code=202)
    async def cancel(request: AnyRequest) -> Response[bytes]:
        """End a job; idempotent, also for unknown ids."""
        return _cancel(front, (await _decoded(request, bodies, parse_cancel)).job_id)

    @post("/cancel/{job_id:str}", status_code=202, sync_to_thread=False)
    def cancel_by_path(job_id: str) -> Response[bytes]:
        return _cancel(front, job_id)

    @post(["/shutdown", "/v1/shutdown", "/v1/admin/shutdown"], status_code=202, sync_to_thread=False)
    def shutdown() -> Response[bytes]:
        """Drain and exit, as SIGTERM does."""
        front.drain_requested.set()
        front.drain()
        return _json(shutdown_body(front.settings.shutdown_timeout_sec), 202)

    return [cancel, cancel_by_path, shutdown]


def _cancel(front: Front, job_id: str) -> Response[bytes]:
    front.cancel(job_id)
    return _json(CancelBody(job_id=job_id), 202)


async def _decoded(request: AnyRequest, bodies: Bodies, read: Callable[[bytearray], Decoded]) -> Decoded:
    """Raises: HTTPException 415, 413, WorkerBusy before and while the body is read; then what `read` raises."""
    if not is_json_content_type(request.headers.get("content-type")):
        raise HTTPException(status_code=415, detail="Expected request with `Content-Type: application/json`")
    async with bodies.received(request) as body:
        return await bodies.decode(read, body)


def _without_page(response: Response[Any]) -> Response[Any]:
    """Litestar has a page for unknown paths below its OpenAPI document; ours are empty everywhere."""
    return Response(b"", status_code=404, media_type=_TEXT) if response.status_code == 404 else response


# ── answers ──────────────────────────────────────────────────────────────────────────────────────


def _noting(render: Callable[[Failure], Response[bytes]]) -> Callable[[AnyRequest, Failure], Response[bytes]]:
    """An exception handler for Litestar whose refusals the log and the counters hear of."""

    def handle(request: AnyRequest, error: Failure) -> Response[bytes]:
        note_refusal(request.scope, error)
        return render(error)

    return handle


def render_error(error: Exception) -> Response[bytes]:
    """A WorkerError as docs/protocol.md 3 words it."""
    match error:
        case BodyRejected():
            return _text(str(error), error.http_status)
        case FieldsRefused(errors=errors):
            return _json_bytes(encode_violations(errors), error.http_status)
        case WorkerBusy() | WorkerLoading():
            return _json_bytes(encode_error(error), error.http_status, {"retry-after": str(error.retry_after_s)})
        case WorkerError():
            return _json_bytes(encode_error(error), error.http_status)
        case _:
            return _render_unexpected(error)


def _render_http_error(error: HTTPException) -> Response[bytes]:
    """What Litestar itself refuses: unknown paths, methods, and bodies too large."""
    match error:
        case MethodNotAllowedException():
            offered = (error.headers or {}).get("allow", "").split(", ")
            allowed = "GET,HEAD" if "GET" in offered else "POST"
            return Response(b"", status_code=405, media_type=_TEXT, headers={"allow": allowed})
        case HTTPException(status_code=413):
            return _text("Failed to buffer the request body: length limit exceeded", 413)
        case HTTPException(status_code=404):
            return Response(b"", status_code=404, media_type=_TEXT)
        case _:
            return _text(error.detail, error.status_code)


def _render_unexpected(error: Exception) -> Response[bytes]:
    log.error("error", code=InternalError.code, exc_info=error)
    return _json_bytes(encode_error(InternalError("the request could not be answered; the log has the cause")), 500)


def _json(body: msgspec.Struct, status: int = 200) -> Response[bytes]:
    return _json_bytes(msgspec.json.encode(body), status)


def _json_bytes(body: bytes, status: int, headers: dict[str, str] | None = None) -> Response[bytes]:
    return Response(body, status_code=status, media_type="application/json", headers=headers)


def _text(body: str, status: int) -> Response[bytes]:
    return Response(body.encode(), status_code=status, media_type=_TEXT)
