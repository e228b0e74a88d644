"""The checkpoints level's verdicts on made-up activations: each fault breaks the level and is named where it begins."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from parity.bounds import Bounds
from parity.levels.checkpoints import Computed, Expected, deviation, deviations, judge
from parity.points import CHECKPOINT, NAMES, Point
from parity.report import Level
from tests.parity.made_activations import CONTINUATION, N_LAYERS, all_points, expected, found

LOGITS = Point.of("logits", N_LAYERS)


@pytest.fixture(scope="module")
def built_in() -> Bounds:
    return Bounds.load()


def with_point(point: Point, change: Callable[[np.ndarray], np.ndarray]) -> Computed:
    right = found()
    return replace(right, activations=right.activations | {point: change(right.activations[point])})


def with_logits(change: Callable[[np.ndarray], np.ndarray]) -> Computed:
    """Both in the graph and handed out."""
    wrong = with_point(LOGITS, change)
    return replace(wrong, logits=np.asarray(wrong.activations[LOGITS], np.float32))


def check_of(level: Level, part: str) -> float:
    [value] = [check.value for check in level.checks if part in check.name]
    return value


def test_float32_rounding_passes(built_in: Bounds) -> None:
    level = judge(found(), expected(), built_in)
    assert level.verdict == "pass"
    assert level.summary.startswith(f"{len(all_points())} points over 4 tokens")
    assert [row[1] for row in level.tables[0].rows] == list(NAMES)


@pytest.mark.parametrize("point", all_points(), ids=str)
def test_an_error_at_any_point_is_named(built_in: Bounds, point: Point) -> None:
    level = judge(with_point(point, lambda values: values + np.float32(0.01)), expected(), built_in)
    assert level.verdict == "fail"
    assert level.summary.startswith(f"{point} (checkpoint {CHECKPOINT[point.name]}), relative error")


@pytest.mark.parametrize("layer", [0, 1])
def test_the_first_of_many_errors_is_named(built_in: Bounds, layer: int) -> None:
    """Later ones may be larger."""
    first = Point.of("v_proj", layer)
    wrong = with_point(first, lambda values: values + np.float32(0.001))
    later = {point: values * 2 for point, values in wrong.activations.items() if point > Point.of("v_cache", layer)}
    level = judge(replace(wrong, activations=wrong.activations | later), expected(), built_in)
    assert level.summary.startswith(f"blk.{layer} v_proj (checkpoint 2), relative error")


@pytest.mark.parametrize(("layer", "verdict"), [(0, "fail"), (1, "pass")])
def test_layer_0_has_tolerances_of_its_own(built_in: Bounds, layer: int, verdict: str) -> None:
    """4e-5 is little beside an RMS of 1, and more than the checkpoint list allows after RoPE."""

    def changed(values: np.ndarray) -> np.ndarray:
        other = values.copy()
        other[1, 2] += 4e-5
        return other

    level = judge(with_point(Point.of("q_rope", layer), changed), expected(), built_in)
    assert level.verdict == verdict
    assert level.summary.startswith("blk.0 q_rope (checkpoint 1B), absolute error on layer 0") == (verdict == "fail")


@pytest.mark.parametrize(
    "change", [lambda v: v[:, :-1], lambda v: v * np.float32(np.nan), lambda v: v + np.float32(np.inf)]
)
@pytest.mark.parametrize("point", [Point.of("k_rope", 1), Point.of("block", 0), LOGITS], ids=str)
def test_another_shape_or_no_number_fails_at_its_place(
    built_in: Bounds, point: Point, change: Callable[[np.ndarray], np.ndarray]
) -> None:
    level = judge(with_point(point, change), expected(), built_in)
    assert level.verdict == "fail"
    assert level.summary.startswith(f"{point} (checkpoint")
    assert "shape" in level.summary or "not finite" in level.summary


@pytest.mark.parametrize(("cache", "computed"), [("k_cache", "k_rope"), ("v_cache", "v_proj")])
def test_one_bit_in_the_memory_is_enough(built_in: Bounds, cache: str, computed: str) -> None:
    def turned(values: np.ndarray) -> np.ndarray:
        other = values.copy()
        other[2, 1] = np.nextafter(other[2, 1], np.float32(9))
        return other

    [point] = [point for point in all_points() if point.name == cache and point.layer == 1]
    level = judge(with_point(point, turned), expected(), built_in)
    assert level.summary.startswith(f"blk.1 {cache} (checkpoint 3), stored numbers other than {computed}: 1,")


def at_last(column: int, value: float) -> Callable[[np.ndarray], np.ndarray]:
    def changed(values: np.ndarray) -> np.ndarray:
        other = values.copy()
        other[-1, column] = value
        return other

    return changed


def best_and_next() -> tuple[int, int]:
    ids = np.argsort(-expected().logits[-1])
    return int(ids[0]), int(ids[1])


def near(reference: Expected, distance: float) -> Expected:
    """The reference with the best two of its last row that close."""
    best, second = best_and_next()
    logits = reference.logits.copy()
    logits[-1, second] = logits[-1, best] - distance
    return replace(reference, activations=reference.activations | {reference.logits_point: logits})


def test_a_row_that_is_not_the_graphs_is_found(built_in: Bounds) -> None:
    right = found()
    level = judge(replace(right, logits=np.roll(right.logits, 1, axis=0)), expected(), built_in)
    assert level.summary.startswith("selected logits (checkpoint 9), entries of other bits: 12,")


def test_another_highest_token_is_found(built_in: Bounds) -> None:
    best, second = best_and_next()
    level = judge(with_logits(at_last(second, float(expected().logits[-1, best]) + 0.1)), expected(), built_in)
    assert check_of(level, "highest token (checkpoint 10)") == 1
    assert check_of(level, "wrong ids among the top 5") == 2


def test_a_near_tie_may_fall_either_way(built_in: Bounds) -> None:
    reference = near(expected(), 2e-5)
    best, second = best_and_next()
    turned = with_logits(at_last(second, float(reference.logits[-1, best]) + 2e-5))
    level = judge(turned, reference, built_in)
    assert check_of(level, "highest token (checkpoint 10)") == 0
    assert check_of(level, "wrong ids among the top 5") == 0
    [note] = [check.note for check in level.checks if "checkpoint 10" in check.name]
    assert note == "4 positions, 1 near-ties apart"


def test_probabilities_of_other_logits_are_found(built_in: Bounds) -> None:
    level = judge(with_logits(lambda values: values * np.float32(1.001)), expected(), built_in)
    assert check_of(level, "probabilities (checkpoint 11), against the reference") > 1e-5
    assert check_of(level, "probabilities (checkpoint 11), against those of the same logits") < 1e-12


@pytest.mark.parametrize("step", range(len(CONTINUATION)))
def test_another_continuation_is_found(built_in: Bounds, step: int) -> None:
    other = tuple(token + (place >= step) for place, token in enumerate(CONTINUATION))
    level = judge(replace(found(), continuations=(other,) * 3), expected(), built_in)
    assert level.verdict == "fail"
    assert "end to end (checkpoint 12), 3 runs of 3 tokens, unlike the reference: 3" in level.summary
    assert f"first at token {step}" in level.summary


def test_what_follows_a_near_tie_is_another_text(built_in: Bounds) -> None:
    other = (CONTINUATION[0], 0, 0)
    reference = replace(expected(), margins=(2.0, 1e-4, 2.0))
    level = judge(replace(found(), continuations=(other,) * 3), reference, built_in)
    assert level.verdict == "pass"
    [note] = [check.note for check in level.checks if "unlike the reference" in check.name]
    assert note == "3 end at a near-tie"


def test_runs_that_are_not_alike_are_found(built_in: Bounds) -> None:
    reference = replace(expected(), margins=(2.0, 1e-4, 2.0))
    runs = (CONTINUATION, CONTINUATION, (CONTINUATION[0], 0, 0))
    level = judge(replace(found(), continuations=runs), reference, built_in)
    assert level.summary.startswith("end to end (checkpoint 12), 3 runs of 3 tokens, runs unlike the first: 1,")


POINT = Point.of("q_proj", 3)
REFERENCE = np.array([[3.0, -4.0], [0.0, 5.0]])
RMS = np.sqrt(50 / 4)


@pytest.mark.parametrize(
    ("at", "shares"),
    [
        ((1, 0), (0.5 / RMS, 0.5 / RMS, 0.25 / RMS, 0.5, 0.125)),
        ((1, 1), (0.5 / RMS, 0.5 / 5.0, 0.25 / RMS, 0.5, 0.125)),
    ],
)
def test_errors_are_shares_of_the_root_mean_square_or_of_a_larger_entry(
    at: tuple[int, int], shares: tuple[float, ...]
) -> None:
    other = REFERENCE.copy()
    other[at] += 0.5
    one = deviation(POINT, {POINT: REFERENCE}, {POINT: other})
    assert (one.relative, one.scaled, one.spread, one.largest, one.mean) == pytest.approx(shares)
    assert one.where == f"largest at [{at[0]}, {at[1]}]"


def test_a_point_that_the_reference_lacks_is_said() -> None:
    [lacking] = deviations({}, {POINT: REFERENCE})
    assert np.isnan(lacking.relative)
    assert lacking.where == "the reference has no such point"
