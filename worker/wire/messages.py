"""All messages between the two processes, and the types of their fields.

This module owns the frames on the socketpair (msgspec structs, tagged, array-like). It knows nothing of HTTP, llama.cpp
or numpy.

    front  ── Configure, Submit, Cancel, AskResidency, Tokenize, Detokenize ──▶  engine
    front  ◀── Progress, Loaded, LoadFailed, SelfTested, Accepted, Refused, StepBegun, StepDone, Residency ──  engine
    front  ◀── Warned, Tokenized, Untokenized, Detokenized, BlocksChanged, PrefixCacheFound ──  engine
"""

import math
from dataclasses import dataclass
from typing import Literal, NewType

import msgspec

from worker.wire.numerics import Numerics

TokenId = NewType("TokenId", int)
SlotId = NewType("SlotId", int)
"""llama.cpp's seq_id. Jobs have 0..parallel-1; `parallel` is the first retained slot, which keeps
finished jobs' cells."""
JobKey = NewType("JobKey", int)
"""The front's internal number for a job, never reused; the client's job_id stays in the front."""
QuestionKey = NewType("QuestionKey", int)
"""The front's internal number for a question about tokens, never reused."""
BlockHash = NewType("BlockHash", int)
"""A u64 for 16 tokens and everything before them; engine/kv_blocks.py computes it."""

StopReason = Literal["MAX_TOKENS", "EOS", "STOP_SEQUENCE"]
FailureCode = Literal["VRAM_OOM", "INVALID_REQUEST", "INFERENCE_FAILED"]
StepKind = Literal["prefill", "decode"]
Scheduling = Literal["fair", "first-come"]
"""The jobs that wait if there are too few slots or cells: those that have had most, or the youngest."""
SwaFull = Literal["auto", "on", "off"]
"""The choice of as many KV cells in layers with a sliding window as in others, so that prefixes can be
shared and cached."""
FlashAttn = Literal["auto", "on", "off"]
PromptLookup = Literal["on", "own", "off"]
"""The texts that drafts are read from: a job's own and other jobs' answers, its own only, or none."""
BatchInvariant = Literal["auto", "on", "off"]
"""The choice of numbers that do not depend on the jobs that are computed alongside."""
SplitMode = Literal["none", "layer", "row"]
"""llama.cpp's words: all layers on one GPU; whole layers over all GPUs; each layer's rows over all GPUs."""
Medium = Literal["GPU", "CPU"]
"""The place of a block's cells, in vLLM's words, whatever the device is: in the KV memory that steps compute in
("GPU"), or in the prefix cache's copies in main memory ("CPU")."""


# ── what a job asks for ──────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Sampling:
    """The parameters of the draw; docs/sampling.md has every formula. Each default except the temperature's means off.

    Order: bias and bans, temperature, repetition, frequency, presence and DRY penalties, top_n_sigma, top_k, typical_p,
    top_p, min_p, xtc, draw. Penalties look at the last `repeat_last_n` generated tokens, never at the prompt.
    """

    seed: int
    """u64; the draw at position i depends on (seed, i) only."""
    temperature: float = 1.0
    """If it is below 1e-6, the token with the highest score after the penalties is taken."""
    top_p: float = 1.0
    top_k: int = 0
    repetition_penalty: float = 1.0
    min_p: float = 0.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repeat_last_n: int = -1
    """-1 means all generated tokens, 0 means none."""
    typical_p: float = 1.0
    top_n_sigma: float = 0.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    logit_bias: tuple[tuple[TokenId, float], ...] = ()
    """Numbers that are added to the raw logits; -inf is a ban. Ids are distinct and in the vocabulary."""
    ignore_eos: bool = False
    """Ban the vocabulary's end-of-generation tokens."""
    min_tokens: int = 0
    """End-of-generation tokens and `stop_token_ids` are banned until this many tokens were generated."""
    stop_token_ids: tuple[TokenId, ...] = ()
    """Each ends the job when it is drawn, as STOP_SEQUENCE; its text is not shown."""
    logprobs: int | None = None
    """The number of most probable tokens to report with each sampled one, with their log-probabilities; None reports no
    log-probabilities at all."""


class Conversation(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation that the model's chat template turns into a prompt. The front has checked its shape; its meaning
    is not checked."""

    messages: str
    """A JSON array of objects, each with a `role`."""
    tools: str | None = None
    """A JSON array."""
    template_kwargs: str = "{}"
    """A JSON object with variables for the template besides the messages."""
    add_generation_prompt: bool = True
    """True if the text ends where the assistant's answer begins."""
    continue_final_message: bool = False
    """True if the last message is the start of the answer. It excludes add_generation_prompt."""


Prompt = str | tuple[TokenId, ...] | Conversation
"""Text in which special tokens are parsed; tokens as they are; or a conversation, in which only the template's own
special tokens are parsed."""

MarkUse = Literal["hidden", "shown", "split"]
"""The treatment of control tokens in a job's text: they are hidden, shown by their names, or hidden while they
divide reasoning from content."""

RowCosts = tuple[tuple[int, float], ...]
"""(tokens in a decode step, seconds it takes)."""

PaddedWidths = tuple[tuple[int, int], ...]
"""(tokens in a decode step, the number that it is padded to)."""


class _Frame(msgspec.Struct, frozen=True, kw_only=True, tag=True, array_like=True):
    """Base of every frame but StepDone; the tag is the class name."""


# ── front → engine ───────────────────────────────────────────────────────────────────────────────


class DraftModelAsked(msgspec.Struct, frozen=True, array_like=True):
    """A small model that drafts tokens for the one that is served."""

    path: str
    device: str
    """The device, in the words of Configure.device."""
    n_most: int
    """The largest number of draft tokens for one job in a step."""
    n_cells: int = 0
    """0 means "decide for me"."""


class Configure(_Frame, frozen=True, kw_only=True):
    """The first frame, with everything that the engine needs to load. Sizes are in tokens; 0 means "decide for me"."""

    model_path: str
    device: str
    """auto | cpu | cuda[:N] | metal | vulkan[:N]"""
    gpu_layers: str
    """all | auto | a number"""
    require_full_offload: bool
    ctx_size: int
    parallel: int
    """0 means the default number of slots, or fewer where memory demands it."""
    batch_size: int
    ubatch_size: int
    threads: int
    threads_batch: int
    cache_type_k: str
    cache_type_v: str
    flash_attn: FlashAttn
    max_tokens_in: int
    """The longest prompt in tokens; 0 means whatever fits the context."""
    is_successor: bool = False
    """True if an engine before this one has had the model, and this one is to have it in the same shape: what was
    checked and planned then is not checked and planned again."""
    prefill_chunk: int = 0
    """0 means that it is measured at warm-up. A successor is given its predecessor's, so that its steps have the same
    shapes."""
    row_costs: RowCosts = ()
    """Loaded.row_costs of the predecessor; if it is empty, they are measured at warm-up."""
    switch_s: float = 0.0
    """Loaded.switch_s of the predecessor."""
    padded_widths: PaddedWidths = ()
    """Loaded.padded_widths of the predecessor."""
    itl_target_ms: int = 150
    """The milliseconds that a prefill step may delay generating jobs; 0 means as long as it takes."""
    is_deterministic: bool = False
    batch_invariant: BatchInvariant = "auto"
    """on means that numbers must be the same whatever other jobs run; auto means if that costs nothing."""
    prefix_cache_bytes: int = -1
    """The largest number of bytes of finished jobs' KV cells that are cached; -1 means "decide for me"."""
    scheduling: Scheduling = "fair"
    """The order of jobs if there are too few slots or cells."""
    prompt_lookup: PromptLookup = "on"
    draft: DraftModelAsked | None = None
    swa_full: SwaFull = "auto"
    """auto means on if that costs neither cells, jobs nor layers on a GPU."""
    split_mode: SplitMode = "none"
    tensor_split: tuple[float, ...] = ()
    """The share of the layers for each GPU; empty means by free memory."""
    main_gpu: int = -1
    """The index of the backend's GPU for a model on one GPU; -1 means "decide for me"."""
    chat_template: str | None = None
    """A Jinja template instead of the model's own."""
    chat_template_kwargs: str = "{}"
    """A JSON object with default variables for the template, which a conversation may override."""
    reports_blocks: bool = False
    """True if the engine sends BlocksChanged."""
    arena_fd: int = -1
    """The descriptor of the front's memory, which the engine inherits: its contents outlive the engine. -1 means none.
    """
    prefix_cache_dir: str | None = None
    """A directory for saved cells that outlive the worker, too."""
    wants_numerics: bool = False
    """True if Loaded has numerics; llama.cpp's libraries are read for them."""

    @property
    def itl_target_s(self) -> float:
        """`itl_target_ms` in seconds, infinite for 0."""
        return self.itl_target_ms / 1000 or math.inf

    @property
    def must_be_invariant(self) -> bool:
        """True if the load fails unless numbers are the same whatever other jobs run."""
        return self.is_deterministic or self.batch_invariant == "on"


class Submit(_Frame, frozen=True, kw_only=True):
    job: JobKey
    prompt: Prompt
    max_tokens: int
    """The longest answer in tokens. If it is 0, only the prompt's log-probabilities are wanted."""
    sampling: Sampling
    stop: tuple[str, ...] = ()
    grammar: str | None = None
    """A grammar in GBNF with a `root`, or in Lark, which begins with `%llguidance`. At most one of `grammar`,
    `json_schema` and `regex` is set."""
    json_schema: str | None = None
    """A JSON schema as JSON text, nested at most 64 deep; its keywords are not checked yet."""
    regex: str | None = None
    prompt_logprobs: int | None = None
    """The number of Sampling.logprobs, for the prompt's own tokens."""
    prediction: str = ""
    """A text that the answer will probably repeat; empty means none."""
    marks: MarkUse = "hidden"


class Cancel(_Frame, frozen=True, kw_only=True):
    """The job leaves before the next step. Cancelling twice is once; unknown jobs are ignored."""

    job: JobKey


class AskResidency(_Frame, frozen=True, kw_only=True):
    """Asks whether the model is still on the GPU. The intake thread answers with a Residency while steps run on."""


class Tokenize(_Frame, frozen=True, kw_only=True):
    """Asks for the tokens of a prompt. The intake thread answers with Tokenized or Untokenized while steps run on."""

    question: QuestionKey
    prompt: Prompt
    add_special: bool = True
    """True if BOS comes first if the model wants it; for a text only."""
    parse_special: bool = True
    """True if names of special tokens are parsed as these tokens; for a text only."""


class Detokenize(_Frame, frozen=True, kw_only=True):
    """Asks for the text of tokens, special ones by their names. The intake thread answers with Detokenized, or with
    Untokenized if an id is outside the vocabulary."""

    question: QuestionKey
    tokens: tuple[TokenId, ...]


# ── engine → front ───────────────────────────────────────────────────────────────────────────────


class Progress(_Frame, frozen=True, kw_only=True):
    """Load progress, 0..100, which is also the heartbeat while loading: a repeated percent shows that the load still
    moves."""

    percent: int


class Warned(_Frame, frozen=True, kw_only=True):
    """Something has failed in the engine that ends no job; operators read it in the log."""

    text: str


class OffPlan(msgspec.Struct, frozen=True, array_like=True):
    """A device on which more or less memory is allocated than was planned."""

    device: str
    planned_bytes: int
    allocated_bytes: int
    """The bytes that the library reports as allocated there."""
    taken_bytes: int | None = None
    """The bytes by which the device's free memory fell during the load; None if that memory is not the device's own, or
    did not change."""

    @property
    def difference_bytes(self) -> int:
        """The difference between the planned and the held bytes, by the account with the larger one."""
        held = (self.allocated_bytes, self.allocated_bytes if self.taken_bytes is None else self.taken_bytes)
        return max(abs(n_bytes - self.planned_bytes) for n_bytes in held)


class Offload(msgspec.Struct, frozen=True, array_like=True):
    """The place of a loaded model's layers. The output layer counts as one, as in llama.cpp."""

    gpu_layers: int = 0
    layers_total: int = 0
    tensor_split: tuple[float, ...] = ()
    """The share of the model that each GPU holds; empty if one device holds all of it."""
    off_plan: tuple[OffPlan, ...] = ()


_KEY = "kwargs."


class ModelFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Facts of a model file that clients ask for."""

    n_ctx_train: int = 0
    n_params: int = 0
    file_bytes: int = 0
    bos_token: str | None = None
    """Its name, as in `<s>`; None if the vocabulary has none."""
    eos_token: str | None = None
    pad_token: str | None = None
    chat_template: str | None = None
    """The Jinja template in force; None if conversations cannot be answered."""
    chat_template_caps: tuple[str, ...] = ()
    """The features that the template supports: system, tools, …, and `kwargs.NAME` for each variable that it reads."""

    @property
    def template_keys(self) -> frozenset[str]:
        """The variables that the template reads, besides the messages."""
        return frozenset(cap.removeprefix(_KEY) for cap in self.chat_template_caps if cap.startswith(_KEY))


class DraftModelFacts(msgspec.Struct, frozen=True, kw_only=True):
    """A draft model that is in memory."""

    name: str
    """Its name, in the form of Loaded.name."""
    quant_kind: str
    device: str
    """The device in the form of a setting: `cpu:0`, `cuda:1`."""
    n_cells: int
    memory_bytes: int
    """The bytes of weights, KV and compute buffers. Those on the served model's device are part of Loaded.memory_bytes.
    """


class BatchInvariance(msgspec.Struct, frozen=True, kw_only=True):
    """The answer whether a job's numbers are computed so that they do not depend on other jobs, and the reason."""

    is_kept: bool = False
    why: str = ""


class Amx(msgspec.Struct, frozen=True, kw_only=True):
    """The use of Intel's AMX, whose instructions multiply tiles of two matrices."""

    processor: bool = False
    """True if the processor has it."""
    build: bool = False
    """True if llama.cpp was compiled with it and the system lets it be used."""
    tile_bytes: int = 0
    """The number of bytes of weights that lie in tiles."""


Attention = Literal["gpu", "cpu", "both"]
"""The place where attention is computed; `both` means that of some layers on each."""


class Loaded(_Frame, frozen=True, kw_only=True):
    """The model is in memory, warmed up, and steps can run."""

    name: str
    """The file's general.name or, if it has none, the stem of the file name."""
    quant_kind: str
    tokenizer_kind: str
    vocab_size: int
    context_length: int
    """N of docs/protocol.md 1: the number of tokens that one job may use, min(cells, trained length)."""
    n_cells: int
    parallel: int
    resident: bool
    backend: Literal["cpu", "cuda", "metal", "vulkan"]
    device_index: int
    device_name: str
    memory_architecture: Literal["vram-only", "unified", "host"]
    memory_bytes: int
    """The bytes of weights, KV and compute buffers on the device, or on all that share the model, measured after the
    load.
    """
    prefill_chunk: int
    row_costs: RowCosts = ()
    """The times of decode steps at warm-up, ascending; empty if they were not measured and there are no drafts."""
    switch_s: float = 0.0
    """The extra seconds of a step that has another width than those before and after it; 0 on a CPU."""
    padded_widths: PaddedWidths = ()
    """The widths of decode steps that are padded because a wider step takes less time. `row_costs` has their padded
    costs."""
    ubatch_size: int = 0
    """The largest number of tokens that are computed at once; 0 if the engine does not say."""
    batch_size: int = 0
    """The largest number of tokens in one decode call: more than was asked for if the slots need more; 0 if the engine
    does not say."""
    prefix_cache_bytes: int = 0
    """The limit in force; 0 if the model's memory cannot be cut, or if the prefix cache is off."""
    prefix_cache_off: str | None = None
    """The reason why the prefix cache is off, and what to do about it; None if it is on."""
    swa_full: bool | None = None
    """True if layers with a sliding window have as many cells as others; None if no layer has one."""
    offload: Offload = Offload()
    step_s: float = 0.0
    """The seconds of the longest step, a prefill step while no job generates, by the times of the warm-up."""
    model: ModelFacts = ModelFacts()
    draft: DraftModelFacts | None = None
    numerics: Numerics | None = None
    """The numerics, if Configure asked for them."""
    amx: Amx = Amx()
    batch_invariance: BatchInvariance = BatchInvariance()
    attention: Attention | None = None
    """None where no layer has KV cells."""


class LoadFailed(_Frame, frozen=True, kw_only=True):
    """The engine exits after this frame. `code` is a StartupError's code."""

    code: str
    message: str
    needed_bytes: int | None = None
    available_bytes: int | None = None
    device: str | None = None
    """The device whose memory is too small."""


class Accepted(_Frame, frozen=True, kw_only=True):
    """The job is tokenised, fits and is queued: the response's headers may leave."""

    job: JobKey
    prompt_tokens: int


class Overflow(msgspec.Struct, frozen=True, array_like=True):
    """The numbers of a prompt with too many tokens."""

    n_tokens: int
    most: int
    """The context's length, or --max-tokens-in."""


class Violation(msgspec.Struct, frozen=True, array_like=True):
    """A rule that the request breaks and only the engine can check: context_length(N), max_tokens_in(K), or one of
    constraints."""

    field: Literal[
        "prompt", "messages", "chat_template_kwargs", "tokens", "grammar", "json_schema", "regex", "prediction"
    ]
    constraint: str
    message: str
    overflow: Overflow | None = None
    """The numbers, if the rule is context_length(N) or max_tokens_in(K)."""


class Refused(_Frame, frozen=True, kw_only=True):
    """The job is answered with a 400 that names all its violations, at least one."""

    job: JobKey
    violations: tuple[Violation, ...]


class SelfTested(_Frame, frozen=True, kw_only=True):
    """The result of a comparison: the same tokens gave the same logits, bit for bit, alone, in chunks and
    with other jobs, or not."""

    is_same: bool
    differences: tuple[str, ...] = ()
    """The comparisons that gave other bits, in words such as `beside 7 others`."""
    ways: tuple[str, ...] = ()
    """All comparisons that were made, in the same words."""
    widths: tuple[int, ...] = ()
    """The numbers of rows in the compared decode steps."""
    n_prompts: int = 0
    row_multiple: int = 1
    """Decode steps are padded to a multiple of this many rows, in the test and in serving."""
    most_rows: int = 0
    """The largest number of rows that are decoded at once, in the test and in serving; 0 means all rows of a step."""


class PrefixCacheFound(_Frame, frozen=True, kw_only=True):
    """The saved cells of earlier engines that this engine has found."""

    n_parts: int
    n_tokens: int
    n_bytes: int
    n_dropped: int = 0
    """The number of further parts that were dropped: damaged, made differently, or involved in a crash."""
    dropped_because: str | None = None
    """The reason for the first of these."""


class Residency(_Frame, frozen=True, kw_only=True):
    """The current place of the model, by the device's own figures."""

    is_resident: bool
    memory_bytes: int
    """The largest number of bytes of the model that the device can hold: those of Loaded, or the device's memory in use
    if that is less."""


class Tokenized(_Frame, frozen=True, kw_only=True):
    """The tokens and the text of a prompt."""

    question: QuestionKey
    tokens: tuple[TokenId, ...]
    text: str
    """The prompt's text; for a conversation, the text that the template made of it."""


class Untokenized(_Frame, frozen=True, kw_only=True):
    """The reasons why a question has no answer, at least one."""

    question: QuestionKey
    violations: tuple[Violation, ...]


class Detokenized(_Frame, frozen=True, kw_only=True):
    question: QuestionKey
    text: str
    """U+FFFD stands for bytes that are no whole character."""


class StepBegun(_Frame, frozen=True, kw_only=True):
    """The jobs of the next step, sent whenever their set changes: these are to blame if the engine dies."""

    jobs: tuple[JobKey, ...]


class TopToken(msgspec.Struct, frozen=True, array_like=True):
    """A token, its own text (U+FFFD stands for bytes that are no whole character), and ln of its probability."""

    text: str
    id: TokenId
    logprob: float
    raw: bytes | None = None
    """Its bytes, if `text` does not have all of them."""

    @property
    def piece(self) -> bytes:
        """Its bytes, which need not be whole characters."""
        return self.text.encode() if self.raw is None else self.raw


class Logprob(msgspec.Struct, frozen=True, array_like=True):
    """A sampled token under the softmax of the raw logits, and the most probable tokens, best first."""

    token: TopToken
    top: tuple[TopToken, ...]


class Delta(msgspec.Struct, frozen=True, array_like=True):
    """One sampled token of a job. `text` is what may be shown now: often that token's text, sometimes nothing."""

    job: JobKey
    text: str
    logprob: Logprob | None = None
    is_reasoning: bool = False
    """True if the text is not part of the answer; only in jobs whose control tokens divide it."""


class PromptLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """Log-probabilities of a job's prompt, from position `start` on. The very first token has none, so the first part
    starts at 1. Parts come in order and without gaps, all before the first Delta."""

    job: JobKey
    start: int
    tokens: tuple[Logprob, ...]


class Finished(msgspec.Struct, frozen=True, array_like=True):
    """A job's ordinary end, after its last Delta of the same frame."""

    job: JobKey
    reason: StopReason
    stop: str | None = None
    """The stop string that matched, as the request spelled it."""
    is_context_full: bool = False
    n_drafted: int = 0
    """The number of draft tokens that were computed for it."""
    n_accepted: int = 0
    """The number of these that were drawn."""
    n_reasoning: int = 0
    """The number of tokens that were drawn outside the answer, those that divide it included."""


class Failed(msgspec.Struct, frozen=True, array_like=True):
    job: JobKey
    code: FailureCode
    message: str


class Started(msgspec.Struct, frozen=True, array_like=True):
    """A job has its slot and begins. It is sent once for each job, even if the job is preempted and resumed."""

    job: JobKey
    n_cached: int = 0
    """The number of cached prompt tokens: in the prefix cache or in another job's cells."""


class StepDone(msgspec.Struct, kw_only=True, tag=True, array_like=True):
    """The results of a step for all its jobs, in one frame, which is also the heartbeat. Fields apply in this order.

    The engine collects the results of a step in it, so it is the one frame that can change, until it is sent.
    """

    started: list[Started] = []
    """The jobs that began since the last frame."""
    prompt_logprobs: list[PromptLogprobs] = []
    deltas: list[Delta] = []
    finished: list[Finished] = []
    failed: list[Failed] = []
    kind: StepKind | None = None
    """The kind of the step; None if no step ran and only the lists or counts changed."""
    n_threads: int = 0
    """The number of threads that compute; 0 before the first step."""
    cells_used: int = 0
    """The number of KV cells that running jobs hold; a shared one counts once."""
    prefix_tokens: int = 0
    """The number of tokens of finished jobs in the prefix cache in host memory."""
    prefix_bytes: int = 0
    n_preempted: int = 0
    """The number of jobs that were paused since the last frame because the KV cache was full."""
    n_yielded: int = 0
    """The number of jobs that were paused since the last frame to give another job its fair share."""
    n_paused: int = 0
    """The number of jobs that have begun and wait for a slot again."""
    n_drafted: int = 0
    """The number of draft tokens that this step computed."""
    n_accepted: int = 0
    """The number of these drafts that were drawn."""
    sampled_at_s: float = 0.0
    """The time.monotonic() after sampling; the two processes share that clock."""


class BlocksStored(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Whole blocks that follow each other are cached now, and were not before."""

    medium: Medium
    parent: BlockHash | None
    """The block before the first; None at the start of a prompt."""
    hashes: tuple[BlockHash, ...]
    tokens: tuple[TokenId, ...]
    """The tokens of all the blocks, the same number for each."""


class BlocksRemoved(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Blocks are gone, children before their parents."""

    medium: Medium
    hashes: tuple[BlockHash, ...]


class BlocksChanged(_Frame, frozen=True, kw_only=True):
    """The changes of the cached blocks since the last such frame, in order. A new engine has no blocks."""

    changes: tuple[BlocksStored | BlocksRemoved, ...]


Inbound = Configure | Submit | Cancel | AskResidency | Tokenize | Detokenize
Outbound = (
    Progress
    | Warned
    | Loaded
    | LoadFailed
    | SelfTested
    | Accepted
    | Refused
    | StepBegun
    | StepDone
    | PrefixCacheFound
    | Residency
    | Tokenized
    | Untokenized
    | Detokenized
    | BlocksChanged
)
