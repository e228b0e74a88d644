"""A job as the intake gives it to an engine, written in one line; and what is done with the cells of the last jobs."""

from collections.abc import Sequence as Seq

from msgspec.structs import replace

from worker.engine.loop import Engine
from worker.engine.sequence import Queued
from worker.engine.step import Constraint
from worker.wire.jobs import JobKey, MarkUse, SamplingParams, Submit, TokenId


def queued(
    job: JobKey,
    prompt: list[TokenId],
    max_tokens: int,
    sampling: SamplingParams,
    stop: Seq[str] = (),
    *,
    constraint: Constraint | None = None,
    prompt_logprobs: int | None = None,
    prediction: Seq[TokenId] = (),
    marks: MarkUse = "hidden",
    salt: bytes = b"",
) -> Queued:
    submit = Submit(
        job=job,
        prompt=tuple(prompt),
        sampling=replace(sampling, max_tokens=max_tokens, stop=tuple(stop)),
        prompt_logprobs=prompt_logprobs,
        marks=marks,
        salt=salt,
    )
    return Queued(submit, prompt, constraint, prediction)


def put_away(engine: Engine) -> None:
    """Empty the retained slots of an idle engine. Their cells are copied out first."""
    while engine.back_up() or engine.prefix_cache.evict(()):
        pass
