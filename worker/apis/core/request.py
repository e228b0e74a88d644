"""One request, whatever API has brought it; the limits that it must keep; and the jobs that it becomes."""

import hashlib
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from worker.apis.core.answers import NO_OPTIONS, Choice, StreamOptions
from worker.apis.core.events import Dialect
from worker.apis.core.reading import PLAIN, Reading
from worker.wire.chat_format import HERMES, ChatFormat
from worker.wire.jobs import U64_MAX, JobKey, MarkUse, Prompt, SamplingParams, Submit
from worker.wire.prompts import Tools


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """The limits that follow from this worker's settings and its model."""

    model: str
    """The served model's name."""
    is_strict: bool
    """True if a request must not name another model."""
    max_tokens_out: int
    """The most tokens of an answer, independent of its prompt. A larger max_tokens is cut to it."""
    max_text_chars: int
    """The space in a frame to the engine, not --max-prompt-chars. The context is the limit that clients notice."""
    n_ctx: int
    """The tokens that one job may use."""
    vocab_size: int
    template_keys: frozenset[str]
    """The variables that the model's chat template reads, besides the messages."""
    can_infill: bool = False
    """True if the model has fill-in-the-middle tokens."""
    takes_predictions: bool = True
    """True if the engine drafts from texts."""
    chat_format: ChatFormat = HERMES
    """The notation of the model's calls."""
    can_limit_reasoning: bool = False
    """True if the engine keeps a limit of the reasoning."""
    reads_fenced: bool = True
    """True if a fenced JSON object that is a call of an offered tool is read as one."""
    reasoning_fields: tuple[str, ...] = ("reasoning_content",)
    """The members of a chat's message that have the reasoning."""
    keeps_billing_block: bool = False
    """True if Claude Code's billing block reaches the prompt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request that has passed every check which does not need its tokens."""

    prompts: tuple[Prompt, ...]
    params: SamplingParams
    """The parameters of the first answer to each prompt."""
    answers: Callable[..., list[Choice]] = field(default=list, compare=False)
    """(heading) → the parts of the answer, n for each prompt in order; (heading, echoes) if the route has echoes.
    `/execute` has none."""
    model: str | None = None
    """The client's name for the model."""
    n: int = 1
    """The number of answers to each prompt."""
    is_stream: bool = True
    options: StreamOptions = NO_OPTIONS
    is_echo: bool = False
    """True if the answers begin with their prompts."""
    prompt_logprobs: int | None = None
    """The number of alternatives to report for each prompt token; None if nothing is reported."""
    prediction: str = ""
    """The text of Submit.prediction."""
    asked_tokens: int | None = None
    """The max_tokens that the client sent, or None. `params` has it cut to the limit."""
    marks: MarkUse = "hidden"
    """The word of Submit.marks."""
    reading: Reading = PLAIN
    """The rules by which the answers are read."""
    tools: Tools | None = None
    """The calls that its answers may have; None if they have none."""
    reasoning_budget: int | None = None
    """The most tokens of reasoning; None is no limit."""
    names: Mapping[str, str] = field(default_factory=dict)
    """The client's spelling of fields that have other names in `/execute`."""
    places: tuple[str, ...] = ()
    """The place of each message in the request, if the request has them in another form."""
    ignored: tuple[str, ...] = ()
    """The members that have no effect, spelled for a header."""
    ignored_tools: tuple[str, ...] = ()
    """The names of the tools that the worker does not have, spelled for a header."""

    def cut_to(self, room: int) -> int | None:
        """The length in tokens to which the answer is cut, if the request asks for more than fits in `room`; else
        None."""
        limit = min(self.params.max_tokens, room)
        return limit if self.asked_tokens is not None and self.asked_tokens > limit else None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRequest:
    """One job of a request, from its arrival to its end."""

    job_id: str
    """The client's name for it, or the name of the part of an answer."""
    asked: Request
    prompt: Prompt
    dialect: Dialect
    """The form of its events; this job's own."""
    number: int = 0
    """Its place among the answers to its prompt, which is added to the request's seed."""
    answer_id: str | None = None
    """The answer that it is a part of, whose id cancels it too; None if it is the whole."""

    def submit(self, key: JobKey) -> Submit:
        """The frame that gives the job to the engine. If the client sent no seed, one is drawn here, once, so that it
        can be reported and repeated."""
        asked, params = self.asked, self.asked.params
        sent = {name: getattr(params, name) for name in SamplingParams.__struct_fields__}
        # JavaScript reads 53 bits back.
        seed = secrets.randbits(53) if params.seed is None else (params.seed + self.number) % (U64_MAX + 1)
        salt = params.cache_salt
        return Submit(
            job=key,
            prompt=self.prompt,
            sampling=SamplingParams(**sent | {"seed": seed, "cache_salt": None}),
            prompt_logprobs=asked.prompt_logprobs,
            prediction=asked.prediction,
            salt=b"" if salt is None else hashlib.blake2b(salt.encode(), digest_size=16).digest(),
            marks=asked.marks,
            stops_anywhere=asked.reading.keeps_thoughts,
            tools=asked.tools,
            reasoning_budget=asked.reasoning_budget,
        )
