"""The level `logits` passes what is as exact as it says, and fails what is not, naming the place."""

from pathlib import Path

import numpy as np
import pytest

from parity.bounds import Bounds
from parity.evidence import FullLogits, Kind
from parity.levels import logits
from parity.report import Level
from tests.parity.made_logits import MadeModel, Rows, candidate, made_reference, noisy

KINDS: list[Kind] = ["short", "short", "long", "continuation", "long"]


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


def test_a_reference_without_a_text_is_no_comparison(tmp_path: Path, bounds: Bounds) -> None:
    level = logits.run(made_reference(tmp_path, ["continuation"]), bounds, file=candidate())
    assert (level.verdict, level.summary) == ("fail", "nothing was compared")
