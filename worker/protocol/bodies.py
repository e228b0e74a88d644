"""Bodies out: every JSON answer that is not a stream, and the ready callback (docs/protocol.md 2, 3 and 4).

Owns: keys and their order, which is the order of the fields below, and the annotations from which msgspec makes the
OpenAPI document. Refuses to know: where the figures come from, which rules a request breaks, HTTP. Pure; runs on the
front's event loop. A struct becomes bytes with `msgspec.json.encode`.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec

from worker.errors import InvalidRequest, WorkerError
from worker.wire.messages import Overflow, Violation

MAX_ERRORS = 64
"""How many errors are reported of one field. A body of 2 MiB has room for 700,000 stops, and an answer about each of
them would be 60 MB."""

CAPABILITIES = ("text-gen",)
PROTOCOL = "sse"
WORKER_TYPE = "llamacpp"

State = Literal["starting", "ready", "restarting", "draining", "failed"]
ReadyState = Literal["loading", "idle", "busy", "draining", "error"]
ParityVerdict = Literal["pass", "fail", "not run"]


def doc(description: str, **bounds: Any) -> msgspec.Meta:
    """A field's description for the OpenAPI document. The bounds only stand there: breaking one is a 400, not a 422."""
    return msgspec.Meta(description=description, extra_json_schema=bounds or None)


U64_MAX = 2**64 - 1

Count = Annotated[int, msgspec.Meta(ge=0)]
U64 = Annotated[int, msgspec.Meta(ge=0, extra_json_schema={"maximum": U64_MAX})]
"""msgspec's own bounds end at 2**63 - 1."""
Moment = Annotated[str, msgspec.Meta(extra_json_schema={"format": "date-time"})]
"""RFC 3339."""


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


class FieldError(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One broken rule."""

    field: str
    constraint: Annotated[
        str, doc("The rule: `range(0.0..=2.0)`, `non_empty`, `max_count(4)`, `context_length(4096)`.")
    ]
    message: str
    value: Annotated[
        str | msgspec.UnsetType,
        doc("What was sent, as text; never a prompt, a stop, a grammar, a schema or a regular expression."),
    ] = msgspec.UNSET


class FieldsRefused(InvalidRequest):
    """Fields of a request break rules. The answer is a 400 with all of them at once (`encode_violations`)."""

    wording = "{}"

    def __init__(self, errors: list[FieldError], overflow: Overflow | None = None) -> None:
        """`overflow`: the numbers of the first error, where a prompt has too many tokens."""
        super().__init__("; ".join(error.message for error in errors))
        self.errors = errors
        self.overflow = overflow

    @property
    def reason(self) -> str:
        """Fields and kinds of rules: `max_tokens: range, stop: max_count`. A rule's number may be the client's."""
        broken = (f"{error.field}: {error.constraint.partition('(')[0]}" for error in self.errors)
        return ", ".join(dict.fromkeys(broken))


class FieldErrors(msgspec.Struct, frozen=True):
    """All broken rules of a request, in the order of its fields."""

    errors: Annotated[list[FieldError], msgspec.Meta(min_length=1)]


def field_error(violation: Violation) -> FieldError:
    """A rule that only the engine could check: context_length(N), max_tokens_in(K), what a constraint says."""
    return FieldError(field=violation.field, constraint=violation.constraint, message=violation.message)


def refused_by_engine(violations: Sequence[Violation]) -> FieldsRefused:
    """The refusal of a job or a question with all that the engine found, at least one."""
    return FieldsRefused([field_error(violation) for violation in violations], violations[0].overflow)


def encode_violations(errors: list[FieldError]) -> bytes:
    """The body of the 400: `{"errors":[…]}`."""
    return msgspec.json.encode(FieldErrors(errors))


class ParityBody(_Body, frozen=True, kw_only=True):
    """What a parity run found out about the model file, as `--parity-report` says."""

    model_sha256: str
    verdict: ParityVerdict
    levels: dict[str, ParityVerdict]
    date: Moment
    run_id: str
    bounds: Annotated[str, doc("`built in`, or the name of the file that was laid over them.")]
    covers: Annotated[
        Literal["exact", "differs"],
        doc("Whether it was made of this model file, with all that decides the numbers of the engine of the moment."),
    ]
    differences: Annotated[
        tuple[str, ...],
        doc("What is not the same, each with its name first: `cache_type_k: q4_0 here, bf16 in the report`."),
    ]


class PrefixCacheBody(_Body, frozen=True, kw_only=True):
    """What ended jobs have computed and later prompts may begin with; it lies in main memory."""

    tokens: Count
    bytes: Count
    limit_bytes: Annotated[Count, doc("0: nothing is kept.")]
    off_because: Annotated[str | None, doc("Why nothing is, and where something can be done about it, what.")]
    restored_tokens: Annotated[Count, doc("What this engine has found of engines and workers before it.")]
    restored_bytes: Count


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


class DraftModelBody(_Body, frozen=True, kw_only=True):
    """The model of `--draft-model`, whose guesses the model checks."""

    name: str
    quant_kind: str
    device: Annotated[str, doc("Such as `cpu:0` or `cuda:1`.")]
    memory_bytes: Annotated[Count, doc("What is on the model's device is part of the worker's `memory_bytes`, too.")]


class AmxBody(_Body, frozen=True, kw_only=True):
    """Intel's AMX, whose instructions multiply tiles of two matrices."""

    processor: Annotated[bool, doc("The processor has it.")]
    build: Annotated[bool, doc("llama.cpp was compiled with it, and the system lets it be used.")]
    tile_bytes: Annotated[Count, doc("Weights that lie in tiles; 0 also where all of them are on a GPU.")]


class BatchInvariantBody(_Body, frozen=True, kw_only=True):
    """True if a job's numbers are computed so that they do not depend on the jobs beside it."""

    kept: Annotated[bool, doc("True if they are. `determinism` says what the self-test found of it.")]
    why: Annotated[str, doc("The flag that asks for it or against it, or what `auto` went by.")]


class HealthBody(_Body, frozen=True, kw_only=True):
    """`GET /health`. What is not known before a model is loaded is null until then; memory is in bytes."""

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
    deterministic: Annotated[bool, doc("True if the worker runs with `--deterministic`.")]
    determinism: Annotated[
        Literal["untested", "same", "differs"],
        doc("`same` if the self-test found the same logits for a job, bit for bit, alone and in a batch with others."),
    ]
    determinism_differences: Annotated[tuple[str, ...], doc("What gave other bits: `beside 7 others`.")]
    determinism_tried: Annotated[TriedBody | None, doc("What the verdict is about; null before there is one.")]
    draft_model: Annotated[DraftModelBody | None, doc("By `--draft-model`; null without one.")]
    amx: AmxBody | None
    batch_invariant: Annotated[
        BatchInvariantBody | None, doc("By `--batch-invariant`; null until the model is loaded.")
    ]
    attention: Annotated[
        Literal["gpu", "cpu", "both"] | None,
        doc("Where attention is computed: of all layers on one, or `both`; null for a model without KV cells."),
    ]


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
    """A whole number of seconds is written without a fraction, as legacy clients expect it."""
    return ShutdownBody(timeout_seconds=int(timeout_s) if timeout_s == int(timeout_s) else timeout_s)


class LegacyReadyCallback(_Body, frozen=True, kw_only=True):
    """The callback that receivers of October 2025 compare byte for byte."""

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
