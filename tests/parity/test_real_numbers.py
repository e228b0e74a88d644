"""The levels `logits`, `generation` and `sampling` on the default model: the F32 copy and the file pass, errors fail.

Few tokens: the bounds of the long windows are for 512.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from parity import corpus
from parity.bounds import Bounds
from parity.case import gather
from parity.evidence import Candidate, FullLogits, Window
from parity.f32_copy import rewrite
from parity.levels import generation, logits, sampling
from parity.llama.scoring import Scorer, Setup
from parity.reference.model import Reference
from parity.setups import as_served, opened
from tests.parity.small_gguf import read_tensor, with_tensor

pytestmark = [pytest.mark.model, pytest.mark.parity]

N_CTX = 128
N_PROMPT, N_CONTINUED = 8, 12
EXACT = Setup()
SERVED = as_served()


@pytest.fixture(scope="module")
def full(reference: Reference, tmp_path_factory: pytest.TempPathFactory) -> FullLogits:
    """Two short windows, a long one of 96 tokens, and two continuations."""
    ids = reference.tokenize(corpus.text())
    windows = [Window("short", tuple(ids[start : start + 64])) for start in (0, 64)]
    windows.append(Window("long", tuple(ids[128:224])))
    prompts = [ids[start : start + N_PROMPT] for start in (300, 400)]
    for prompt, more in zip(prompts, reference.greedy(prompts, N_CONTINUED), strict=True):
        windows.append(Window("continuation", (*prompt, *more), N_PROMPT))
    return gather(reference, windows, tmp_path_factory.mktemp("rows"))


@contextmanager
def candidate(
    path: Path, setup: Setup = EXACT, *, name: str = "F32 copy", file_type: str = "F32"
) -> Iterator[Candidate]:
    with opened(path) as model, Scorer(model, setup, n_ctx=N_CTX, n_threads=1) as scorer:
        yield Candidate(name, file_type, scorer.logits, scorer.greedy, is_source=True)


def test_the_f32_copy_and_the_file_pass_all_three_levels(
    full: FullLogits, bounds: Bounds, f32_copy: Path, default_model: Path
) -> None:
    with candidate(f32_copy) as exact, candidate(default_model, SERVED, name="file", file_type="Q4_1") as file:
        levels = [
            logits.run(full, bounds, file=file, f32_copy=exact),
            generation.run(full, bounds, file=file, f32_copy=exact, piece=str),
            sampling.run(full, bounds),
        ]
    assert [(level.verdict, [check.name for check in level.checks if not check.holds]) for level in levels] == [
        ("pass", [])
    ] * 3
    named = {check.name: check.value for check in levels[0].checks}
    assert named["F32 copy, short windows: mean KL"] < 1e-6 * named["file: mean KL"]


@pytest.fixture(scope="module")
def wrong_rope_base(f32_copy: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("wrong") / "rope.gguf"
    rewrite(f32_copy, target, metadata={"llama.rope.freq_base": 10_000.0})
    return target


@pytest.fixture(scope="module")
def perturbed_weight(f32_copy: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One weight of 134 million by the size of a typical one of its tensor."""
    name, target = "blk.12.ffn_down.weight", tmp_path_factory.mktemp("wrong") / "weight.gguf"
    tensor = read_tensor(f32_copy, name)
    tensor[100, 200] += np.float32(tensor.std())
    return with_tensor(f32_copy, target, name, tensor)


@pytest.mark.parametrize("wrong", ["wrong_rope_base", "perturbed_weight"])
def test_a_wrong_rope_base_and_a_perturbed_weight_fail_the_logits(
    full: FullLogits, bounds: Bounds, wrong: str, request: pytest.FixtureRequest
) -> None:
    with candidate(request.getfixturevalue(wrong)) as other:
        level = logits.run(full, bounds, file=other, f32_copy=other)
    assert level.verdict == "fail"
    assert level.summary.startswith("F32 copy, short windows: largest error of a logit")


def test_a_wrong_rope_base_fails_generation(full: FullLogits, bounds: Bounds, wrong_rope_base: Path) -> None:
    with candidate(wrong_rope_base) as other:
        continued = generation.run(full, bounds, file=other, f32_copy=other)
    assert continued.verdict == "fail"
    assert continued.summary.startswith("F32 copy: the reference's preference at the first step that differs")
