"""The reasons why no prefix is cached: each for the kinds of model for which it is true, and for no other."""

from dataclasses import replace

import pytest

from tests.models.plan.rehearsed import info
from tests.models.plan.test_placement import CPU, placed
from worker.models.facts.attention import Windows
from worker.models.facts.info import ModelInfo
from worker.models.plan.prefix_support import COPYING_IS_SLOW, MAX_SLOTS, MAX_SLOTS_OF_WINDOWS, kept_of, obstacle

PLAIN = info()
SLIDING = replace(PLAIN, architecture="gemma3", windows=Windows(128, (True, False) * 2, 64, 64))


@pytest.mark.parametrize(
    ("model", "swa_full", "parallel", "expected"),
    [
        (PLAIN, True, MAX_SLOTS, ""),
        (PLAIN, False, MAX_SLOTS, ""),
        (PLAIN, True, MAX_SLOTS + 1, "--parallel 256 leaves no sequence id for sharing; use at most 255"),
        (SLIDING, True, MAX_SLOTS_OF_WINDOWS, ""),
        (SLIDING, True, MAX_SLOTS_OF_WINDOWS + 1, "--parallel 128 leaves no sequence id for sharing"),
        (SLIDING, False, 8, "2 of 4 layers keep only their sliding window of 128 tokens: use --swa-full on"),
        (replace(PLAIN, architecture="mamba"), True, MAX_SLOTS + 1, ""),
        (replace(PLAIN, architecture="qwen3next"), True, MAX_SLOTS, ""),
        (replace(PLAIN, architecture="qwen3next"), True, MAX_SLOTS + 1, "--parallel 256 leaves no sequence id"),
        (replace(SLIDING, architecture="lfm2"), True, 8, "lfm2 has recurrent state beside sliding windows"),
        (replace(PLAIN, architecture="qwen4exp"), True, 8, "qwen4exp keeps an index for its KV cells"),
        (replace(PLAIN, architecture="glm-dsa"), True, 8, "glm-dsa keeps an index for its KV cells"),
    ],
)
def test_the_reason_is_the_model_s_own(model: ModelInfo, swa_full: bool, parallel: int, expected: str) -> None:
    found = obstacle(model, swa_full=swa_full, parallel=parallel)
    assert (found or "").startswith(expected)
    assert bool(found) is bool(expected)


@pytest.mark.parametrize("is_copying_worthwhile", [True, False])
@pytest.mark.parametrize("limit_bytes", [0, 10**9])
def test_nothing_is_copied_where_reading_again_takes_less(limit_bytes: int, is_copying_worthwhile: bool) -> None:
    """The reason is the first that is true: memory for it, then the warm-up's finding."""
    kept = kept_of(PLAIN, placed([CPU]), limit_bytes, can_share=True, is_copying_worthwhile=is_copying_worthwhile)
    assert kept.limit_bytes == (limit_bytes if is_copying_worthwhile else 0)
    assert (kept.off_because is None) == (kept.limit_bytes > 0)
    assert (kept.off_because == COPYING_IS_SLOW) == (limit_bytes > 0 and not is_copying_worthwhile)
