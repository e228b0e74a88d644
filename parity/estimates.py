"""Numbers with the interval they are known within: means and shares over positions of a text.

Positions of one window resemble each other more than those of another, so the window is the unit of chance: intervals
come from how windows differ, and from single positions only where there is one window. Intervals are of 95 %. Pure.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Groups = Sequence[NDArray[np.float64]]
"""One array of values for each window."""

_Z = 1.959964
_T = (12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622)
"""97.5 % quantiles of Student's t with 1, 2, … degrees of freedom."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value and its 95 % interval. All three are NaN where a number that it is made of was not finite."""

    value: float
    low: float
    high: float

    def text(self, spec: str = ".3g", scale: float = 1.0, unit: str = "") -> str:
        """`4.51e-03 (4.02e-03 … 5.00e-03)`, each times `scale`."""
        if not math.isfinite(self.value):
            return "not finite"
        value, low, high = (format(scale * number, spec) for number in (self.value, self.low, self.high))
        return f"{value}{unit} ({low} … {high})"


NOT_FINITE = Estimate(math.nan, math.nan, math.nan)


def mean(groups: Groups) -> Estimate:
    """The mean over all values, each counting the same, ± t times its standard error."""
    values = np.concatenate(groups)
    if not values.size or not np.isfinite(values).all():
        return NOT_FINITE
    value = float(values.mean())
    reach = _t(len(groups)) * _standard_error(groups, value)
    return Estimate(value, value - reach, value + reach)


def share(groups: Groups) -> Estimate:
    """The mean of values in 0..1 with Wilson's interval, for as many independent positions as it is worth.

    Source: Wilson 1927, "Probable Inference, the Law of Succession, and Statistical Inference".
    """
    middle = mean(groups)
    p, z = middle.value, _t(len(groups))
    if not math.isfinite(p):
        return NOT_FINITE
    n = float(sum(map(len, groups)))
    error = _standard_error(groups, p) if n > 1 else 0.0
    if error > 0.0:
        n = min(n, p * (1.0 - p) / error**2)
    centre = (p + z * z / (2 * n)) / (1 + z * z / n)
    reach = z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return Estimate(p, max(0.0, min(p, centre - reach)), min(1.0, max(p, centre + reach)))


def exp(estimate: Estimate) -> Estimate:
    """e to the estimate: a mean of logarithms as a geometric mean."""
    with np.errstate(over="ignore"):
        value, low, high = np.exp((estimate.value, estimate.low, estimate.high)).tolist()
    return Estimate(value, low, high)


def _standard_error(groups: Groups, centre: float) -> float:
    """The standard error of the mean; infinite for a single value."""
    n = sum(map(len, groups))
    if len(groups) == 1:
        return math.sqrt(float(np.square(groups[0] - centre).sum()) / (n - 1) / n) if n > 1 else math.inf
    sums = np.array([float((group - centre).sum()) for group in groups])
    return math.sqrt(len(groups) / (len(groups) - 1) * float(sums @ sums)) / n


def _t(n_groups: int) -> float:
    """97.5 % quantile of Student's t for that many windows; the normal one for positions of one window.

    Source: Abramowitz and Stegun 26.7.5, two terms; beyond the table they are off by less than 0.01.
    """
    freedom = n_groups - 1
    if freedom == 0:
        return _Z
    if freedom <= len(_T):
        return _T[freedom - 1]
    return _Z + (_Z**3 + _Z) / (4 * freedom) + (5 * _Z**5 + 16 * _Z**3 + 3 * _Z) / (96 * freedom**2)
