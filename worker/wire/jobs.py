"""The frames of a job, from its submission to its end, and the types of their fields."""

import struct
from typing import Annotated, Literal, NewType

import msgspec

from worker.wire.encoding import doc
from worker.wire.prompts import Conversation, Infill, Tools

TokenId = NewType("TokenId", int)
SlotId = NewType("SlotId", int)
"""llama.cpp's seq_id. Jobs have 0..parallel-1; `parallel` is the first retained slot, which keeps
finished jobs' cells."""
JobKey = NewType("JobKey", int)
"""The front's internal number for a job, never reused; the client's job_id stays in the front."""

U64_MAX = 2**64 - 1
U32 = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]
I32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
SchemaText = NewType("SchemaText", str)
"""A JSON schema as compact JSON: an object, `true` or `false`, its properties in the order of the request."""

MAX_LOGPROBS = 20
MAX_BIAS = 100
"""The largest bias; its negative bans the token."""

StopReason = Literal["MAX_TOKENS", "EOS", "STOP_SEQUENCE"]
FailureCode = Literal["VRAM_OOM", "INVALID_REQUEST", "INFERENCE_FAILED"]
StepKind = Literal["prefill", "decode"]


class Frame(msgspec.Struct, frozen=True, kw_only=True, tag=True, array_like=True):
    """Base of every frame but StepDone; the tag is the class name."""


def narrow(value: float) -> float:
    """The nearest f32, as Rust's `as f32` gives it: a number that is too large becomes an infinity."""
    try:
        return float(struct.unpack("<f", struct.pack("<f", value))[0])
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")


_ZERO_TO_ONE = {"minimum": 0, "maximum": 1}


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The parameters of an answer, as `/execute` and `/v1` have them in common and as the engine gets them;
    docs/sampling.md has every formula. Floats hold f32 values, before the rules possibly infinite; the bounds are the
    rules' business (apis/core/rules.py).

    With its defaults only the temperature changes a row: fields that tune a method have no effect while it is off.

    Order: bias and bans, temperature, repetition, frequency, presence and DRY penalties, top_n_sigma, top_k, typical_p,
    top_p, min_p, xtc, draw. Penalties look at the last `repeat_last_n` generated tokens, never at the prompt.
    """

    max_tokens: U32 = 16
    """The longest answer in tokens. If it is 0, only the prompt's log-probabilities are wanted."""
    temperature: Annotated[
        float,
        doc("Divides the logits; 0 takes the most probable token.", minimum=0, maximum=2),
    ] = 1.0
    """If it is below 1e-6, the token with the highest score after the penalties is taken."""
    seed: Annotated[
        Annotated[int, msgspec.Meta(ge=0)] | None,
        doc("Repeats an answer; null draws one, which `started` reports.", maximum=U64_MAX),
    ] = None
    """The engine always has one: the draw at position i depends on (seed, i) only."""
    top_p: Annotated[float, doc("Keep the fewest tokens with this much probability; 1 is off.", **_ZERO_TO_ONE)] = 1.0
    top_k: Annotated[U32, doc("Keep this many of the most probable tokens; 0 is off.")] = 0
    repetition_penalty: Annotated[
        float, doc("Above 1 makes tokens generated before less probable; 1 is off.", minimum=0, maximum=2)
    ] = 1.0
    stop: Annotated[
        tuple[Annotated[str, doc("1 to 100 bytes of UTF-8.", minLength=1, maxLength=100)], ...],
        doc("Texts that end the answer and are not shown; each 1 to 100 bytes.", maxItems=4),
    ] = ()
    min_p: Annotated[
        float, doc("Keep tokens with at least this share of the best one's probability; 0 is off.", **_ZERO_TO_ONE)
    ] = 0.0
    logprobs: Annotated[
        U32 | None,
        doc(
            "Report each token's log-probability and this many of the most probable tokens; null is off.",
            maximum=MAX_LOGPROBS,
        ),
    ] = None
    frequency_penalty: Annotated[
        float, doc("Taken off a token's logit for each time it was generated; 0 is off.", minimum=-2, maximum=2)
    ] = 0.0
    presence_penalty: Annotated[
        float, doc("Taken off the logit of every token generated before; 0 is off.", minimum=-2, maximum=2)
    ] = 0.0
    repeat_last_n: Annotated[
        I32, doc("How many generated tokens all penalties look at; -1 is all of them, 0 none.", minimum=-1)
    ] = -1
    typical_p: Annotated[
        float, doc("Keep the most typical tokens with this much probability; 1 is off.", **_ZERO_TO_ONE)
    ] = 1.0
    top_n_sigma: Annotated[
        float,
        doc("Keep logits within this many standard deviations of the best; 0 is off.", minimum=0, maximum=100),
    ] = 0.0
    xtc_probability: Annotated[
        float, doc("How often the most probable tokens are left out (XTC); 0 is off.", **_ZERO_TO_ONE)
    ] = 0.0
    xtc_threshold: Annotated[
        float, doc("XTC leaves out all tokens at least so probable but the last; above 0.5 none.", **_ZERO_TO_ONE)
    ] = narrow(0.1)
    dry_multiplier: Annotated[
        float, doc("Strength of the penalty on repeated sequences (DRY); 0 is off.", minimum=0, maximum=100)
    ] = 0.0
    dry_base: Annotated[
        float, doc("DRY grows by this factor for each token a sequence is longer.", minimum=1, maximum=16)
    ] = 1.75
    dry_allowed_length: Annotated[
        U32, doc("The longest repeated sequence that DRY leaves alone, in tokens.", minimum=1, maximum=2048)
    ] = 2
    logit_bias: Annotated[
        dict[str, float],
        doc("Token ids in decimal, and what is added to their logits: -100 to 100; -100 is a ban.", maxProperties=1024),
    ] = {}
    ignore_eos: Annotated[
        bool, doc("Go on to max_tokens: end tokens are never drawn. Not with grammar, json_schema or regex.")
    ] = False
    min_tokens: Annotated[
        U32, doc("Draw no end token and none of stop_token_ids before this many tokens; at most max_tokens.")
    ] = 0
    stop_token_ids: Annotated[
        tuple[U32, ...], doc("Tokens that end the answer as a stop does and are not shown.", maxItems=64)
    ] = ()
    grammar: Annotated[
        str | None,
        doc("What the text follows: GBNF with a `root`, or Lark that begins with `%llguidance`; at most 65536 bytes."),
    ] = None
    json_schema: Annotated[
        SchemaText | None,
        doc(
            "The text is JSON that this schema allows; at most 65536 bytes, 64 levels deep. Not with grammar.",
            anyOf=[{"type": "object"}, {"const": True}, {"type": "null"}],
        ),
    ] = None
    regex: Annotated[
        str | None,
        doc("The whole text matches this expression; at most 65536 bytes. Not with grammar or json_schema."),
    ] = None
    cache_salt: Annotated[
        str | None,
        doc("Cached work is shared only with requests that send the same secret text.", minLength=1, maxLength=256),
    ] = None
    """The engine does not get it, but Submit.salt."""

    def __post_init__(self) -> None:
        # msgspec's own bounds end at 2**63 - 1.
        if self.seed is not None and self.seed > U64_MAX:
            raise ValueError(f"seed: Expected `int` <= {U64_MAX}")

    @property
    def drawn_seed(self) -> int:
        """The seed of a job, which has one."""
        assert self.seed is not None
        return self.seed


Prompt = str | tuple[TokenId, ...] | Conversation | Infill
"""Text in which special tokens are parsed; tokens as they are; a conversation, in which only the template's own
special tokens are parsed; or a text with a gap."""

MarkUse = Literal["hidden", "shown", "split"]
"""The treatment of control tokens in a job's text: they are hidden, shown by their names, or hidden while they
divide reasoning from content."""


class Submit(Frame, frozen=True, kw_only=True):
    job: JobKey
    prompt: Prompt
    sampling: SamplingParams
    """It has a seed. At most one of `grammar`, `json_schema` and `regex` is set; their contents are not checked yet."""
    prompt_logprobs: int | None = None
    """The number of SamplingParams.logprobs, for the prompt's own tokens."""
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
        of_text = self.sampling
        asked = (of_text.grammar, of_text.json_schema, of_text.regex, self.tools, self.reasoning_budget)
        return any(one is not None for one in asked)


class Cancel(Frame, frozen=True, kw_only=True):
    """The job leaves before the next step. Cancelling twice is once; unknown jobs are ignored."""

    job: JobKey


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
