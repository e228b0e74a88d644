"""How far the activations of a candidate are from the reference's, point by point in the order of computation.

Owns the measures and what cannot be measured: a point that one side lacks, another shape, values that are no numbers.
Knows no bounds. Pure.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from worker.parity.points import Activations, Point

Values = NDArray[np.floating]


@dataclass(frozen=True, slots=True)
class Deviation:
    """Numbers of one point; NaN where nothing could be measured, infinite where only the reference is all 0."""

    point: Point
    relative: float
    """max |Δ| / RMS(reference)."""
    scaled: float
    """max |Δ| / max(RMS(reference), |reference|): an entry far above the others rounds as coarsely as it is large."""
    spread: float
    """RMS(Δ) / RMS(reference)."""
    largest: float
    """max |Δ|."""
    mean: float
    """mean |Δ|."""
    where: str
    """The place of the largest, or why nothing was measured."""


def deviations(reference: Activations, candidate: Activations) -> list[Deviation]:
    """Of every point that either side has, in the order of computation."""
    return [deviation(point, reference, candidate) for point in sorted(reference.keys() | candidate.keys())]


def deviation(point: Point, reference: Activations, candidate: Activations) -> Deviation:
    """Of one point. Arithmetic is float64."""
    obstacle = _obstacle(reference.get(point), candidate.get(point))
    if obstacle:
        return Deviation(point, np.nan, np.nan, np.nan, np.nan, np.nan, obstacle)
    wanted = reference[point].astype(np.float64)
    error = np.abs(candidate[point].astype(np.float64) - wanted)
    scale = _rms(wanted)
    largest, spread = float(error.max()), _rms(error)
    return Deviation(
        point,
        _share(largest, scale),
        _scaled(error, wanted, scale),
        _share(spread, scale),
        largest,
        float(error.mean()),
        f"largest at {_place(error)}",
    )


def _obstacle(reference: Values | None, candidate: Values | None) -> str:
    if reference is None:
        return "the reference has no such point"
    if candidate is None:
        return "it was not computed"
    if reference.shape != candidate.shape:
        return f"its shape is {candidate.shape}, the reference's {reference.shape}"
    if not reference.size:
        return "it is empty"
    for side, values in (("reference's", reference), ("candidate's", candidate)):
        is_odd = ~np.isfinite(values)
        if is_odd.any():
            return f"the {side} value at {_place(is_odd)} is not finite"
    return ""


def _rms(values: Values) -> float:
    return float(np.sqrt(np.mean(np.square(values))))


def _scaled(error: Values, wanted: Values, scale: float) -> float:
    allowed = np.maximum(np.abs(wanted), scale)
    return float((error / allowed).max()) if scale else _share(float(error.max()), scale)


def _share(part: float, whole: float) -> float:
    if part == 0.0:
        return 0.0
    return part / whole if whole else np.inf


def _place(values: NDArray[np.generic]) -> str:
    """The index of the highest of `values`."""
    return str([int(index) for index in np.unravel_index(int(values.argmax()), values.shape)])
