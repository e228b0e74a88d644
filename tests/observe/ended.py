"""A job's account as the counters get it."""

from worker.observe.metrics import EndedJob
from worker.observe.series import FinishReason


def ended(
    reason: FinishReason = "stop",
    *,
    had_slot: bool = True,
    n_answers: int | None = 1,
    max_tokens: int = 16,
    prompt_tokens: int = 10,
    cached_tokens: int = 0,
    tokens_generated: int = 5,
    duration_s: float = 1.0,
    prefill_s: float | None = 0.25,
    decode_s: float = 0.5,
) -> EndedJob:
    return EndedJob(
        reason=reason,
        had_slot=had_slot,
        n_answers=n_answers,
        max_tokens=max_tokens,
        prompt_tokens=prompt_tokens,
        cached_tokens=cached_tokens,
        tokens_generated=tokens_generated,
        duration_s=duration_s,
        prefill_s=prefill_s,
        decode_s=decode_s,
    )
