"""One job for the front, from any API: `/execute`, `/v1` or a terminal.

This module owns the way from a request's fields to the frame that the engine gets. It is pure except for the seed that
it draws.
"""

import hashlib
import secrets
from dataclasses import dataclass
from math import inf

from worker.protocol.events import Dialect
from worker.protocol.execute import GenerationFields
from worker.protocol.rules import MAX_BIAS
from worker.wire.jobs import JobKey, MarkUse, Prompt, Sampling, Submit, TokenId
from worker.wire.tools import Tools


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRequest:
    """One job, from its request to its end. It has passed every check that does not need the tokens."""

    job_id: str
    """The client's name for it, or the name of the choice of an answer."""
    fields: GenerationFields
    prompt: Prompt
    dialect: Dialect
    """The form of its events; this job's own."""
    prompt_logprobs: int | None = None
    """The number of alternatives to report for each prompt token."""
    prediction: str = ""
    """The text of Submit.prediction."""
    marks: MarkUse = "hidden"
    """The word of Submit.marks."""
    stops_anywhere: bool = False
    """The value of Submit.stops_anywhere."""
    tools: Tools | None = None
    """The calls that its answer may have; None if it has none."""
    reasoning_budget: int | None = None
    """The most tokens of reasoning; None is no limit."""
    answer_id: str | None = None
    """The answer that it is a part of, whose id cancels it too; None if it is the whole."""
    model: str | None = None
    """The name that the client has for the model."""
    n_answers: int | None = 1
    """The number of answers that are asked for to its prompt; None for all of them but the first."""

    def submit(self, key: JobKey) -> Submit:
        """The frame that gives the job to the engine. If the client sent no seed, one is drawn here, once, so that it
        can be reported and repeated."""
        fields = self.fields
        return Submit(
            job=key,
            prompt=self.prompt,
            max_tokens=fields.max_tokens,
            sampling=_sampling_of(fields),
            stop=fields.stop,
            grammar=fields.grammar,
            json_schema=fields.json_schema,
            regex=fields.regex,
            prompt_logprobs=self.prompt_logprobs,
            prediction=self.prediction,
            salt=_salt_of(fields.cache_salt),
            marks=self.marks,
            stops_anywhere=self.stops_anywhere,
            tools=self.tools,
            reasoning_budget=self.reasoning_budget,
        )


def _salt_of(cache_salt: str | None) -> bytes:
    return b"" if cache_salt is None else hashlib.blake2b(cache_salt.encode(), digest_size=16).digest()


def _sampling_of(fields: GenerationFields) -> Sampling:
    return Sampling(
        seed=fields.seed if fields.seed is not None else secrets.randbits(53),  # JavaScript reads it back
        temperature=fields.temperature,
        top_p=fields.top_p,
        top_k=fields.top_k,
        repetition_penalty=fields.repetition_penalty,
        min_p=fields.min_p,
        frequency_penalty=fields.frequency_penalty,
        presence_penalty=fields.presence_penalty,
        repeat_last_n=fields.repeat_last_n,
        typical_p=fields.typical_p,
        top_n_sigma=fields.top_n_sigma,
        xtc_probability=fields.xtc_probability,
        xtc_threshold=fields.xtc_threshold,
        dry_multiplier=fields.dry_multiplier,
        dry_base=fields.dry_base,
        dry_allowed_length=fields.dry_allowed_length,
        logit_bias=tuple((TokenId(int(token)), _bias(value)) for token, value in fields.logit_bias.items()),
        ignore_eos=fields.ignore_eos,
        min_tokens=fields.min_tokens,
        stop_token_ids=tuple(map(TokenId, fields.stop_token_ids)),
        logprobs=fields.logprobs,
    )


def _bias(value: float) -> float:
    """The lowest bias that may be sent bans the token."""
    return -inf if value == -MAX_BIAS else value
