"""Bodies out: every JSON answer that is not a stream, and the ready callback (docs/protocol.md 2 and 3).

Owns: keys and their order, which is the order of the fields below. Refuses to know: where the figures come from,
HTTP. Pure; runs on the front's event loop. A struct becomes bytes with `msgspec.json.encode`.
"""

from typing import Literal

import msgspec

from worker.errors import WorkerError

CAPABILITIES = ("text-gen",)
PROTOCOL = "sse"
WORKER_TYPE = "llamacpp"


class _Body(msgspec.Struct, frozen=True, kw_only=True):
    """Base of every body."""


class ErrorBody(_Body, frozen=True, kw_only=True):
    code: str
    message: str
    retriable: bool


def encode_error(error: WorkerError) -> bytes:
    """The body of an error outside a stream."""
    return msgspec.json.encode(ErrorBody(code=error.code, message=str(error), retriable=error.retriable))


class ParityBody(_Body, frozen=True, kw_only=True):
    """What a parity run found out about the model file, by `--parity-report`."""

    model_sha256: str
    verdict: str
    levels: dict[str, str]
    """level → pass, fail or not run"""
    date: str
    """RFC 3339."""
    run_id: str
    bounds: str
    """`built in`, or the name of the file that was laid over them."""


class PrefixCacheBody(_Body, frozen=True, kw_only=True):
    """What ended jobs computed and later prompts may begin with, in main memory."""

    tokens: int
    bytes: int
    limit_bytes: int
    """0: nothing is kept."""
    off_because: str | None
    """Why nothing is, and where something can be done about it, what."""


class HealthBody(_Body, frozen=True, kw_only=True):
    """`GET /health`. What only a loaded model tells is null until then; memory in bytes."""

    status: Literal["healthy", "unhealthy"]
    vram_bytes: int
    worker_id: str
    state: str
    model: str | None
    model_ref: str
    quant_kind: str | None
    resident: bool
    """Every layer is where it was asked to be; on a GPU looked at again every minute."""
    vram_bytes_used: int
    memory_bytes: int
    tokenizer_kind: str | None
    vocab_size: int | None
    context_length: int | None
    """Tokens one job may use."""
    capabilities: tuple[str, ...] = CAPABILITIES
    protocol: str = PROTOCOL
    uptime_seconds: int
    slots_total: int
    slots_busy: int
    queue_depth: int
    parity: ParityBody | None
    prefill_chunk: int | None
    """Tokens of a prompt that are computed in one step while other jobs generate."""
    prefix_cache: PrefixCacheBody
    deterministic: bool
    """By `--deterministic`."""
    determinism: Literal["untested", "same", "differs"]
    """What this engine's self-test found: whether the same tokens give the same logits, bit for bit, in any company."""
    determinism_differences: tuple[str, ...]
    """What gave other bits: `beside 7 others`."""


class ReadyBody(_Body, frozen=True, kw_only=True):
    """`GET /v1/ready`."""

    ready: bool
    state: str
    """loading | idle | busy | draining | error"""
    model_loaded: bool


class CancelBody(_Body, frozen=True, kw_only=True):
    """The 202 to a cancel, also of an unknown job."""

    status: Literal["cancelling"] = "cancelling"
    job_id: str


class ShutdownBody(_Body, frozen=True, kw_only=True):
    """The 202 to a shutdown."""

    status: Literal["shutting_down"] = "shutting_down"
    timeout_seconds: int | float


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
