"""Bodies out: every JSON answer that is not a stream, and the ready callback (docs/protocol.md 2 and 3).

Owns: keys and their order, which is the order of the fields below. Refuses to know: where the figures come from,
HTTP. Pure; runs on the front's event loop. A struct becomes bytes with `msgspec.json.encode`.
"""

from typing import Annotated, Literal

import msgspec

from worker.errors import WorkerError
from worker.protocol.documented import Count, Moment, doc

CAPABILITIES = ("text-gen",)
PROTOCOL = "sse"
WORKER_TYPE = "llamacpp"

State = Literal["starting", "ready", "restarting", "draining", "failed"]
ReadyState = Literal["loading", "idle", "busy", "draining", "error"]
Verdict = Literal["pass", "fail", "not run"]


class _Body(msgspec.Struct, frozen=True, kw_only=True):
    """Base of every body."""


class ErrorBody(_Body, frozen=True, kw_only=True):
    """An error outside a stream."""

    code: str
    message: Annotated[str, doc("One line for a person; its wording is not part of the contract.")]
    retriable: Annotated[bool, doc("Whether the same request may succeed on this worker later, or on another one.")]


def encode_error(error: WorkerError) -> bytes:
    """The body of an error outside a stream."""
    return msgspec.json.encode(ErrorBody(code=error.code, message=str(error), retriable=error.retriable))


class ParityBody(_Body, frozen=True, kw_only=True):
    """What a parity run found out about the model file, by `--parity-report`."""

    model_sha256: str
    verdict: Verdict
    levels: dict[str, Verdict]
    date: Moment
    run_id: str
    bounds: Annotated[str, doc("`built in`, or the name of the file that was laid over them.")]


class PrefixCacheBody(_Body, frozen=True, kw_only=True):
    """What ended jobs computed and later prompts may begin with, in main memory."""

    tokens: Count
    bytes: Count
    limit_bytes: Annotated[Count, doc("0: nothing is kept.")]
    off_because: Annotated[str | None, doc("Why nothing is, and where something can be done about it, what.")]


class TriedBody(_Body, frozen=True, kw_only=True):
    """What the self-test compared with the same tokens computed alone."""

    prompts: Count
    widths: Annotated[tuple[Count, ...], doc("Rows of decode steps: how many jobs drew a token in them.")]
    ways: Annotated[
        tuple[str, ...],
        doc("Other ways to compute a prompt and the tokens after it, in the words of `determinism_differences`."),
    ]
    row_multiple: Annotated[
        Count, doc("Decode steps are filled up to a multiple of so many rows; above 1 with `--deterministic` only.")
    ]
    most_rows: Annotated[
        Count, doc("Rows that are decoded at once; 0: all of a step. Above 0 with `--deterministic` only.")
    ]


class HealthBody(_Body, frozen=True, kw_only=True):
    """`GET /health`. What only a loaded model tells is null until then; memory in bytes."""

    status: Literal["healthy", "unhealthy"]
    vram_bytes: Count
    worker_id: str
    state: State
    model: str | None
    model_ref: str
    quant_kind: str | None
    resident: Annotated[bool, doc("Every layer is where it was asked to be; on a GPU looked at again every minute.")]
    vram_bytes_used: Count
    memory_bytes: Count
    tokenizer_kind: str | None
    vocab_size: int | None
    context_length: Annotated[int | None, doc("Tokens one job may use.")]
    capabilities: tuple[str, ...] = CAPABILITIES
    protocol: str = PROTOCOL
    uptime_seconds: Count
    slots_total: Count
    slots_busy: Count
    queue_depth: Count
    parity: ParityBody | None
    prefill_chunk: Annotated[
        int | None, doc("Tokens of a prompt that are computed in one step while other jobs generate.")
    ]
    prefix_cache: PrefixCacheBody
    deterministic: Annotated[bool, doc("By `--deterministic`.")]
    determinism: Annotated[
        Literal["untested", "same", "differs"],
        doc("Whether this engine's self-test found the same logits for the same tokens, bit for bit, in any company."),
    ]
    determinism_differences: Annotated[tuple[str, ...], doc("What gave other bits: `beside 7 others`.")]
    determinism_tried: Annotated[TriedBody | None, doc("What the verdict is about; null before there is one.")]


class ReadyBody(_Body, frozen=True, kw_only=True):
    """`GET /v1/ready`."""

    ready: bool
    state: ReadyState
    model_loaded: bool


class CancelBody(_Body, frozen=True, kw_only=True):
    """The 202 to a cancel, also of an unknown job."""

    status: Literal["cancelling"] = "cancelling"
    job_id: str


class ShutdownBody(_Body, frozen=True, kw_only=True):
    """The 202 to a shutdown."""

    status: Literal["shutting_down"] = "shutting_down"
    timeout_seconds: Annotated[int | float, doc("How long accepted jobs may go on.", minimum=0)]


def shutdown_body(timeout_s: float) -> ShutdownBody:
    """A whole number of seconds is written without a fraction, as legacy clients know it."""
    return ShutdownBody(timeout_seconds=int(timeout_s) if timeout_s == int(timeout_s) else timeout_s)


class LegacyReadyCallback(_Body, frozen=True, kw_only=True):
    """What receivers of October 2025 compare byte for byte."""

    worker_id: str
    vram_bytes: int
    uri: str


class ReadyCallback(LegacyReadyCallback, frozen=True, kw_only=True):
    model_ref: str
    memory_bytes: int
    memory_architecture: Literal["vram-only", "unified", "host"]
    url: str
    """The same as `uri`, under its later name."""
    backend: Literal["cpu", "cuda", "metal", "vulkan"]
    device: int
    """Index; 0 on a CPU."""
    worker_type: str = WORKER_TYPE
    capabilities: tuple[str, ...] = CAPABILITIES
    protocol: str = PROTOCOL
