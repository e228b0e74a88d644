"""The levels `logits`, `generation` and `sampling` on the default model: twin and file pass, what is wrong fails.

Few tokens: the bounds of the long windows are for 512.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from worker.parity import corpus
from worker.parity.bounds import Bounds
from worker.parity.candidate import Candidate
from worker.parity.evidence import Window
from worker.parity.full_logits import FullLogits
from worker.parity.gather import gather
from worker.parity.gguf_copy import read_tensor, rewrite
from worker.parity.levels import generation, logits, sampling
from worker.parity.llama.scoring import Scorer, Setup
from worker.parity.reference.model import Reference
from worker.parity.setups import opened

pytestmark = pytest.mark.model

N_CTX = 128
N_PROMPT, N_CONTINUED = 8, 12
EXACT = Setup()
SERVED = Setup(type_k="bf16", type_v="f16", flash_attn="on")


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
def candidate(path: Path, setup: Setup = EXACT, *, name: str = "twin", file_type: str = "F32") -> Iterator[Candidate]:
    with opened(path) as model, Scorer(model, setup, n_ctx=N_CTX, n_threads=1) as scorer:
        yield Candidate(name, file_type, scorer.logits, scorer.greedy, is_source=True)


def test_the_twin_and_the_file_pass_all_three_levels(
    full: FullLogits, bounds: Bounds, twin: Path, default_model: Path
) -> None:
    with candidate(twin) as exact, candidate(default_model, SERVED, name="file", file_type="Q4_1") as file:
        levels = [
            logits.run(full, bounds, file=file, twin=exact),
            generation.run(full, bounds, file=file, twin=exact, piece=str),
            sampling.run(full, bounds, file=file, twin=exact),
        ]
    assert [(level.verdict, [check.name for check in level.checks if not check.holds]) for level in levels] == [
        ("pass", [])
    ] * 3
    named = {check.name: check.value for check in levels[0].checks}
    assert named["twin, short windows: mean KL"] < 1e-6 * named["file: mean KL"]


# ── negative controls ────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def wrong_rope_base(twin: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("wrong") / "rope.gguf"
    rewrite(twin, target, metadata={"llama.rope.freq_base": 10_000.0})
    return target


@pytest.fixture(scope="module")
def perturbed_weight(twin: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One weight of 134 million by the size of a typical one of its tensor."""
    name, target = "blk.12.ffn_down.weight", tmp_path_factory.mktemp("wrong") / "weight.gguf"
    tensor = read_tensor(twin, name)
    tensor[100, 200] += np.float32(tensor.std())
    rewrite(twin, target, tensors={name: tensor})
    return target


@pytest.mark.parametrize("wrong", ["wrong_rope_base", "perturbed_weight"])
def test_a_wrong_rope_base_and_a_perturbed_weight_fail_the_logits(
    full: FullLogits, bounds: Bounds, wrong: str, request: pytest.FixtureRequest
) -> None:
    with candidate(request.getfixturevalue(wrong)) as other:
        level = logits.run(full, bounds, file=other, twin=other)
    assert level.verdict == "fail"
    assert level.summary.startswith("twin, short windows: largest error of a logit")


def test_a_wrong_rope_base_fails_generation_and_sampling(
    full: FullLogits, bounds: Bounds, wrong_rope_base: Path
) -> None:
    with candidate(wrong_rope_base) as other:
        continued = generation.run(full, bounds, file=other, twin=other)
        drawn = sampling.run(full, bounds, twin=other)
    assert (continued.verdict, drawn.verdict) == ("fail", "fail")
    assert continued.summary.startswith("twin: the reference's preference at the first step that differs")
    assert drawn.summary.startswith("twin: largest total variation distance")


def test_a_position_that_is_off_by_one_fails_generation(full: FullLogits, bounds: Bounds, twin: Path) -> None:
    """The row before the last is read. (llama.cpp itself refuses a batch whose positions leave a gap.)"""

    with candidate(twin) as exact:

        def late(prompt: Sequence[int], n_tokens: int) -> list[int]:
            tokens = list(prompt)
            for _ in range(n_tokens):
                tokens.append(int(exact.logits(tokens)[-2].argmax()))
            return tokens[len(prompt) :]

        level = generation.run(full, bounds, file=replace(exact, greedy=late))
    assert level.verdict == "fail"
    assert "token 0" in level.summary
