"""The figures of a job that has ended, as the counters get them."""

from typing import Any


def ended(**changes: Any) -> dict[str, Any]:
    """`reason` may change, too."""
    figures = {"had_slot": True, "n_answers": 1, "max_tokens": 16, "prompt_tokens": 10, "cached_tokens": 0}
    times = {"tokens_generated": 5, "duration_s": 1.0, "prefill_s": 0.25, "decode_s": 0.5}
    return {"reason": "stop", **figures, **times, **changes}
