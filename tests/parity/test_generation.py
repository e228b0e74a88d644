"""The level `generation`: where continuations part, and whether the step at which they do is a near-tie."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from parity.bounds import Bounds
from parity.evidence import Candidate, FullLogits, Window
from parity.levels import generation
from tests.parity.made_logits import MadeModel, candidate, made_reference


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> FullLogits:
    return made_reference(tmp_path_factory.mktemp("rows"), ["long", "continuation", "continuation"])


@dataclass(frozen=True)
class NearTie:
    """A step of a continuation at which the reference's second token lies close below its first."""

    window: Window
    prompt: int
    """Its number, from 1."""
    index: int
    second: int
    gap: float

    def turned(self, then: MadeModel) -> Candidate:
        """The made model, but it takes the second token there, and goes on as `then`."""

        def greedy(prompt: Sequence[int], n_tokens: int) -> list[int]:
            own = MadeModel().greedy(prompt, n_tokens)
            if tuple(prompt) != self.window.tokens[: self.window.n_prompt]:
                return own
            own[self.index] = self.second
            n_same = self.index + 1
            return own[:n_same] + then.greedy([*prompt, *own[:n_same]], n_tokens - n_same)

        return Candidate("made", "Q4_1", MadeModel().logits, greedy, is_source=True)


@pytest.fixture(scope="module")
def tie(reference: FullLogits) -> NearTie:
    ties = [
        NearTie(window, number, at - window.n_prompt + 1, second, reference.gap(number, at, second))
        for number, window in enumerate(reference.windows)
        if window.kind == "continuation"
        for at in range(window.n_prompt + 2, len(window.tokens) - 4)
        for second in [int(np.argsort(reference.rows(number)[at])[-2])]
    ]
    return next(tie for tie in ties if 0.05 < tie.gap < 0.69)


def test_the_same_continuations_pass(reference: FullLogits, bounds: Bounds) -> None:
    level = generation.run(reference, bounds, file=candidate(), f32_copy=candidate(name="F32 copy"))
    assert (level.verdict, len(level.checks), len(level.tables)) == ("pass", 2, 2)
    assert [check.value for check in level.checks] == [0.0, 0.0]
    assert level.tables[0].rows[0][2] == "20 of 20"
    assert level.summary.startswith("F32 copy: 2 of 2 continuations are the reference's")


def test_a_near_tie_may_turn_a_quantised_file_but_not_the_f32_copy(
    reference: FullLogits, bounds: Bounds, tie: NearTie
) -> None:
    turned = tie.turned(MadeModel())
    file = generation.run(reference, bounds, file=turned)
    f32_copy = generation.run(reference, bounds, file=candidate(), f32_copy=turned)
    assert (file.verdict, f32_copy.verdict) == ("pass", "fail")
    assert file.checks[0].value == tie.gap
    assert f"prompt {tie.prompt}, token {tie.index}" in f32_copy.summary
    assert "part at a near-tie" in file.summary


def test_what_follows_a_near_tie_is_not_judged(reference: FullLogits, bounds: Bounds, tie: NearTie) -> None:
    """It is another text: what the reference would say to it is not known."""
    level = generation.run(reference, bounds, file=tie.turned(MadeModel(seed=9)))
    assert level.verdict == "pass"
    assert level.tables[0].rows[tie.prompt - 1][2] == f"{tie.index} of 20"


# ── negative controls ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("wrong", [MadeModel(seed=1), MadeModel(shift=1)])
def test_another_model_and_positions_that_are_off_by_one_fail(
    reference: FullLogits, bounds: Bounds, wrong: MadeModel
) -> None:
    level = generation.run(reference, bounds, file=candidate(), f32_copy=candidate(name="F32 copy", model=wrong))
    assert level.verdict == "fail"
    assert level.summary.startswith("F32 copy: the reference's preference")
    assert generation.run(reference, bounds, file=candidate(model=wrong)).verdict == "fail"


def test_a_reference_without_continuations_is_no_comparison(tmp_path: Path, bounds: Bounds) -> None:
    model = MadeModel()
    full = FullLogits.make(tmp_path, [Window("long", (1, 2, 3))], lambda window: model.logits(window.tokens))
    assert generation.run(full, bounds, file=candidate()).summary == "nothing was compared"
