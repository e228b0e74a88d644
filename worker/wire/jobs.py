"""The frames of a job, from its submission to its end, and the types of their fields.

front  ── Submit, Cancel ──▶  engine  ── Accepted or Refused, StepBegun, StepDone ──▶  front
"""

from dataclasses import dataclass
from typing import Literal, NewType

import msgspec

from worker.wire.prompts import Conversation, Infill
from worker.wire.tools import Tools

TokenId = NewType("TokenId", int)
SlotId = NewType("SlotId", int)
"""llama.cpp's seq_id. Jobs have 0..parallel-1; `parallel` is the first retained slot, which keeps
finished jobs' cells."""
JobKey = NewType("JobKey", int)
"""The front's internal number for a job, never reused; the client's job_id stays in the front."""

StopReason = Literal["MAX_TOKENS", "EOS", "STOP_SEQUENCE"]
FailureCode = Literal["VRAM_OOM", "INVALID_REQUEST", "INFERENCE_FAILED"]
StepKind = Literal["prefill", "decode"]


class Frame(msgspec.Struct, frozen=True, kw_only=True, tag=True, array_like=True):
    """Base of every frame but StepDone; the tag is the class name."""


# ── front → engine ───────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Sampling:
    """The parameters of the draw; docs/sampling.md has every formula.

    With its defaults only the temperature changes a row: fields that tune a method have no effect while it is off.

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


Prompt = str | tuple[TokenId, ...] | Conversation | Infill
"""Text in which special tokens are parsed; tokens as they are; a conversation, in which only the template's own
special tokens are parsed; or a text with a gap."""

MarkUse = Literal["hidden", "shown", "split"]
"""The treatment of control tokens in a job's text: they are hidden, shown by their names, or hidden while they
divide reasoning from content."""


class Submit(Frame, frozen=True, kw_only=True):
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
    salt: bytes = b""
    """Nothing that is cached is shared with a job of another salt; empty means none."""
    marks: MarkUse = "hidden"
    stops_anywhere: bool = False
    """True if stops are looked for in the reasoning, too, which marks "split" divide from the content."""
    tools: Tools | None = None
    """The calls to hold to their form. Their markers are part of the text then, control tokens by their names. No
    grammar and no regex is set beside tools; a schema may be, unless a call is required."""
    reasoning_budget: int | None = None
    """The most tokens of reasoning, without its markers; after them the reasoning is closed. None means no limit. Only
    with marks "split", and without effect on a model whose reasoning is not divided by tokens."""

    @property
    def is_constrained(self) -> bool:
        asked = (self.grammar, self.json_schema, self.regex, self.tools, self.reasoning_budget)
        return any(one is not None for one in asked)


class Cancel(Frame, frozen=True, kw_only=True):
    """The job leaves before the next step. Cancelling twice is once; unknown jobs are ignored."""

    job: JobKey


# ── engine → front ───────────────────────────────────────────────────────────────────────────────


class Accepted(Frame, frozen=True, kw_only=True):
    """The job is tokenised, fits and is queued: the response's headers may leave."""

    job: JobKey
    prompt_tokens: int
    unenforced_tools: tuple[int, ...] = ()
    """The places of offered tools whose schemas cannot be enforced, so that calls of them may have any arguments."""


class StepBegun(Frame, frozen=True, kw_only=True):
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
    is_of_name: bool = False
    """True if it may be a part of a tool's name in JSON (names.py); these are reported unasked if calls may come."""


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
    """A job has its slot and begins. It is sent once for each job, even if the job is paused and resumed."""

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
    n_victims: int = 0
    """The number of jobs that were paused since the last frame because the KV cells had run out."""
    n_preempted: int = 0
    """The number of jobs that were paused since the last frame to give another job its fair share."""
    n_paused: int = 0
    """The number of jobs that have begun and wait for a slot again."""
    n_drafted: int = 0
    """The number of draft tokens that this step computed."""
    n_accepted: int = 0
    """The number of these drafts that were drawn."""
    sampled_at_s: float = 0.0
    """The time.monotonic() after sampling; the two processes share that clock."""
