"""A rough estimate of a row's weight: the sum of exp((logit - shift) / temperature) in float32.

It is most of the cost of a draw over the whole vocabulary, so that there may be faster ways to it than numpy's. It
says where to cut and what lies beyond; where its error could matter, the draw is decided in float64. Pure; any thread.
"""

from collections.abc import Callable
from functools import cache
from math import log

import numpy as np
from numpy.lib.introspect import opt_func_info

from worker.engine.sampling.arrays import Logits

Estimate = Callable[[Logits, float, float], float]
"""(logits, only read; the logit that weighs 1; temperature) → the sum, perhaps infinite; NaN where a logit is.
F32_SLACK bounds its error."""

F32_SLACK = 1e-5
"""Bounds the relative error of a float32 sum of float32 weights: exp's argument, rounded three times, is off by 7e-6
where it is above -40 (weights below that are less than float64's rounding of a total), exp by 3e-7, the sum by 2e-6."""
F32_SUM = 3e-6
"""The part of F32_SLACK that the sum itself adds: numpy adds pairwise, in chains of some 40 additions at most."""

_LOG2_E = 1.0 / log(2.0)


def scaled(logits: Logits, shift: float, scale: float) -> Logits:
    """A new array of (logit - shift) * scale."""
    factor = np.float32(scale)
    with np.errstate(over="ignore"):
        return (logits - np.float32(shift)) * factor if shift else logits * factor


def numpy_estimate(logits: Logits, shift: float, temperature: float) -> float:
    """The `Estimate` that every machine has."""
    exp, unit = _fastest_exp()
    weights = scaled(logits, shift, unit / temperature)
    with np.errstate(over="ignore"):
        return float(exp(weights, out=weights).sum())


@cache
def _fastest_exp() -> tuple[np.ufunc, float]:
    """Return the one of exp2 and exp that numpy computes faster here, and the 1 of its exponents.

    exp2 takes half the time of exp where it has a kernel for the processor's vectors (AVX-512), and twice that where it
    has none (152,064 values with AVX2: 605 µs and 285).
    """
    kernels = opt_func_info(func_name="^exp2$", signature="float32").get("exp2", {}).values()
    has_vectors = any(not kernel["current"].startswith("baseline") for kernel in kernels)
    return (np.exp2, _LOG2_E) if has_vectors else (np.exp, 1.0)
