"""All messages between the two processes, and the words they are made of.

Owns: the frames on the socketpair (msgspec structs, tagged, array-like).
Knows nothing of HTTP, llama.cpp or numpy.

    front  ── Configure, Submit, Cancel, AskResidency ──▶  engine
    front  ◀── Progress, Loaded, LoadFailed, SelfTested, Accepted, Refused, StepBegun, StepDone, Residency ──  engine
"""

from dataclasses import dataclass
from typing import Literal, NewType

import msgspec

from worker.wire.offload import Offload, SplitMode

TokenId = NewType("TokenId", int)
SlotId = NewType("SlotId", int)
"""llama.cpp's seq_id: 0..parallel-1 for jobs, parallel for cells that linger."""
JobKey = NewType("JobKey", int)
"""The front's internal number for a job, never reused; the client's job_id stays in the front."""

StopReason = Literal["MAX_TOKENS", "EOS", "STOP_SEQUENCE"]
FailureCode = Literal["VRAM_OOM", "INVALID_REQUEST", "INFERENCE_FAILED"]
StepKind = Literal["prefill", "decode"]
SwaFull = Literal["auto", "on", "off"]
"""Whether layers with a sliding window have as many KV cells as others, so that prefixes can be shared and kept."""


# ── what a job asks for ──────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are drawn; docs/sampling.md has every formula. Defaults but temperature's are off values.

    Order: bias and bans, temperature, repetition, frequency, presence and DRY penalties, top_n_sigma, top_k, typical_p,
    top_p, min_p, xtc, draw. Penalties look at the last `repeat_last_n` generated tokens, never at the prompt.
    """

    seed: int
    """u64; the draw at position i depends on (seed, i) only."""
    temperature: float = 1.0
    """Below 1e-6: argmax after the penalties."""
    top_p: float = 1.0
    top_k: int = 0
    repetition_penalty: float = 1.0
    min_p: float = 0.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repeat_last_n: int = -1
    """-1: all generated tokens; 0: none."""
    typical_p: float = 1.0
    top_n_sigma: float = 0.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    logit_bias: tuple[tuple[TokenId, float], ...] = ()
    """Added to the raw logits; -inf is a ban. Ids are distinct and in the vocabulary."""
    ignore_eos: bool = False
    """Ban the vocabulary's end-of-generation tokens."""
    min_tokens: int = 0
    """Ban them, and `stop_token_ids`, until so many tokens were generated."""
    stop_token_ids: tuple[TokenId, ...] = ()
    """Each ends the job when it is drawn, as STOP_SEQUENCE; its text is not shown."""
    logprobs: int | None = None
    """Report each sampled token's log-probability and so many of the most probable ones; None: nothing."""


class _Frame(msgspec.Struct, frozen=True, kw_only=True, tag=True, array_like=True):
    """Base of every frame; the tag is the class name."""


# ── front → engine ───────────────────────────────────────────────────────────────────────────────


class Configure(_Frame, frozen=True, kw_only=True):
    """The first frame: everything the engine needs to load. Sizes in tokens; 0 means "decide for me"."""

    model_path: str
    device: str
    """auto | cpu | cuda[:N] | metal | vulkan[:N]"""
    gpu_layers: str
    """all | auto | a number"""
    require_full_offload: bool
    ctx_size: int
    parallel: int
    """0: the default, fewer where memory demands."""
    batch_size: int
    ubatch_size: int
    threads: int
    threads_batch: int
    cache_type_k: str
    cache_type_v: str
    flash_attn: str
    """auto | on | off"""
    max_tokens_in: int
    """0: whatever fits the context."""
    prefill_chunk: int = 0
    """0: measured at warm-up. A restarted engine is given its predecessor's, so that its steps have the same shapes."""
    itl_target_ms: int = 150
    """How long a prefill step may hold up the jobs that are generating."""
    is_deterministic: bool = False
    prefix_cache_bytes: int = -1
    """Most bytes of ended jobs' KV cells to keep for later prompts; -1 means "decide for me"."""
    has_prompt_lookup: bool = True
    swa_full: SwaFull = "auto"
    """auto: where it costs neither cells, jobs nor layers on a GPU."""
    split_mode: SplitMode = "none"
    tensor_split: tuple[float, ...] = ()
    """Each GPU's share of the layers; none: by free memory."""
    main_gpu: int = -1
    """Among the GPUs of the device's backend, where the model is on one; -1 means "decide for me"."""


class Submit(_Frame, frozen=True, kw_only=True):
    job: JobKey
    prompt: str
    max_tokens: int
    sampling: Sampling
    stop: tuple[str, ...] = ()
    grammar: str | None = None
    """GBNF with a `root`, or Lark, which begins with `%llguidance`. At most one of these three."""
    json_schema: str | None = None
    """A JSON schema as JSON text, nested at most 64 deep; nobody has looked at its keywords yet."""
    regex: str | None = None


class Cancel(_Frame, frozen=True, kw_only=True):
    """Leave before the next step; idempotent, unknown jobs are ignored."""

    job: JobKey


class AskResidency(_Frame, frozen=True, kw_only=True):
    """Is the model still on the GPU? Answered with a Residency by the intake thread, whatever the steps are doing."""


# ── engine → front ───────────────────────────────────────────────────────────────────────────────


class Progress(_Frame, frozen=True, kw_only=True):
    """Load progress, 0..100; also the heartbeat while loading: a percent that comes again says that something moved."""

    percent: int


class Loaded(_Frame, frozen=True, kw_only=True):
    """The model is in memory, warmed up, and steps can run."""

    name: str
    """general.name, else the file's stem."""
    quant_kind: str
    tokenizer_kind: str
    vocab_size: int
    context_length: int
    """N of docs/protocol.md 1: what one job may use, min(cells, trained length)."""
    n_cells: int
    parallel: int
    resident: bool
    backend: Literal["cpu", "cuda", "metal", "vulkan"]
    device_index: int
    device_name: str
    memory_architecture: Literal["vram-only", "unified", "host"]
    memory_bytes: int
    """Weights + KV + compute buffers on the device, or on all that share the model, measured after the load."""
    prefill_chunk: int
    batch_size: int = 0
    """Most tokens in one decode call; more than was asked for where the slots need more. 0: not told."""
    prefix_cache_bytes: int = 0
    """The limit that holds; 0 where the model's memory cannot be cut, or nothing is to be kept."""
    prefix_cache_off: str | None = None
    """Why nothing is kept, and what to do about it; None where something is."""
    swa_full: bool | None = None
    """Layers with a sliding window have as many cells as others; None where no layer has one."""
    offload: Offload = Offload()
    step_s: float = 0.0
    """How long the longest step takes by the warm-up's times: a prefill step while nobody generates."""


class LoadFailed(_Frame, frozen=True, kw_only=True):
    """The engine exits after this frame. `code` is a StartupError's code."""

    code: str
    message: str
    needed_bytes: int | None = None
    available_bytes: int | None = None
    device: str | None = None
    """Whose memory is meant."""


class Accepted(_Frame, frozen=True, kw_only=True):
    """Tokenised, fits, queued: the headers may leave."""

    job: JobKey
    prompt_tokens: int


class Violation(msgspec.Struct, frozen=True, array_like=True):
    """A broken rule that only the engine can see: context_length(N), max_tokens_in(K), what a constraint says."""

    field: Literal["prompt", "grammar", "json_schema", "regex"]
    constraint: str
    message: str


class Refused(_Frame, frozen=True, kw_only=True):
    """A 400 with all that is wrong, at least one violation."""

    job: JobKey
    violations: tuple[Violation, ...]


class SelfTested(_Frame, frozen=True, kw_only=True):
    """Whether the same tokens gave the same logits, bit for bit, alone, in chunks and beside neighbours."""

    is_same: bool
    differences: tuple[str, ...] = ()
    """What gave other bits, in words: `beside 7 others`."""
    ways: tuple[str, ...] = ()
    """All that was compared, in the same words."""
    widths: tuple[int, ...] = ()
    """Rows of the decode steps that were compared."""
    n_prompts: int = 0
    row_multiple: int = 1
    """What decode steps are filled up to a multiple of, here and in serving."""
    most_rows: int = 0
    """Rows that are decoded at once, here and in serving; 0: all of a step."""


class Residency(_Frame, frozen=True, kw_only=True):
    """Where the model is now, by the device's own figures."""

    is_resident: bool
    memory_bytes: int
    """Most that the device can still hold of ours: what Loaded told, less where less is in use on the device."""


class StepBegun(_Frame, frozen=True, kw_only=True):
    """Sent before a step whenever the set of jobs in it changes: who is to blame if the engine dies."""

    jobs: tuple[JobKey, ...]


class TopToken(msgspec.Struct, frozen=True, array_like=True):
    """A token, its own text (which need not be whole characters: U+FFFD stands for the rest), ln of its probability."""

    text: str
    id: TokenId
    logprob: float


class Logprob(msgspec.Struct, frozen=True, array_like=True):
    """A sampled token under the softmax of the raw logits, and the most probable tokens, best first."""

    token: TopToken
    top: tuple[TopToken, ...]


class Delta(msgspec.Struct, frozen=True, array_like=True):
    """One sampled token of a job. `text` is what may be shown now; often one token's text, sometimes empty."""

    job: JobKey
    text: str
    logprob: Logprob | None = None


class Finished(msgspec.Struct, frozen=True, array_like=True):
    """A job's ordinary end, after its last Delta of the same frame."""

    job: JobKey
    reason: StopReason
    stop: str | None = None
    """The stop string that matched, as the request spelled it."""
    is_context_full: bool = False


class Failed(msgspec.Struct, frozen=True, array_like=True):
    job: JobKey
    code: FailureCode
    message: str


class Started(msgspec.Struct, frozen=True, array_like=True):
    """A job has its slot and begins; once for each job, also when it is preempted and resumed."""

    job: JobKey
    n_cached: int = 0
    """Prompt tokens that were found computed."""


class StepDone(_Frame, frozen=True, kw_only=True):
    """One frame per step for all its jobs; also the heartbeat. Fields are applied in this order."""

    started: tuple[Started, ...] = ()
    """Jobs that began since the last frame."""
    deltas: tuple[Delta, ...] = ()
    finished: tuple[Finished, ...] = ()
    failed: tuple[Failed, ...] = ()
    kind: StepKind | None = None
    """None: no decode ran, only the lists changed."""
    cells_used: int = 0
    """KV cells that living jobs hold; a shared one counts once."""
    prefix_tokens: int = 0
    """Of ended jobs, kept for later prompts in host memory."""
    prefix_bytes: int = 0
    n_preempted: int = 0
    """Jobs paused since the last frame because the KV cache was full."""
    n_drafted: int = 0
    """Tokens guessed in this step."""
    n_accepted: int = 0
    """Of these: drawn."""
    sampled_at_s: float = 0.0
    """time.monotonic() after sampling; the two processes share that clock."""


Inbound = Configure | Submit | Cancel | AskResidency
Outbound = Progress | Loaded | LoadFailed | SelfTested | Accepted | Refused | StepBegun | StepDone | Residency
