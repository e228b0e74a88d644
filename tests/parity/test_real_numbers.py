"""The levels `logits`, `generation` and `sampling` on the default model: the F32 copy and the file pass, errors fail.

Few tokens: the bounds of the long windows are for 512.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.parity.small_gguf import read_tensor, with_tensor
from worker.parity import corpus
from worker.parity.bounds import Bounds
from worker.parity.case import gather
from worker.parity.evidence import Candidate, FullLogits, Window
from worker.parity.f32_copy import rewrite, write_f32_copy
from worker.parity.levels import generation, logits, sampling
from worker.parity.llama.scoring import Scorer, Setup
from worker.parity.reference.checkpoint import dequantise
from worker.parity.reference.model import Reference
from worker.parity.reference.tensors import CheckpointTensors
from worker.parity.setups import opened

pytestmark = pytest.mark.model

N_CTX = 128
N_PROMPT, N_CONTINUED = 8, 12
EXACT = Setup()
SERVED = Setup(type_k="bf16", type_v="f16", flash_attn="on")


def logits_of(reference: Reference, folder: Path) -> FullLogits:
    """Two short windows, a long one of 96 tokens, and two continuations."""
    ids = reference.tokenize(corpus.text())
    windows = [Window("short", tuple(ids[start : start + 64])) for start in (0, 64)]
    windows.append(Window("long", tuple(ids[128:224])))
    prompts = [ids[start : start + N_PROMPT] for start in (300, 400)]
    for prompt, more in zip(prompts, reference.greedy(prompts, N_CONTINUED), strict=True):
        windows.append(Window("continuation", (*prompt, *more), N_PROMPT))
    return gather(reference, windows, folder)


@contextmanager
def candidate(
    path: Path, setup: Setup = EXACT, *, name: str = "F32 copy", file_type: str = "F32"
) -> Iterator[Candidate]:
    with opened(path) as model, Scorer(model, setup, n_ctx=N_CTX, n_threads=1) as scorer:
        yield Candidate(name, file_type, scorer.logits, scorer.greedy, is_source=True)


def test_the_f32_copy_and_the_file_pass_all_three_levels(
    reference: Reference, bounds: Bounds, f32_copy: Path, default_model: Path, tmp_path: Path
) -> None:
    full = logits_of(reference, tmp_path)
    with candidate(f32_copy) as exact, candidate(default_model, SERVED, name="file", file_type="Q4_1") as file:
        levels = [
            logits.run(full, bounds, file=file, f32_copy=exact),
            generation.run(full, bounds, file=file, f32_copy=exact, piece=str),
            sampling.run(full, bounds, file=file, f32_copy=exact),
        ]
    assert [(level.verdict, [check.name for check in level.checks if not check.holds]) for level in levels] == [
        ("pass", [])
    ] * 3
    named = {check.name: check.value for check in levels[0].checks}
    assert named["F32 copy, short windows: mean KL"] < 1e-6 * named["file: mean KL"]


# ── negative controls, on two layers ─────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def made(shallow_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shallow model's checkpoint and its F32 copy, in one folder."""
    folder = tmp_path_factory.mktemp("shallow")
    checkpoint = folder / "checkpoint"
    dequantise(shallow_model, checkpoint)
    write_f32_copy(shallow_model, CheckpointTensors.open(checkpoint), folder / "f32-copy.gguf")
    return folder


@pytest.fixture(scope="module")
def f32_of_two(made: Path) -> Path:
    return made / "f32-copy.gguf"


@pytest.fixture(scope="module")
def full(made: Path, tmp_path_factory: pytest.TempPathFactory) -> FullLogits:
    return logits_of(Reference.open(made / "checkpoint", n_threads=1), tmp_path_factory.mktemp("rows"))


def test_without_a_mistake_two_layers_pass(full: FullLogits, bounds: Bounds, f32_of_two: Path) -> None:
    with candidate(f32_of_two) as exact:
        level = logits.run(full, bounds, file=exact, f32_copy=exact)
    assert level.verdict == "pass", level.summary


@pytest.fixture(scope="module")
def wrong_rope_base(f32_of_two: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("wrong") / "rope.gguf"
    rewrite(f32_of_two, target, metadata={"llama.rope.freq_base": 10_000.0})
    return target


@pytest.fixture(scope="module")
def perturbed_weight(f32_of_two: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One weight of 35 million by the size of a typical one of its tensor."""
    name, target = "blk.1.ffn_down.weight", tmp_path_factory.mktemp("wrong") / "weight.gguf"
    tensor = read_tensor(f32_of_two, name)
    tensor[100, 200] += np.float32(tensor.std())
    return with_tensor(f32_of_two, target, name, tensor)


@pytest.mark.parametrize("wrong", ["wrong_rope_base", "perturbed_weight"])
def test_a_wrong_rope_base_and_a_perturbed_weight_fail_the_logits(
    full: FullLogits, bounds: Bounds, wrong: str, request: pytest.FixtureRequest
) -> None:
    with candidate(request.getfixturevalue(wrong)) as other:
        level = logits.run(full, bounds, file=other, f32_copy=other)
    assert level.verdict == "fail"
    assert level.summary.startswith("F32 copy, short windows: largest error of a logit")


def test_a_wrong_rope_base_fails_generation_and_sampling(
    full: FullLogits, bounds: Bounds, wrong_rope_base: Path
) -> None:
    with candidate(wrong_rope_base) as other:
        continued = generation.run(full, bounds, file=other, f32_copy=other)
        drawn = sampling.run(full, bounds, f32_copy=other)
    assert (continued.verdict, drawn.verdict) == ("fail", "fail")
    assert continued.summary.startswith("F32 copy: the reference's preference at the first step that differs")
    assert drawn.summary.startswith("F32 copy: largest total variation distance")


def test_a_position_that_is_off_by_one_fails_generation(full: FullLogits, bounds: Bounds, f32_of_two: Path) -> None:
    """The row before the last is read. (llama.cpp itself refuses a batch whose positions leave a gap.)"""

    with candidate(f32_of_two) as exact:

        def late(prompt: Sequence[int], n_tokens: int) -> list[int]:
            tokens = list(prompt)
            for _ in range(n_tokens):
                tokens.append(int(exact.logits(tokens)[-2].argmax()))
            return tokens[len(prompt) :]

        level = generation.run(full, bounds, file=replace(exact, greedy=late))
    assert level.verdict == "fail"
    assert "token 0" in level.summary
