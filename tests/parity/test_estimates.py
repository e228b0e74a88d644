"""Intervals hold what they promise: they cover the truth in some 95 of 100 made texts, also where windows differ."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from parity import estimates
from parity.estimates import Estimate

Groups = list[NDArray[np.float64]]
N_TEXTS = 400
MIN_COVERED, MAX_COVERED = 0.90, 0.995
"""The share of 400 texts that an interval of 95 % covers lies between 92.8 and 97.2 % in 19 of 20 cases. Intervals of
shares are a little wide."""


def covers(make: Callable[[np.random.Generator], Groups], of: Callable[[Groups], Estimate], truth: float) -> float:
    rng = np.random.default_rng(11)
    found = [of(make(rng)) for _ in range(N_TEXTS)]
    return sum(one.low <= truth <= one.high for one in found) / N_TEXTS


def alike(rng: np.random.Generator, n_windows: int = 8) -> Groups:
    return [rng.normal(size=60) for _ in range(n_windows)]


def unlike(rng: np.random.Generator) -> Groups:
    """Windows differ by as much as their positions do: 480 positions are worth little more than eight."""
    return [rng.normal() + rng.normal(size=60) for _ in range(8)]


@pytest.mark.parametrize("n_windows", [1, 2, 8, 40])
def test_means_of_windows_that_are_alike_are_covered(n_windows: int) -> None:
    assert MIN_COVERED <= covers(lambda rng: alike(rng, n_windows), estimates.mean, 0.0) <= MAX_COVERED


def test_means_of_windows_that_differ_are_covered() -> None:
    assert MIN_COVERED <= covers(unlike, estimates.mean, 0.0) <= MAX_COVERED


@pytest.mark.parametrize("p", [0.5, 0.94, 0.995])
def test_shares_are_covered(p: float) -> None:
    def make(rng: np.random.Generator) -> Groups:
        return [(rng.random(60) < p).astype(np.float64) for _ in range(8)]

    assert MIN_COVERED <= covers(make, estimates.share, p) <= 1.0


@pytest.mark.parametrize("of", [estimates.mean, estimates.share])
@pytest.mark.parametrize("groups", [[np.array([1.0, math.inf])], [np.array([math.nan])], [np.empty(0)]])
def test_what_is_not_finite_is_no_estimate(of: Callable[[Groups], Estimate], groups: Groups) -> None:
    found = of(groups)
    assert all(math.isnan(number) for number in (found.value, found.low, found.high))
    assert found.text() == "not finite"
