"""One position: a row of the reference's logits against a candidate's, as numbers.

Owns the definitions of every number per position, in float64. Knows nothing of windows. Pure.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from worker.sampling.shortlist import highest_ranked

N_TOP = 5
_NOISE = 1e-14
"""A share of the reference's probability below this is the rounding of `1 - sum`."""

Reals = NDArray[np.float64]


class Numbers(NamedTuple):
    """The fields of evidence.Positions, at one position."""

    kl: float
    max_error: float
    mean_error: float
    cosine: float
    top1: bool
    top5: float
    margin: float
    nll: float
    reference_nll: float
    is_full: bool


@dataclass(frozen=True, slots=True)
class KnownRow:
    """A reference's row of which the highest logits are known."""

    ids: NDArray[np.int32]
    """Highest logit first, ties by lower id; at least two."""
    logits: NDArray[np.float32]
    logsumexp: float
    """Over the whole vocabulary."""
    next_logit: float
    """The logit of the token that follows; NaN where none does."""


@dataclass(frozen=True, slots=True)
class _Softmax:
    """A row against its highest logit, so that a constant added to it changes nothing."""

    highest: float
    shifted: Reals
    """logits - highest"""
    weights: Reals
    """exp(shifted)"""
    total: float

    @classmethod
    def of(cls, row: NDArray[np.floating]) -> Self:
        highest = float(row.max())
        shifted = row.astype(np.float64)
        shifted -= highest
        weights = np.exp(shifted)
        return cls(highest, shifted, weights, float(weights.sum()))

    @property
    def log_total(self) -> float:
        return math.log(self.total)

    def nll(self, token: int | None) -> float:
        return math.nan if token is None else self.log_total - float(self.shifted[token])


def logsumexp(row: NDArray[np.floating]) -> float:
    """ln of the sum of exp(logit), in float64."""
    softmax = _Softmax.of(row)
    return softmax.highest + softmax.log_total


def of_full(reference: NDArray[np.floating], candidate: NDArray[np.float32], target: int | None) -> Numbers:
    """Every logit of both rows known. `target`: the token that follows. Raises: ValueError when the reference's row is
    not finite."""
    if not np.isfinite(reference).all():
        raise ValueError("the reference's logits are not all finite")
    tops, expected = highest_ranked(reference, N_TOP), _Softmax.of(reference)
    margin = float(expected.shifted[tops[0]] - expected.shifted[tops[1]])
    if not np.isfinite(candidate).all():
        return _broken(margin, expected.nll(target), is_full=True)
    found = _Softmax.of(candidate)
    difference = expected.shifted - found.shifted
    kl = _dot(expected.weights, difference) / expected.total + found.log_total - expected.log_total
    difference += expected.highest - found.highest
    return Numbers(
        max(kl, 0.0),
        *_errors(difference),
        _cosine(reference.astype(np.float64), candidate.astype(np.float64)),
        *_agreement(tops, candidate),
        margin,
        found.nll(target),
        expected.nll(target),
        is_full=True,
    )


def of_known(reference: KnownRow, candidate: NDArray[np.float32], target: int | None) -> Numbers:
    """KL of the known tokens and the rest as one, errors and cosine of the known tokens; the other numbers exact."""
    known = reference.logits.astype(np.float64)
    margin = float(known[0] - known[1])
    reference_nll = math.nan if target is None else reference.logsumexp - reference.next_logit
    if not np.isfinite(candidate).all():
        return _broken(margin, reference_nll, is_full=False)
    found = _Softmax.of(candidate)
    own = candidate[reference.ids].astype(np.float64)
    return Numbers(
        max(_known_kl(known - reference.logsumexp, reference.ids, found), 0.0),
        *_errors(known - own),
        _cosine(known, own),
        *_agreement(reference.ids[:N_TOP], candidate),
        margin,
        found.nll(target),
        reference_nll,
        is_full=False,
    )


def _known_kl(logprobs: Reals, ids: NDArray[np.int32], found: _Softmax) -> float:
    probs = np.exp(logprobs)
    kl = _dot(probs, logprobs - (found.shifted[ids] - found.log_total))
    rest = 1.0 - float(probs.sum())
    if rest < _NOISE or len(ids) == len(found.weights):
        return kl
    weights = found.weights.copy()
    weights[ids] = 0.0
    found_rest = float(weights.sum()) / found.total
    return kl + rest * math.log(rest / found_rest) if found_rest else math.inf


def _dot(one: Reals, other: Reals) -> float:
    # Not `@`: BLAS wakes its threads for every row, which takes six times as long as one core, and rounds more.
    return float((one * other).sum())


def _errors(difference: Reals) -> tuple[float, float]:
    np.abs(difference, out=difference)
    return float(difference.max()), float(difference.mean())


def _cosine(one: Reals, other: Reals) -> float:
    norms = math.sqrt(_dot(one, one) * _dot(other, other))
    if not norms:
        return float(np.array_equal(one, other))
    return min(1.0, _dot(one, other) / norms)


def _agreement(tops: NDArray[np.integer], candidate: NDArray[np.float32]) -> tuple[bool, float]:
    own = highest_ranked(candidate, N_TOP)
    return bool(own[0] == tops[0]), len(set(own.tolist()).intersection(tops.tolist())) / len(tops)


def _broken(margin: float, reference_nll: float, *, is_full: bool) -> Numbers:
    """A candidate's row with a NaN or an infinity: no bound holds of it, and it agrees in nothing."""
    nll = math.nan if math.isnan(reference_nll) else math.inf
    return Numbers(math.inf, math.inf, math.inf, math.nan, False, 0.0, margin, nll, reference_nll, is_full)
