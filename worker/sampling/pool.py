"""The tokens of a row that can matter: cut from the vocabulary without sorting it.

Owns the cuts before any float64 work: enough of the most probable tokens to hold a wanted share of the probability, or
a wanted number of them; and top_n_sigma, which is a cut itself. A cut may keep too much, never too little. Knows
nothing of nuclei or draws. Pure; the step thread.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from worker.engine.contract import Sampling
from worker.sampling.arrays import Ids, Logits, Mask, Reals
from worker.sampling.row import Row

_F32_SLACK = 1e-5
"""Bounds the relative error of a float32 sum of float32 weights: exp's argument, rounded three times, is off by 7e-6
where it is above -40 (weights below that are less than float64's rounding of a total), exp by 3e-7, the sum by 2e-6."""
_ROUNDING = 2.0**-52
"""Times the number of terms: bounds by how much two float64 sums of the same weights can differ."""
_N_OTHER_ROUNDINGS = 16
"""Of exp, of a division, of a product; counted like terms."""
_EAGERNESS = (64.0, 8.0, 0.5)
"""The weights to cut at, as multiples of the one that always leaves enough; most rows need only the first."""
_F32_ROUNDING = 2.0**-22
_LEAST_LOGIT = float(np.finfo(np.float32).min)
_LEAST_SCORE = float(np.finfo(np.float64).min)
_SAMPLE = 1024
"""How many values tell where the highest lie."""


@dataclass(frozen=True, slots=True)
class Pool:
    """The highest-ranked tokens of a row, in ascending order of id. None of them has score -inf."""

    ids: Ids
    scores: Reals
    weights: Reals
    """exp(score - the row's highest score)."""
    held: float
    """The sum of these weights."""
    rounding: float
    """Relative bound on what the order of additions can change of a sum of weights."""
    rest: float = 0.0
    """The weight of all other tokens that still count."""
    rest_error: float = 0.0

    @property
    def total(self) -> float:
        return self.held + self.rest

    @property
    def error(self) -> float:
        """How much `total`, or any sum of weights, may be off from a plain float64 sum in rank order."""
        return self.rest_error + self.total * self.rounding

    def keep(self, chosen: Ids | Mask) -> "Pool":
        """Only these tokens; all others count no more."""
        weights = self.weights[chosen]
        return Pool(self.ids[chosen], self.scores[chosen], weights, float(weights.sum()), self.rounding)


def covering(row: Row, sampling: Sampling, share: float) -> Pool:
    """After top_n_sigma and top_k: at least the most probable tokens that together hold `share` of the probability.

    All tokens where typical_p is on, for which the most probable are not the first.
    `share`: 0..1 (0: at least the most probable one). Tokens that min_p removes may be missing from it.
    Raises: ValueError when there is no distribution.
    """
    if sampling.top_n_sigma > 0.0 or sampling.top_k or sampling.typical_p < 1.0:
        return whole(row, sampling)
    bulk = row.bulk()
    highest = float(bulk.max())
    if not math.isfinite(highest):
        return whole(row, sampling)
    weights = _estimates(bulk, highest, row.temperature)
    total = float(weights.sum())
    lowest = _lowest_needed(row, highest, sampling.min_p)
    for cut in _cuts(row, highest, (1.0 - share) * total / len(weights), lowest):
        ids = (bulk >= cut).nonzero()[0]
        if cut > lowest and float(weights[ids].sum()) < share * total:
            continue
        weights[ids] = 0.0
        pool = _pool(row, ids, cut, float(weights.sum()), highest)
        if cut == lowest or pool.held - pool.error >= share * pool.total:
            return pool
        break
    return whole(row, sampling)


def whole(row: Row, sampling: Sampling) -> Pool:
    """After top_n_sigma and top_k: every token, with a total that is exact to float64.

    Raises: ValueError when there is no distribution.
    """
    if sampling.top_n_sigma > 0.0:
        pool = _of(row, *_above_sigma(row, sampling.top_n_sigma))
    elif sampling.top_k:
        bulk = row.bulk()
        row.check(float(np.maximum(bulk.max(), row.scores.max(initial=-np.inf))))
        pool = _pool(row, some_highest(bulk, sampling.top_k))
    else:
        scores = row.all_scores()
        row.check(float(scores.max()))
        ids = (scores > -np.inf).nonzero()[0]
        pool = _of(row, ids, scores[ids])
    if sampling.top_k and len(pool.ids) > sampling.top_k:
        return pool.keep(_highest(pool.scores, sampling.top_k))
    return pool


def some_highest(values: Logits | Reals, n_wanted: int) -> Ids:
    """Positions, ascending, of at least the `n_wanted` highest values and all equals of these; never of a -inf.

    A few values at equal distances say where to cut; a partial sort of them all takes several times as long.
    """
    sample = np.sort(values[:: len(values) // _SAMPLE + 1])
    n_above = 4 + 4 * n_wanted * len(sample) // len(values)
    while n_above < len(sample) and sample[-n_above] > -np.inf:
        is_high = values >= sample[-n_above]
        if np.count_nonzero(is_high) >= n_wanted:
            return np.flatnonzero(is_high)
        n_above *= 4
    return np.flatnonzero(values > -np.inf)


def settled(pool: Pool, row: Row) -> Pool:
    """The same tokens of the row, with the weight of all others exact to float64."""
    weights = row.all_scores()
    weights -= pool.scores.max()
    np.exp(weights, out=weights)
    weights[pool.ids] = 0.0
    return replace(pool, rest=float(weights.sum()), rest_error=0.0)


# ── from scores to a pool ────────────────────────────────────────────────────────────────────────


def _pool(row: Row, ids: Ids, cut: float = -math.inf, rest: float = 0.0, rest_highest: float = 0.0) -> Pool:
    """The untouched tokens `ids`, ascending, and the touched ones of the same scores: those of logits from `cut` on.

    `rest`: the weight of all other untouched tokens, against the logit `rest_highest`, by a float32 sum.
    """
    scores = row.logits[ids].astype(np.float64)
    if row.temperature != 1.0:
        scores /= row.temperature
    if not row.touched.size:
        return _of(row, ids, scores, rest, rest_highest)
    is_low = row.scores < max(cut / row.temperature, _LEAST_SCORE)
    ids = np.concatenate([ids, row.touched[~is_low]])
    order = ids.argsort(kind="stable")
    scores = np.concatenate([scores, row.scores[~is_low]])[order]
    pool = _of(row, ids[order], scores, rest, rest_highest)
    return replace(pool, rest=pool.rest + float(np.exp(row.scores[is_low] - scores.max()).sum()))


def _of(row: Row, ids: Ids, scores: Reals, rest: float = 0.0, rest_highest: float = 0.0) -> Pool:
    highest = float(scores.max(initial=-np.inf))
    row.check(highest)
    if rest:
        rest *= math.exp(rest_highest / row.temperature - highest)
    rounding = (len(row.logits) + _N_OTHER_ROUNDINGS) * _ROUNDING
    weights = scores - highest
    np.exp(weights, out=weights)
    return Pool(ids, scores, weights, float(weights.sum()), rounding, rest, rest * _F32_SLACK)


# ── cuts ─────────────────────────────────────────────────────────────────────────────────────────


def _estimates(bulk: Logits, highest: float, temperature: float) -> Logits:
    """float32[n_vocab]: exp(score - highest score), roughly."""
    with np.errstate(over="ignore"):
        weights: Logits = bulk - np.float32(highest)
        if temperature != 1.0:
            weights *= np.float32(1.0 / temperature)
    return np.exp(weights, out=weights)


def _cuts(row: Row, highest: float, mean_left_out: float, lowest: float) -> Iterator[float]:
    """Ever lower logits to cut at, down to `lowest`, the last one; or until nothing would be left out.

    `mean_left_out`: a weight; if no token left out weighs more, enough is left.
    """
    for eagerness in _EAGERNESS:
        weight = min(eagerness * mean_left_out, 1.0)
        cut = float(np.float32(highest + row.temperature * math.log(weight))) if weight else -math.inf
        if cut <= lowest:
            break
        yield cut
    if lowest > -math.inf:
        yield lowest


def _lowest_needed(row: Row, highest: float, min_p: float) -> float:
    """A logit below which min_p surely removes every untouched token; -inf: none."""
    if min_p <= 0.0:
        return -math.inf
    lead = max(0.0, float(row.scores.max(initial=-np.inf)) - highest / row.temperature)
    below_highest = row.temperature * max(-math.log(min_p) - lead, 0.0)
    cut = highest - below_highest - _F32_ROUNDING * (abs(highest) + below_highest)
    return float(np.float32(max(cut, _LEAST_LOGIT)))


def _above_sigma(row: Row, n_sigma: float) -> tuple[Ids, Reals]:
    """The tokens with score >= highest - n_sigma * (population) standard deviation of all possible tokens' scores.

    Source: Tang et al. 2024, "Top-nσ: Not All Logits Are You Need"; on scores after temperature and penalties.
    """
    scores = row.all_scores()
    highest = float(scores.max())
    row.check(highest)
    possible = scores[scores > -np.inf]
    possible -= possible.mean()
    deviation = math.sqrt(np.square(possible, out=possible).mean())
    ids = (scores >= highest - n_sigma * deviation).nonzero()[0]
    return ids, scores[ids]


def _highest(scores: Reals, n_kept: int) -> Ids:
    """Positions, ascending, of the `n_kept` highest scores; of equals the first."""
    some = some_highest(scores, n_kept)
    return np.sort(some[np.argsort(-scores[some], kind="stable")[:n_kept]])
