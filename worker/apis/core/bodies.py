"""The bodies that the worker sends: every JSON answer that is not a stream, and the ready callback
(docs/protocol.md#start-up-and-callback, #http). The order of fields is that of the keys.
"""

import hashlib
import re
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec

from worker.errors import InvalidRequest, WorkerError
from worker.wire.encoding import Count, doc, encode_json
from worker.wire.jobs import U64_MAX
from worker.wire.load import Amx, BatchInvariance, DraftModelFacts, Drafts, Loaded, Tried
from worker.wire.messages import Overflow, Violation

MAX_ERRORS = 64
"""An answer reports at most this many errors for one field. A body of 2 MiB can hold 700,000 stops, and an answer with
an error for each of them would be 60 MB."""

CAPABILITIES = ("text-gen",)
PROTOCOL = "sse"
WORKER_TYPE = "llamacpp"

State = Literal["starting", "ready", "restarting", "draining", "failed"]
ReadyState = Literal["loading", "idle", "busy", "draining", "error"]
ParityVerdict = Literal["pass", "fail", "not run"]


U64 = Annotated[int, msgspec.Meta(ge=0, extra_json_schema={"maximum": U64_MAX})]
"""msgspec does not accept bounds above 2**63 - 1, so this bound is only part of the document."""
Moment = Annotated[str, msgspec.Meta(extra_json_schema={"format": "date-time"})]
"""A point in time in the format of RFC 3339."""


class ErrorBody(msgspec.Struct, frozen=True, kw_only=True):
    """An error outside a stream."""

    code: str
    message: Annotated[str, doc("One line for people; the wording may change.")]
    retriable: Annotated[bool, doc("True if the same request may succeed later, here or on another worker.")]


def encode_error(error: WorkerError) -> bytes:
    """The body of an error outside a stream."""
    return encode_json(ErrorBody(code=error.code, message=str(error), retriable=error.retriable))


class FieldError(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A rule that a field of the request breaks."""

    field: str
    constraint: Annotated[
        str, doc("The rule: `range(0.0..=2.0)`, `non_empty`, `max_count(4)`, `context_length(4096)`.")
    ]
    message: str
    value: Annotated[
        str | msgspec.UnsetType,
        doc("The value in the request, as text; never a prompt, a stop, a grammar, a schema or a regular expression."),
    ] = msgspec.UNSET


_SHAPE_ERROR = re.compile(r"(?P<what>.*?)(?: - at `\$(?P<inside>.*)`)?", re.DOTALL)
"""The form of msgspec's message for a value of a wrong type. It names our types and fields and quotes nothing of the
value."""
_MISSING = re.compile(r"Object missing required field `(\w+)`")


class FieldsRefused(InvalidRequest):
    """Fields of a request break rules. The answer is a 400 with all of them at once (`encode_violations`)."""

    wording = "{}"

    def __init__(self, errors: list[FieldError], overflow: Overflow | None = None) -> None:
        """`overflow`: the numbers of the first error, if a prompt has too many tokens."""
        super().__init__("; ".join(error.message for error in errors))
        self.errors = errors
        self.overflow = overflow

    @property
    def reason(self) -> str:
        """Fields and kinds of rules: `max_tokens: range, stop: max_count`. A rule's number may be the client's."""
        broken = (f"{error.field}: {error.constraint.partition('(')[0]}" for error in self.errors)
        return ", ".join(dict.fromkeys(broken))


class Problems:
    """Collects the broken rules of one request, in the order in which they are found."""

    def __init__(self) -> None:
        self.found: list[FieldError] = []

    @property
    def is_full(self) -> bool:
        """True if no more need be looked for."""
        return len(self.found) >= MAX_ERRORS

    def add(
        self, place: str, rule: str, text: str, *, subject: str = "", value: str | msgspec.UnsetType = msgspec.UNSET
    ) -> None:
        """Add a rule that the field breaks. The message is `text` after the field's place, or after `subject`."""
        message = f"{subject or place} {text}"
        self.found.append(FieldError(field=place, constraint=rule, message=message, value=value))

    def take(self, others: "Problems") -> None:
        """Add the first of the others, at most MAX_ERRORS."""
        self.found += others.found[:MAX_ERRORS]

    def shaped(self, place: str, value: object, kind: Any) -> Any:
        """The value as its type. If it has another type, add that and return None."""
        try:
            return msgspec.convert(value, kind)
        except msgspec.ValidationError as error:
            found = _SHAPE_ERROR.fullmatch(str(error))
            assert found is not None
            where = place + (found["inside"] or "")
            if missing := _MISSING.fullmatch(found["what"]):
                self.add(f"{where}.{missing[1]}", "required", "is missing")
            else:
                self.add(where, "type", found["what"], subject=f"{where}:")
        return None

    def check(self) -> None:
        """Raises: FieldsRefused if a rule is broken."""
        if self.found:
            raise FieldsRefused(self.found)


class FieldErrors(msgspec.Struct, frozen=True):
    """All broken rules of a request, in the order of its fields."""

    errors: Annotated[list[FieldError], msgspec.Meta(min_length=1)]


def refused_by_engine(violations: Sequence[Violation]) -> FieldsRefused:
    """The refusal of a job or a tokenize request with all errors that the engine found; there is at least one."""
    errors = [FieldError(field=one.field, constraint=one.constraint, message=one.message) for one in violations]
    return FieldsRefused(errors, violations[0].overflow)


def encode_violations(errors: list[FieldError]) -> bytes:
    """The body of the 400: `{"errors":[…]}`."""
    return encode_json(FieldErrors(errors))


class ParityBody(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a parity run for the model file, from `--parity-report`."""

    model_sha256: str
    verdict: ParityVerdict
    levels: dict[str, ParityVerdict]
    date: Moment
    run_id: str
    bounds: Annotated[str, doc("`built in`, or the name of the file that overrides them.")]
    covers: Annotated[
        Literal["exact", "differs"],
        doc("`exact` if the report is for this model file, and for all settings and versions that decide the numbers."),
    ]
    differences: Annotated[
        tuple[str, ...],
        doc("The differences, each with its name first: `cache_type_k: q4_0 here, bf16 in the report`."),
    ]


class PrefixCacheBody(msgspec.Struct, frozen=True, kw_only=True):
    """The prefix cache in main memory: KV cells of finished jobs for later prompts with the same prefix."""

    tokens: Count
    bytes: Count
    limit_bytes: Annotated[Count, doc("0: the cache is off.")]
    off_because: Annotated[str | None, doc("The reason why the cache is off, with the remedy if there is one.")]
    restored_tokens: Annotated[Count, doc("Tokens that this engine has taken over from earlier engines and workers.")]
    restored_bytes: Count
    checkpoint_bytes: Annotated[
        Count, doc("A copy of one job's recurrent state. 0: the model has none, or it cannot be copied.")
    ] = 0
    checkpoint_stride: Annotated[
        Count, doc("Tokens between two such copies within a long prompt, where later prompts can begin; else 0.")
    ] = 0


class KernelsBody(msgspec.Struct, frozen=True, kw_only=True):
    """The choice of `--kernels`. Each type of matrix has the speed of the worker's kernels over llama.cpp's, for 1, 8
    and 64 rows; the list is empty if they were not timed."""

    why: Annotated[str, doc("The reason for the choice.")]
    ours: Annotated[dict[str, tuple[float, ...]], doc("Types that the worker's own kernels multiply.")]
    stock: Annotated[dict[str, tuple[float, ...]], doc("Types that llama.cpp's multiply although the worker's could.")]


class HealthBody(msgspec.Struct, frozen=True, kw_only=True):
    """The body of `GET /health`. Facts about the model are null until it is loaded; memory is in bytes."""

    status: Literal["healthy", "unhealthy"]
    vram_bytes: Count
    worker_id: str
    state: State
    model: str | None
    model_ref: str
    quant_kind: str | None
    resident: Annotated[bool, doc("True if every layer is on the requested device; on a GPU checked every minute.")]
    vram_bytes_used: Count
    memory_bytes: Count
    tokenizer_kind: str | None
    vocab_size: int | None
    context_length: Annotated[int | None, doc("Most tokens that one job may use.")]
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
        doc(
            "`same` if a job's logits are the same, bit for bit, alone and in a batch; `untested` if that is not known."
        ),
    ]
    determinism_differences: Annotated[tuple[str, ...], doc("The reason why logits may differ.")]
    determinism_tried: Annotated[Tried | None, doc("The runs that the self-test compared; null if there was none.")]
    drafts: Annotated[Drafts | None, doc("Draft tokens; null until the model is loaded.")]
    draft_model: Annotated[DraftModelFacts | None, doc("The draft model; null without `--draft-model`.")]
    amx: Amx | None
    batch_invariant: Annotated[
        BatchInvariance | None, doc("State of `--batch-invariant`; null until the model is loaded.")
    ]
    kernels: Annotated[KernelsBody | None, doc("The kernels of matrices on a CPU; null until the model is loaded.")]
    attention: Annotated[
        Literal["gpu", "cpu", "both"] | None,
        doc("Where attention is computed: of all layers on one, or `both`; null for a model without KV cells."),
    ]


class ReadyBody(msgspec.Struct, frozen=True, kw_only=True):
    """The body of `GET /v1/ready`."""

    ready: bool
    state: ReadyState
    model_loaded: bool


class CancelBody(msgspec.Struct, frozen=True, kw_only=True):
    """The body of the 202 to a cancel, also for an unknown job."""

    status: Literal["cancelling"] = "cancelling"
    job_id: str


class ShutdownBody(msgspec.Struct, frozen=True, kw_only=True):
    """The body of the 202 to a shutdown."""

    status: Literal["shutting_down"] = "shutting_down"
    timeout_seconds: Annotated[int | float, doc("Time that accepted jobs may still run.", minimum=0)]


def shutdown_body(timeout_s: float) -> ShutdownBody:
    """The 202 body; a whole number of seconds has no fraction, because legacy clients expect that."""
    return ShutdownBody(timeout_seconds=int(timeout_s) if timeout_s == int(timeout_s) else timeout_s)


class LegacyReadyCallback(msgspec.Struct, frozen=True, kw_only=True):
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


# ── GET /v1/models ───────────────────────────────────────────────────────────────────────────────

OWNER = "llorch-worker"


class ModelMeta(msgspec.Struct, frozen=True, kw_only=True):
    """The properties of the model file."""

    n_ctx_train: Annotated[Count, doc("Context length of the training, in tokens.")]
    n_params: Count
    size: Annotated[Count, doc("Size of the file in bytes.")]
    n_vocab: Count
    quant_kind: str
    chat_format: Annotated[
        str | None,
        doc("Form of calls and reasoning, and where it is from: `hermes (template)`. null without a chat template."),
    ]


class ModelCard(msgspec.Struct, frozen=True, kw_only=True):
    """The model that is served."""

    id: str
    object: Literal["model"] = "model"
    created: Annotated[Count, doc("Start of this worker, Unix time in seconds.")]
    owned_by: str = OWNER
    max_model_len: Annotated[Count, doc("Most tokens that one job may use.")]
    meta: ModelMeta


class ModelList(msgspec.Struct, frozen=True, kw_only=True):
    """The list of the served models, which has one entry."""

    object: Literal["list"] = "list"
    data: list[ModelCard]


def model_card(facts: Loaded, name: str, created: int) -> ModelCard:
    return ModelCard(
        id=name,
        created=created,
        max_model_len=facts.context_length,
        meta=ModelMeta(
            n_ctx_train=facts.model.n_ctx_train,
            n_params=facts.model.n_params,
            size=facts.model.file_bytes,
            n_vocab=facts.vocab_size,
            quant_kind=facts.quant_kind,
            chat_format=facts.model.chat_format.title if facts.model.chat_template else None,
        ),
    )


def fingerprint(facts: Loaded, version: str) -> str:
    """A digest of everything except the request that answers depend on: the model, its device and this worker's
    version."""
    parts = (facts.name, facts.quant_kind, str(facts.model.file_bytes), facts.backend, facts.device_name, version)
    return "fp_" + hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]
