"""One job for the front, from any API: `/execute`, `/v1` or a terminal.

This module owns the way from a request's fields to the frame that the engine gets. It is pure except for the seed that
it draws.
"""

import hashlib
import secrets
from dataclasses import dataclass

from worker.apis.core.events import Dialect
from worker.wire.jobs import JobKey, MarkUse, Prompt, SamplingParams, Submit
from worker.wire.tools import Tools


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRequest:
    """One job, from its request to its end. It has passed every check that does not need the tokens."""

    job_id: str
    """The client's name for it, or the name of the choice of an answer."""
    fields: SamplingParams
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
        sent = {name: getattr(self.fields, name) for name in SamplingParams.__struct_fields__}
        seed = secrets.randbits(53) if self.fields.seed is None else self.fields.seed  # JavaScript reads it back
        return Submit(
            job=key,
            prompt=self.prompt,
            sampling=SamplingParams(**sent | {"seed": seed, "cache_salt": None}),
            prompt_logprobs=self.prompt_logprobs,
            prediction=self.prediction,
            salt=_salt_of(self.fields.cache_salt),
            marks=self.marks,
            stops_anywhere=self.stops_anywhere,
            tools=self.tools,
            reasoning_budget=self.reasoning_budget,
        )


def _salt_of(cache_salt: str | None) -> bytes:
    return b"" if cache_salt is None else hashlib.blake2b(cache_salt.encode(), digest_size=16).digest()
