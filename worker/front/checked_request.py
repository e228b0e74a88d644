"""A client's request once it is checked and complete: what the front turns into a job. Pure but for the seed drawn."""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf

from worker.protocol.execute import ExecuteRequest
from worker.protocol.rules import MAX_BIAS
from worker.wire.messages import JobKey, MarkUse, Prompt, Sampling, Submit, TokenId


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedRequest:
    """What the client asked for, checked, with its seed drawn."""

    job_id: str
    answer_id: str | None = None
    """As JobRequest.answer_id."""
    model: str | None = None
    """As JobRequest.model."""
    n_answers: int | None = 1
    """As JobRequest.n_answers."""
    trace: Mapping[str, str] = field(default_factory=dict)
    """What headers.trace_context found."""
    submit: Submit
    """What the engine is sent of it."""
    correlation_id: str
    arrived_s: float
    """time.monotonic() at arrival; all limits count from here."""
    expires_s: float
    """The end of the job's time: the earlier of its API's time limit and X-Deadline; infinite without either."""


def checked(
    key: JobKey,
    request: ExecuteRequest,
    prompt: Prompt,
    *,
    correlation_id: str,
    arrived_s: float,
    expires_s: float,
    prompt_logprobs: int | None = None,
    prediction: str = "",
    marks: MarkUse = "hidden",
    answer_id: str | None = None,
    model: str | None = None,
    n_answers: int | None = 1,
    trace: Mapping[str, str] | None = None,
) -> CheckedRequest:
    """A valid request made complete; `prompt` is what the model is to read for it.

    A missing seed is drawn here, once, so that it can be reported and repeated.
    """
    submit = Submit(
        job=key,
        prompt=prompt,
        max_tokens=request.max_tokens,
        sampling=_sampling_of(request),
        stop=request.stop,
        grammar=request.grammar,
        json_schema=request.json_schema,
        regex=request.regex,
        prompt_logprobs=prompt_logprobs,
        prediction=prediction,
        marks=marks,
    )
    return CheckedRequest(
        job_id=request.job_id,
        answer_id=answer_id,
        model=model,
        n_answers=n_answers,
        trace=trace or {},
        submit=submit,
        correlation_id=correlation_id,
        arrived_s=arrived_s,
        expires_s=expires_s,
    )


def _sampling_of(request: ExecuteRequest) -> Sampling:
    return Sampling(
        seed=request.seed if request.seed is not None else secrets.randbits(64),
        temperature=request.temperature,
        top_p=request.top_p,
        top_k=request.top_k,
        repetition_penalty=request.repetition_penalty,
        min_p=request.min_p,
        frequency_penalty=request.frequency_penalty,
        presence_penalty=request.presence_penalty,
        repeat_last_n=request.repeat_last_n,
        typical_p=request.typical_p,
        top_n_sigma=request.top_n_sigma,
        xtc_probability=request.xtc_probability,
        xtc_threshold=request.xtc_threshold,
        dry_multiplier=request.dry_multiplier,
        dry_base=request.dry_base,
        dry_allowed_length=request.dry_allowed_length,
        logit_bias=tuple((TokenId(int(token)), _bias(value)) for token, value in request.logit_bias.items()),
        ignore_eos=request.ignore_eos,
        min_tokens=request.min_tokens,
        stop_token_ids=tuple(map(TokenId, request.stop_token_ids)),
        logprobs=request.logprobs,
    )


def _bias(value: float) -> float:
    """The lowest bias that may be sent bans the token."""
    return -inf if value == -MAX_BIAS else value
