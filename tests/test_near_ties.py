"""Models whose rows llama.cpp computes otherwise in company: where an answer differs, it was a near-tie, and which.

The default model's Q4_1 rows are the same bits in any company (tests/llama/test_kv.py). Other types have matrix
kernels of their own for several rows at once, so a greedy answer may turn where two tokens were almost equally likely.
"""

import sys
from pathlib import Path

import pytest
from llama_cpp import llama_cpp as capi

from tests.real_engine import plain_runner
from tests.turns import N_CELLS, NEAR, PROMPTS, answers, first_turns

pytestmark = pytest.mark.model

FILE_TYPES = {"Q8_0": 7, "Q4_0": 2, "F16": 1}
"""llama_ftype."""


def quantised(default_model: Path, path: Path, file_type: int) -> Path:
    """The default model's weights as another type, by the library's own quantiser."""
    params = capi.llama_model_quantize_default_params()
    params.ftype, params.allow_requantize, params.nthread = file_type, True, 1
    assert capi.llama_model_quantize(str(default_model).encode(), str(path).encode(), params) == 0
    return path


@pytest.mark.parametrize("name", ["default", *FILE_TYPES])
def test_an_answer_that_turns_among_others_turns_at_a_near_tie(
    default_model: Path, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = default_model if name == "default" else quantised(default_model, tmp_path / "q.gguf", FILE_TYPES[name])
    with plain_runner(path, n_cells=N_CELLS, n_slots=len(PROMPTS), type_k="bf16") as runner:
        alone = [answers(runner, [prompt])[0] for prompt in PROMPTS]
        beside = answers(runner, PROMPTS)
    found = first_turns(alone, beside)
    with capsys.disabled():
        for turn in found:
            sys.stdout.write(f"\n{name}: {turn}\n")
    assert all(turn.margin < NEAR for turn in found), found
    assert name != "default" or not found
