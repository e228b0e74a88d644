"""The descriptions of the routes in the OpenAPI document: bodies, statuses, headers, examples. The router has the
paths.

Owns no field of any body: the fields are in the structs that are encoded and decoded, and examples are made with them.
Refuses to know: HTTP frameworks, settings. Pure.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from worker.errors import (
    DeadlineExceeded,
    DuplicateJob,
    Forbidden,
    InternalError,
    InvalidRequest,
    Unauthorized,
    WorkerBusy,
    WorkerDraining,
    WorkerError,
    WorkerLoading,
    WorkerUnhealthy,
    WrongHost,
)
from worker.protocol.bodies import (
    AmxBody,
    CancelBody,
    DraftsBody,
    FieldErrors,
    HealthBody,
    PrefixCacheBody,
    ReadyBody,
    TriedBody,
    encode_error,
    shutdown_body,
)
from worker.protocol.events import (
    JSON_LINES_TYPES,
    SSE_TYPE,
    EndEvent,
    ErrorEvent,
    Event,
    MetricsEvent,
    StartedEvent,
    TokenEvent,
)
from worker.protocol.execute import CancelRequest, ExecuteRequest, MalformedJson, WrongShape
from worker.protocol.rules import violations
from worker.wire.encoding import encode_json

JSON = "application/json"
TEXT = "text/plain"
PROMETHEUS_TYPES = (TEXT, "application/openmetrics-text")

Tag = Literal["state", "jobs", "openai", "life"]

TAGS: dict[Tag, str] = {
    "state": "State of the worker. The front process answers these routes without waiting for the engine.",
    "jobs": "Generate text, and cancel jobs.",
    "openai": "API for clients of OpenAI, vLLM and llama-server. Its requests become the same jobs in the same queue.",
    "life": "Shut the worker down.",
}

HEADERS: dict[str, dict[str, Any]] = {
    "X-Correlation-ID": {
        "description": "The request's id if it had the form of a UUID, else a fresh UUIDv4; also in the log.",
        "required": True,
        "schema": {"type": "string", "format": "uuid"},
    },
    "Retry-After": {
        "description": "Seconds to wait. Sent with WORKER_BUSY (from measured throughput) and WORKER_LOADING.",
        "schema": {"type": "integer", "minimum": 0},
    },
    "WWW-Authenticate": {"required": True, "schema": {"type": "string", "const": "Bearer"}},
    # A path with both would need a third value here.
    "Allow": {"required": True, "schema": {"type": "string", "enum": ["GET,HEAD", "POST"]}},
    "Cache-Control": {"required": True, "schema": {"type": "string", "const": "no-cache"}},
    "X-Request-Id": {
        "description": "The request's X-Request-Id if it had one; else the job's id, which `POST /cancel` takes; else "
        "the X-Correlation-ID.",
        "required": True,
        "schema": {"type": "string"},
    },
    "X-Ignored-Fields": {
        "description": "Fields of the request that have no effect, if there are any.",
        "schema": {"type": "string"},
    },
    "X-Ignored-Tools": {
        "description": "Tools of the request that the worker does not have, if there are any.",
        "schema": {"type": "string"},
    },
    "X-Accel-Buffering": {
        "description": "Prevents nginx from buffering the stream.",
        "required": True,
        "schema": {"type": "string", "const": "no"},
    },
}
"""The headers of answers, by name; the two ids are on every answer."""


@dataclass(frozen=True, slots=True)
class ErrorOf:
    """An ErrorBody with one of these codes."""

    codes: tuple[str, ...]


class ServerSentEvent:
    """A frame of a stream: an Event in its `data`."""


class ServerSentChunk:
    """A frame of a `/v1` stream: a chunk as JSON in its `data`, or `[DONE]`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """The content of an answer in one media type: one of `shapes`, which are types and ErrorOf, with examples by
    name."""

    shapes: tuple[Any, ...]
    examples: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Answer:
    """One status of a route."""

    description: str
    content: Mapping[str, Content] = field(default_factory=dict)
    headers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One route, without the answers that all routes have in common (EVERYWHERE)."""

    summary: str
    tag: Tag
    answers: Mapping[int, Answer]
    description: str = ""
    body: type[msgspec.Struct] | None = None
    body_rules: Mapping[str, Any] = field(default_factory=dict)
    """Keywords of JSON Schema that concern several fields of the body."""
    body_examples: Mapping[str, Any] = field(default_factory=dict)
    takes_deadline: bool = False


def error_answer(description: str, *errors: WorkerError, headers: tuple[str, ...] = ()) -> Answer:
    """The answer of one status, with its errors as examples."""
    examples = {error.code: msgspec.json.decode(encode_error(error)) for error in errors}
    return Answer(description, {JSON: Content(shapes=(ErrorOf(tuple(examples)),), examples=examples)}, headers)


def _json(description: str, example: msgspec.Struct) -> Answer:
    shown = {"example": msgspec.to_builtins(example)}
    return Answer(description, {JSON: Content(shapes=(type(example),), examples=shown)})


def _text(description: str, example: str | None = None) -> Answer:
    shown = {} if example is None else {"example": example}
    return Answer(description, {TEXT: Content(shapes=(str,), examples=shown)})


NOT_NOW = (
    WorkerBusy("8 jobs are running and 256 waiting; try again later", retry_after_s=3),
    WorkerLoading("the model is still loading", retry_after_s=5),
    WorkerDraining("the worker is shutting down and takes no new jobs"),
    WorkerUnhealthy("the engine could not be kept alive"),
)
"""The refusals that depend on the state of the worker or of its queue, the same for `/execute` and `/v1`."""

# ── what all have in common ──────────────────────────────────────────────────────────────────────


def common_errors(answer_of: Callable[..., Answer]) -> dict[int, Answer]:
    """The errors of all routes in the shape that `answer_of` makes, as `error_answer` does."""
    no_token = Unauthorized("this route needs the header 'Authorization: Bearer <token>' with the right token")
    why = "The worker requires a token (`--api-key`), and the request has no valid one."
    return {
        401: answer_of(why, no_token, headers=("WWW-Authenticate",)),
        403: answer_of("A page of another origin asks a worker without a token.", Forbidden("'http://a.example'")),
        421: answer_of("The host is not known to be this worker, which has no token.", WrongHost("'a.example'")),
        500: answer_of("Internal error of the worker.", InternalError("the request could not be answered")),
    }


EVERYWHERE: dict[int, Answer] = {
    405: Answer("The route does not support this method. HEAD works if GET does.", headers=("Allow",)),
    **common_errors(error_answer),
}

_JSON_BODY: dict[int, Answer] = {
    400: _text("The body is not JSON.", str(MalformedJson("JSON is malformed: expected '}' (byte 17)"))),
    413: _text("The body or its content-length exceeds the limit: 2 MiB, more with a larger `--max-prompt-chars`."),
    415: _text("The content type is not application/json or application/*+json."),
    422: _text(
        "The body is JSON, but a field is missing, repeated or of the wrong type.",
        str(WrongShape("missing field `job_id`")),
    ),
}
"""The refusals of a JSON body before its fields are checked."""

# ── state ────────────────────────────────────────────────────────────────────────────────────────

_LOADING = HealthBody(
    status="unhealthy",
    vram_bytes=0,
    worker_id="worker-1",
    state="starting",
    model=None,
    model_ref="smollm2-135m-instruct",
    quant_kind=None,
    resident=False,
    vram_bytes_used=0,
    memory_bytes=0,
    tokenizer_kind=None,
    vocab_size=None,
    context_length=None,
    uptime_seconds=1,
    slots_total=0,
    slots_busy=0,
    queue_depth=0,
    parity=None,
    prefill_chunk=None,
    prefix_cache=PrefixCacheBody(
        tokens=0, bytes=0, limit_bytes=0, off_because=None, restored_tokens=0, restored_bytes=0
    ),
    deterministic=False,
    determinism="untested",
    determinism_differences=(),
    determinism_tried=None,
    drafts=None,
    draft_model=None,
    amx=None,
    batch_invariant=None,
    kernels=None,
    attention=None,
)
_IDLE = msgspec.structs.replace(
    _LOADING,
    status="healthy",
    state="ready",
    model="SmolLM2 135M Instruct",
    quant_kind="Q4_1",
    resident=True,
    memory_bytes=513_802_240,
    tokenizer_kind="gguf-bpe",
    vocab_size=49_152,
    context_length=8192,
    uptime_seconds=60,
    slots_total=8,
    prefill_chunk=128,
    prefix_cache=PrefixCacheBody(
        tokens=812,
        bytes=18_710_528,
        limit_bytes=377_487_360,
        off_because=None,
        restored_tokens=0,
        restored_bytes=0,
    ),
    determinism="same",
    determinism_tried=TriedBody(
        prompts=5,
        widths=(1, 2, 3, 4, 5, 6, 7, 8),
        ways=("in one step", "in small chunks", "beside 7 others"),
        row_multiple=1,
        most_rows=0,
    ),
    drafts=DraftsBody(off_because=None),
    amx=AmxBody(processor=True, build=True, tile_bytes=73_400_320),
    attention="cpu",
)

HEALTH = Operation(
    summary="Show the worker's state, model and load",
    tag="state",
    answers={
        200: _json("Always once the model was loaded for the first time; see the field `status`.", _IDLE),
        503: _json("The model is being loaded for the first time.", _LOADING),
    },
)
READY = Operation(
    summary="Show whether the worker takes jobs and how busy it is",
    tag="state",
    answers={200: _json("Always 200; see the field `ready`.", ReadyBody(ready=True, state="idle", model_loaded=True))},
)
READYZ = Operation(
    summary="Readiness probe: ignores the length of the queue",
    tag="state",
    answers={200: _text("The worker takes jobs.", "ready"), 503: _text("The worker takes no jobs now.", "not ready")},
)
LIVEZ = Operation(
    summary="Liveness probe: the front process responds",
    tag="state",
    answers={
        200: _text("The worker is alive, with or without a model.", "alive"),
        503: _text("The worker is about to exit.", "failed"),
    },
)
METRICS = Operation(
    summary="Prometheus metrics",
    tag="state",
    description="The format is OpenMetrics if `Accept` prefers it.",
    answers={
        200: Answer("Every series exists from the start.", {name: Content(shapes=(str,)) for name in PROMETHEUS_TYPES})
    },
)

# ── jobs ─────────────────────────────────────────────────────────────────────────────────────────

_REQUEST = {"job_id": "job-1", "prompt": "The capital of France is", "max_tokens": 16, "temperature": 0.0}
_OUT_OF_RANGE = ExecuteRequest(job_id="job-1", prompt="", max_tokens=16, temperature=3.0)

_EVENTS: tuple[msgspec.Struct, ...] = (
    StartedEvent(
        job_id="job-1",
        model="SmolLM2 135M Instruct",
        started_at="2026-01-31T12:00:00.000Z",
        seed=42,
        prompt_tokens=5,
        cached_tokens=0,
    ),
    TokenEvent(t=" Paris", i=0),
    MetricsEvent(tokens_per_sec=50.0, vram_bytes=0, job_id="job-1", tokens_out=50, decode_time_ms=1000),
    EndEvent(
        tokens_out=2,
        decode_time_ms=21,
        stop_reason="EOS",
        tokens_sampled=3,
        prompt_tokens=5,
        time_to_first_token_ms=40,
    ),
    ErrorEvent(code="CANCELLED", message="Job cancelled by client request", retriable=False),
)
_LINES = Content(
    shapes=(Event,),
    examples={str(event.__struct_config__.tag): msgspec.to_builtins(event) for event in _EVENTS},
)
_FRAMES = Content(
    shapes=(ServerSentEvent,),
    examples={str(event.__struct_config__.tag): {"data": encode_json(event).decode()} for event in _EVENTS},
)

_EXECUTE_ERRORS: dict[int, Answer] = {
    400: Answer(
        "Fields break rules: the answer lists all of them, also rules that need the tokens (`context_length(N)`). Or "
        "X-Deadline cannot be read. Or the body is not JSON; this answer is text.",
        {
            JSON: Content(
                shapes=(FieldErrors, ErrorOf((InvalidRequest.code,))),
                examples={
                    "fields": msgspec.to_builtins(
                        FieldErrors(violations(_OUT_OF_RANGE, 2048, None, max_prompt_chars=32_768))
                    ),
                    "X-Deadline": msgspec.json.decode(encode_error(InvalidRequest("X-Deadline 'soon' is not a time"))),
                },
            ),
            TEXT: _JSON_BODY[400].content[TEXT],
        },
    ),
    409: error_answer(
        "A job with this job_id is in flight.",
        DuplicateJob("a job with this job_id is in flight; wait for its terminal event or choose another id"),
    ),
    503: error_answer("The worker takes no jobs now, or its queue is full.", *NOT_NOW, headers=("Retry-After",)),
    504: error_answer(
        "X-Deadline or `--inference-timeout-sec` passed before the stream began.",
        DeadlineExceeded("X-Deadline passed"),
    ),
}

EXECUTE = Operation(
    summary="Run a job and stream its tokens",
    tag="jobs",
    description=(
        "`Accept` chooses the framing. The default is server-sent events: each event is `data: {compact JSON}` and a "
        "blank line. `application/jsonl` and `application/x-ndjson` have the same objects, one per line. The schemas "
        "describe one event. `type` is its first field: `started` comes once, then `token` and `metrics`, and the "
        "last event is exactly one `end` or `error`.\n\n"
        "Whole numbers are sent without a fraction; other numbers are held as 32-bit floats.\n\n"
        "The job ends if the client disconnects. Every refusal is sent before the stream begins."
    ),
    body=ExecuteRequest,
    body_examples={
        "greedy": _REQUEST,
        "sampled": {**_REQUEST, "temperature": 0.8, "top_p": 0.95, "seed": 42, "stop": ["\n\n"]},
        "regex": {**_REQUEST, "regex": "[A-Z][a-z]+"},
        "conversation": {
            "job_id": "job-1",
            "messages": [
                {"role": "system", "content": "You answer in one word."},
                {"role": "user", "content": "What is the capital of France?"},
            ],
            "max_tokens": 16,
        },
    },
    answers={
        200: Answer(
            "The job's events; each is the `data` of a frame, or a line.",
            # Lines come first: tools and pages show the first schema, and this one describes the events themselves.
            dict.fromkeys(JSON_LINES_TYPES, _LINES) | {SSE_TYPE: _FRAMES},
            ("Cache-Control", "X-Accel-Buffering"),
        ),
        **_JSON_BODY,
        **_EXECUTE_ERRORS,
    },
    takes_deadline=True,
)

_CANCELLING = _json("The job ends if it exists.", CancelBody(job_id="job-1"))

CANCEL = Operation(
    summary="Cancel a job",
    tag="jobs",
    description="The route is idempotent, also for unknown ids. No further `token` event is sent after the answer.",
    body=CancelRequest,
    body_examples={"job-1": msgspec.to_builtins(CancelRequest(job_id="job-1"))},
    answers={202: _CANCELLING, **_JSON_BODY},
)
CANCEL_BY_PATH = Operation(
    summary="Cancel a job by its id in the path",
    tag="jobs",
    description="The same as `POST /cancel`, without a body. Use `POST /cancel` for an id with a slash in it.",
    answers={202: _CANCELLING},
)

# ── life ─────────────────────────────────────────────────────────────────────────────────────────

SHUTDOWN = Operation(
    summary="Drain and exit, as SIGTERM does",
    tag="life",
    description=(
        "The worker refuses new jobs (WORKER_DRAINING). Accepted jobs run until they are done or the timeout has "
        "passed; then they end with CANCELLED, and another worker may retry them."
    ),
    answers={202: _json("The shutdown has begun.", shutdown_body(25))},
)
