"""The distance of two arrays, and its limits, on made-up activations."""

import numpy as np
import pytest

from parity.levels.checkpoints import deviation, deviations
from parity.points import Activations, Point

POINT = Point.of("q_proj", 3)
REFERENCE = np.array([[3.0, -4.0], [0.0, 5.0]])
RMS = np.sqrt(50 / 4)


def against(candidate: np.ndarray) -> dict[str, float | str]:
    found = deviation(POINT, {POINT: REFERENCE}, {POINT: candidate})
    return {name: getattr(found, name) for name in ("relative", "scaled", "spread", "largest", "mean", "where")}


def test_equals_are_not_apart() -> None:
    found = against(REFERENCE.astype(np.float32))
    assert [found[name] for name in ("relative", "scaled", "spread", "largest", "mean")] == [0.0] * 5


def test_errors_are_shares_of_the_references_root_mean_square() -> None:
    found = against(REFERENCE + np.array([[0.0, 0.0], [0.5, 0.0]]))
    assert found == pytest.approx(
        {
            "relative": 0.5 / RMS,
            "scaled": 0.5 / RMS,
            "spread": 0.25 / RMS,
            "largest": 0.5,
            "mean": 0.125,
            "where": "largest at [1, 0]",
        }
    )


def test_an_entry_above_the_root_mean_square_is_measured_by_itself() -> None:
    found = against(REFERENCE + np.array([[0.0, 0.0], [0.0, 0.5]]))
    assert found["relative"] == pytest.approx(0.5 / RMS)
    assert found["scaled"] == pytest.approx(0.5 / 5.0)


def test_float32_is_measured_in_float64() -> None:
    candidate = REFERENCE.astype(np.float32)
    candidate[0, 0] = np.nextafter(np.float32(3), np.float32(4))
    assert against(candidate)["largest"] == 2.0**-22


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("side", ["reference", "candidate"])
def test_what_is_no_number_cannot_be_measured_and_is_named(side: str, value: float) -> None:
    sides: dict[str, Activations] = {"reference": {POINT: REFERENCE}, "candidate": {POINT: REFERENCE}}
    odd = REFERENCE.copy()
    odd[1, 1] = value
    sides[side] = {POINT: odd}
    found = deviation(POINT, **sides)
    assert np.isnan([found.relative, found.spread, found.largest, found.mean]).all()
    assert found.where == f"the {side}'s value at [1, 1] is not finite"


@pytest.mark.parametrize(
    ("candidate", "where"),
    [
        ({}, "it was not computed"),
        ({POINT: REFERENCE.T[:1]}, "its shape is (1, 2), the reference's (2, 2)"),
        ({POINT: REFERENCE.reshape(4)}, "its shape is (4,), the reference's (2, 2)"),
    ],
)
def test_what_is_not_there_or_of_another_shape_is_said(candidate: Activations, where: str) -> None:
    found = deviation(POINT, {POINT: REFERENCE}, candidate)
    assert np.isnan(found.relative)
    assert found.where == where


def test_a_point_that_the_reference_lacks_is_said() -> None:
    [found] = deviations({}, {POINT: REFERENCE})
    assert np.isnan(found.relative)
    assert found.where == "the reference has no such point"


def test_any_error_is_infinite_where_the_reference_is_nothing() -> None:
    nothing = np.zeros((2, 2))
    assert deviation(POINT, {POINT: nothing}, {POINT: nothing}).relative == 0.0
    assert deviation(POINT, {POINT: nothing}, {POINT: REFERENCE}).relative == np.inf


def test_points_come_in_the_order_of_computation() -> None:
    points = [Point.of(*place) for place in (("logits", 2), ("block", 0), ("attn_norm", 1), ("embedding", -1))]
    both = dict.fromkeys(points, REFERENCE)
    assert [str(found.point) for found in deviations(both, both)] == [
        "embedding",
        "blk.0 block",
        "blk.1 attn_norm",
        "logits",
    ]
