"""typical_p, top_p, min_p and the draw on a pool, without ranking it.

All but min_p are one question about tokens in some order: at which of them does the running sum of probabilities reach
a number? Owns the answer, and the knowledge when float64 rounding leaves it open; sorted.py decides then. Pure; the
step thread.
"""

import math
from dataclasses import replace

import numpy as np

from worker.sampling.arrays import Ids, Mask, Reals
from worker.sampling.shortlist import Pool
from worker.wire.messages import Sampling

_SORTABLE = 1024
"""More tokens than these are first narrowed to those near the sum that is looked for."""
_N_BINS = 512
_MAX_NARROWINGS = 4
_SPAN = 40.0
"""Tokens so far below the highest score share the last bin: exp(-40) of any vocabulary is next to nothing."""
_RATIO_ROUNDING = 1e-14
"""More than a few roundings of a ratio of two weights."""
_NEARNESS_ROUNDING = 1e-12
"""More than a few roundings of a difference of informations."""


class Undecided(Exception):
    """A sum lies so close to a border that only the plain order of additions says on which side."""


def truncated(pool: Pool, sampling: Sampling) -> Pool:
    """The tokens that typical_p, top_p and min_p leave, in this order. Raises: Undecided."""
    if sampling.typical_p < 1.0:
        pool = _typical(pool, sampling.typical_p)
    kept = _above_ratio(pool, sampling.min_p) if sampling.min_p > 0.0 else pool
    if sampling.top_p >= 1.0:
        return kept
    target = sampling.top_p * pool.total
    if kept is not pool and kept.total < target - pool.error:
        return kept
    return kept.keep(_up_to(kept, _reaching(kept, target, pool.error)))


def drawn(pool: Pool, sampling: Sampling, number: float, *, is_xtc: bool) -> int:
    """The token at which the running sum of what is left passes `number` (0 <= number < 1) of it. Raises: Undecided."""
    if sampling.typical_p >= 1.0 and len(pool.ids) <= _SORTABLE:
        return _drawn_of_few(pool, sampling, number, is_xtc=is_xtc)
    pool = truncated(pool, sampling)
    if is_xtc:
        pool = _without_top_choices(pool, sampling.xtc_threshold)
    return int(pool.ids[_reaching(pool, number * pool.total, pool.error)])


def _drawn_of_few(pool: Pool, sampling: Sampling, number: float, *, is_xtc: bool) -> int:
    """As `drawn`, with one sort for the cuts and the draw."""
    order = (-pool.scores).argsort(kind="stable")
    weights = pool.weights.take(order)
    sums = weights.cumsum()
    total, error = pool.total, pool.error
    n_kept = len(order)
    if sampling.min_p > 0.0:
        ratios = weights / weights[0]
        _check_ratios(ratios, sampling.min_p)
        n_kept = int(np.count_nonzero(ratios >= sampling.min_p))
    nucleus = sampling.top_p * total
    if sampling.top_p < 1.0 and not sums[n_kept - 1] < nucleus - error:
        n_kept = _place(sums[:n_kept], nucleus, error) + 1
    if n_kept < len(order) or sampling.top_p < 1.0 or sampling.min_p > 0.0:
        total = float(sums[n_kept - 1])
        error = total * pool.rounding
    gone = 0.0
    if is_xtc:
        shares = weights[:n_kept] / total
        _check_ratios(shares, sampling.xtc_threshold, error / total)
        n_top = int(np.count_nonzero(shares >= sampling.xtc_threshold))
        if n_top == len(order):
            raise Undecided  # there may be more of them outside the pool
        gone = float(sums[n_top - 2]) if n_top > 1 else 0.0
    return int(pool.ids[order[_place(sums[:n_kept], gone + number * (total - gone), error)]])


def _without_top_choices(pool: Pool, threshold: float) -> Pool:
    """As sorted.py's; what is not in the pool stays. Raises: Undecided."""
    shares = pool.weights / pool.total
    _check_ratios(shares, threshold, pool.error / pool.total)
    top = (shares >= threshold).nonzero()[0]
    if len(top) == len(shares):
        raise Undecided
    is_kept = np.ones(len(shares), dtype=np.bool_)
    is_kept[top[(-pool.scores[top]).argsort(kind="stable")][:-1]] = False
    return replace(pool.keep(is_kept), rest=pool.rest, rest_error=pool.rest_error)


def _typical(pool: Pool, mass: float) -> Pool:
    """As sorted.py's: the fewest tokens, nearest to the expected information first, that together hold `mass`."""
    information = pool.scores.max() - pool.scores
    information += math.log(pool.total)
    # Not np.dot: it would wake the threads of the linear algebra library.
    entropy = float((pool.weights * information).sum()) / pool.total
    nearness = np.abs(np.subtract(information, entropy, out=information), out=information)
    np.negative(nearness, out=nearness)
    ordered = replace(pool, scores=nearness)
    last = _reaching(ordered, mass * pool.total, pool.error)
    is_as_near = nearness <= nearness[last] + _NEARNESS_ROUNDING
    is_as_near &= nearness >= nearness[last] - _NEARNESS_ROUNDING
    if (pool.scores[is_as_near] != pool.scores[last]).any():
        raise Undecided
    return pool.keep(_up_to(ordered, last))


def _above_ratio(pool: Pool, min_p: float) -> Pool:
    ratios = pool.weights / pool.weights.max()
    _check_ratios(ratios, min_p)
    return pool.keep(ratios >= min_p)


def _check_ratios(ratios: Reals, border: float, error: float = 0.0) -> None:
    """Raises: Undecided."""
    if (np.abs(ratios - border) <= error + _RATIO_ROUNDING).any():
        raise Undecided


def _up_to(pool: Pool, last: int) -> Mask:
    """Which tokens rank no lower than the one at position `last`."""
    score = pool.scores[last]
    is_kept: Mask = pool.scores > score
    is_kept[: last + 1] |= pool.scores[: last + 1] == score
    return is_kept


def _reaching(pool: Pool, target: float, error: float) -> int:
    """Position in the pool of the first token, in rank order, at which the running sum of weights reaches `target`."""
    positions, before = _narrowed(pool, target)
    order = positions[(-pool.scores[positions]).argsort(kind="stable")]
    sums = pool.weights[order].cumsum()
    sums += before
    return int(order[_place(sums, target, error, before)])


def _place(sums: Reals, target: float, error: float, before: float = 0.0) -> int:
    """Where the running sums reach `target`; `before`: the sum ahead of the first. Raises: Undecided."""
    place = int(sums.searchsorted(target))
    if place == len(sums) or sums[place] - target <= error:
        raise Undecided
    if place:
        before = float(sums[place - 1])
    if before > 0.0 and target - before <= error:
        raise Undecided
    return place


def _narrowed(pool: Pool, target: float) -> tuple[Ids, float]:
    """Positions, ascending, of few tokens among which the sum reaches `target`, and the weight of all ranked before.

    A histogram of the scores, highest first, tells in which bin that is; equal scores share a bin.
    """
    positions = np.arange(len(pool.ids))
    scores, weights, before = pool.scores, pool.weights, 0.0
    for _ in range(_MAX_NARROWINGS):
        if len(positions) <= _SORTABLE:
            break
        highest = float(scores.max())
        span = min(highest - float(scores.min()), _SPAN)
        if span == 0.0:
            break
        depth = highest - scores
        depth *= _N_BINS / span
        bins = np.minimum(depth, _N_BINS, out=depth).astype(np.int16)
        sums = np.bincount(bins, weights).cumsum()
        the_bin = int(np.searchsorted(sums, target - before))
        inside = np.flatnonzero(bins == the_bin)
        before += float(sums[the_bin - 1]) if the_bin else 0.0
        positions, scores, weights = positions[inside], scores[inside], weights[inside]
    return positions, before
