"""The level `sampling` passes the worker's sampler and fails one that does otherwise in any step."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from parity import formula
from parity.bounds import Bounds
from parity.evidence import FullLogits
from parity.levels import sampling
from parity.levels.sampling import GRID, Distribution, Sampler
from parity.logits_file import LogitsFile, write_logits_file
from parity.report import Level
from tests.parity.made_logits import PROVENANCE, Rows, made_reference
from worker.engine.sampling.sample import candidates, sample, uniform
from worker.wire.jobs import SamplingParams


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> FullLogits:
    return made_reference(tmp_path_factory.mktemp("rows"), ["short", "long", "long", "continuation"])


def broken(level: Level) -> dict[str, str]:
    return {check.name: check.note for check in level.checks if not check.holds}


def test_the_worker_samples_as_the_formula_says(reference: FullLogits, bounds: Bounds) -> None:
    level = sampling.run(reference, bounds)
    assert (level.verdict, broken(level)) == ("pass", {})
    assert [row[0] for row in level.tables[0].rows] == list(GRID)
    assert all(row[3] == "0" for row in level.tables[0].rows)


def test_the_level_runs_from_a_logits_file(reference: FullLogits, bounds: Bounds, tmp_path: Path) -> None:
    path = tmp_path / "logits.safetensors"
    write_logits_file(path, reference, (), PROVENANCE)
    whole, brief = sampling.run(reference, bounds), sampling.run(LogitsFile.open(path), bounds)
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


def without_penalty(row: Rows, settings: SamplingParams, generated: Sequence[int]) -> Distribution:
    return candidates(row, settings, ())


def without_min_p(row: Rows, settings: SamplingParams, generated: Sequence[int]) -> Distribution:
    return candidates(row, replace(settings, min_p=0.0), generated)


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
        (without_penalty, "repetition_penalty"),
        (without_min_p, "min_p"),
        (unscaled, "temperature"),
    ],
)
def test_a_sampler_that_does_otherwise_fails_at_the_setting_that_it_gets_wrong(
    reference: FullLogits, bounds: Bounds, wrong: sampling.Candidates, where: str
) -> None:
    level = sampling.run(reference, bounds, sampler=Sampler(wrong, sample))
    assert level.verdict == "fail"
    assert any(where in note for note in broken(level).values())


def ignoring_the_seed(row: Rows, settings: SamplingParams, generated: Sequence[int]) -> int:
    return sample(row, replace(settings, seed=0), generated)


def ignoring_the_position(row: Rows, settings: SamplingParams, generated: Sequence[int]) -> int:
    ids, probs = candidates(row, settings, generated)
    return formula.drawn(ids, probs, uniform(settings.drawn_seed, 0))


@pytest.mark.parametrize("wrong", [ignoring_the_seed, ignoring_the_position])
def test_draws_that_do_not_follow_seed_and_position_fail(
    reference: FullLogits, bounds: Bounds, wrong: sampling.Draw
) -> None:
    level = sampling.run(reference, bounds, sampler=Sampler(candidates, wrong))
    assert list(broken(level)) == ["draws of another token than the formula"]


def test_a_reference_without_rows_in_full_is_no_comparison(tmp_path: Path, bounds: Bounds) -> None:
    assert sampling.run(made_reference(tmp_path, ["short"]), bounds).summary == "nothing was compared"
