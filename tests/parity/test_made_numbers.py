"""The levels `logits`, `generation` and `sampling` pass what is as exact as it says, and name where it is not."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from parity import formula
from parity.bounds import Bounds
from parity.evidence import Candidate, FullLogits, Kind, Window
from parity.levels import generation, logits, sampling
from parity.levels.sampling import GRID, Distribution, Sampler
from parity.logits_file import LogitsFile, write_logits_file
from parity.report import Level
from tests.parity.made_logits import PROVENANCE, MadeModel, Rows, candidate, made_reference, noisy
from worker.engine.sampling.sample import candidates, sample, uniform
from worker.wire.jobs import SamplingParams

KINDS: list[Kind] = ["short", "short", "long", "continuation", "long", "continuation"]


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> FullLogits:
    return made_reference(tmp_path_factory.mktemp("rows"), KINDS)


def broken(level: Level) -> list[str]:
    return [check.name for check in level.checks if not check.holds]


def test_an_exact_f32_copy_and_a_near_file_pass(reference: FullLogits, bounds: Bounds) -> None:
    f32_copy, file = candidate(noisy(1e-5), name="F32 copy", file_type="F32"), candidate(noisy(0.02), name="served")
    level = logits.run(reference, bounds, file=file, f32_copy=f32_copy)
    assert (level.verdict, broken(level)) == ("pass", [])
    assert len(level.checks) == 4 + 4 + 5
    (table,) = level.tables
    assert table.columns == (
        "",
        ">F32 copy, short windows",
        ">F32 copy, long windows",
        ">served, long windows",
        ">its second halves",
    )
    assert "left out" not in level.summary


# ── negative controls ────────────────────────────────────────────────────────────────────────────


def test_an_error_at_one_logit_of_the_f32_copy_is_found_where_it_is(reference: FullLogits, bounds: Bounds) -> None:
    def change(rows: Rows) -> Rows:
        rows = rows.copy()
        if rows[0, 0] == reference.rows(1)[0, 0]:
            rows[17, 3] += np.float32(2e-4)
        return rows

    level = logits.run(reference, bounds, file=candidate(), f32_copy=candidate(change, name="F32 copy"))
    assert broken(level) == ["F32 copy, short windows: largest error of a logit"]
    assert "window 1, position 17" in level.summary


def test_a_changed_order_of_tokens_that_lie_apart_fails_the_f32_copy(reference: FullLogits, bounds: Bounds) -> None:
    def change(rows: Rows) -> Rows:
        rows = rows.copy()
        second = np.argsort(rows[9])[-2]
        rows[9, second] = rows[9].max() + np.float32(1.0)
        return rows

    level = logits.run(reference, bounds, file=candidate(), f32_copy=candidate(change, name="F32 copy"))
    assert sum("another most probable token" in name for name in broken(level)) == 2
    flips = [check for check in level.checks if "another most probable token" in check.name]
    assert all("position 9" in check.note for check in flips)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_one_number_that_is_not_finite_fails_both(reference: FullLogits, bounds: Bounds, value: float) -> None:
    def change(rows: Rows) -> Rows:
        rows = rows.copy()
        rows[4, 1] = value
        return rows

    level = logits.run(reference, bounds, file=candidate(change), f32_copy=candidate(change, name="F32 copy"))
    assert level.verdict == "fail"
    assert {"made: mean KL", "made: 99 % of KL", "made: |ln| of the ratio of perplexities"} <= set(broken(level))
    assert {f"F32 copy, {kind} windows: largest KL" for kind in ("short", "long")} <= set(broken(level))


def test_positions_that_are_off_by_one_fail(reference: FullLogits, bounds: Bounds) -> None:
    level = logits.run(reference, bounds, file=candidate(model=MadeModel(shift=1)))
    assert level.verdict == "fail"
    assert "made: mean KL" in broken(level)


def test_what_passes_for_four_bits_fails_for_weights_that_are_not_quantised(
    reference: FullLogits, bounds: Bounds
) -> None:
    four, full = (
        logits.run(reference, bounds, file=candidate(noisy(0.06), file_type=file_type)) for file_type in ("Q4_1", "F16")
    )
    assert (four.verdict, full.verdict) == ("pass", "fail")


def test_a_file_whose_own_weights_are_the_reference_is_held_to_tighter_bounds(
    reference: FullLogits, bounds: Bounds
) -> None:
    own, other = (
        logits.run(reference, bounds, file=candidate(noisy(0.4), is_source=is_source)) for is_source in (True, False)
    )
    assert (own.verdict, other.verdict) == ("fail", "pass")


def test_a_reference_without_the_rows_of_a_level_is_no_comparison(
    tmp_path_factory: pytest.TempPathFactory, bounds: Bounds
) -> None:
    texts = made_reference(tmp_path_factory.mktemp("texts"), ["short"])
    continuations = made_reference(tmp_path_factory.mktemp("continuations"), ["continuation"])
    for level in (
        logits.run(continuations, bounds, file=candidate()),
        generation.run(texts, bounds, file=candidate()),
        sampling.run(texts, bounds),
    ):
        assert (level.verdict, level.summary) == ("fail", "nothing was compared")


# ── generation ─────────────────────────────────────────────────────────────────────────────────────


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
        NearTie(window, prompt, at - window.n_prompt + 1, second, reference.gap(number, at, second))
        for number, window in enumerate(reference.windows)
        if window.kind == "continuation"
        for prompt in [KINDS[: number + 1].count("continuation")]
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


# ── sampling ───────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> FullLogits:
    return made_reference(tmp_path_factory.mktemp("rows"), ["short", "long", "long", "continuation"])


def broken_notes(level: Level) -> dict[str, str]:
    return {check.name: check.note for check in level.checks if not check.holds}


def test_the_worker_samples_as_the_formula_says(rows: FullLogits, bounds: Bounds) -> None:
    level = sampling.run(rows, bounds)
    assert (level.verdict, broken_notes(level)) == ("pass", {})
    assert [row[0] for row in level.tables[0].rows] == list(GRID)
    assert all(row[3] == "0" for row in level.tables[0].rows)


def test_the_level_runs_from_a_logits_file(rows: FullLogits, bounds: Bounds, tmp_path: Path) -> None:
    path = tmp_path / "logits.safetensors"
    write_logits_file(path, rows, (), PROVENANCE)
    whole, brief = sampling.run(rows, bounds), sampling.run(LogitsFile.open(path), bounds)
    assert brief.checks == whole.checks


# ── negative controls ────────────────────────────────────────────────────────────────────────────


def without_temperature(row: Rows, settings: SamplingParams, generated: Sequence[int]) -> Distribution:
    is_greedy = settings.temperature < 1e-6
    return candidates(row, settings if is_greedy else replace(settings, temperature=1.0), generated)


def penalised_first(row: Rows, settings: SamplingParams, generated: Sequence[int]) -> Distribution:
    """The penalty before the temperature, which is another number wherever the sign decides; here: on divided logits
    that were moved below zero."""
    moved = row - row.max() if settings.repetition_penalty != 1.0 else row
    return candidates(moved, settings, generated)


def top_p_before_top_k(row: Rows, settings: SamplingParams, generated: Sequence[int]) -> Distribution:
    """Another order: the nucleus is of all tokens, not of the `top_k` that were kept."""
    ids, _ = candidates(row, replace(settings, top_k=0, min_p=0.0), generated)
    kept = np.full(len(row), -np.inf, dtype=np.float32)
    kept[ids] = row[ids]
    return candidates(kept, replace(settings, top_p=1.0), generated)


def unscaled(row: Rows, settings: SamplingParams, generated: Sequence[int]) -> Distribution:
    ids, probs = candidates(row, settings, generated)
    return ids, probs * (1.0 - 2e-6)


@pytest.mark.long
@pytest.mark.parametrize(
    ("wrong", "where"),
    [
        (without_temperature, "temperature 0.6"),
        (penalised_first, "repetition_penalty"),
        (top_p_before_top_k, "all"),
        (lambda row, settings, _: candidates(row, settings, ()), "repetition_penalty"),
        (lambda row, settings, own: candidates(row, replace(settings, min_p=0.0), own), "min_p"),
        (unscaled, "temperature"),
    ],
)
def test_a_sampler_that_does_otherwise_fails_at_the_setting_that_it_gets_wrong(
    rows: FullLogits, bounds: Bounds, wrong: sampling.Candidates, where: str
) -> None:
    level = sampling.run(rows, bounds, sampler=Sampler(wrong, sample))
    assert level.verdict == "fail"
    assert any(where in note for note in broken_notes(level).values())


def ignoring_the_seed(row: Rows, settings: SamplingParams, generated: Sequence[int]) -> int:
    return sample(row, replace(settings, seed=0), generated)


def ignoring_the_position(row: Rows, settings: SamplingParams, generated: Sequence[int]) -> int:
    ids, probs = candidates(row, settings, generated)
    return formula.drawn(ids, probs, uniform(settings.drawn_seed, 0))


@pytest.mark.parametrize("wrong", [ignoring_the_seed, ignoring_the_position])
def test_draws_that_do_not_follow_seed_and_position_fail(
    rows: FullLogits, bounds: Bounds, wrong: sampling.Draw
) -> None:
    level = sampling.run(rows, bounds, sampler=Sampler(candidates, wrong))
    assert list(broken_notes(level)) == ["draws of another token than the formula"]
