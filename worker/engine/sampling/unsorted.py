"""typical_p, top_p, min_p and the draw on a shortlist, without sorting all of it.

All but min_p are one question about tokens in some order: at which of them does the running sum of probabilities reach
a number? Owns the answer, and knows when float64 rounding leaves it open; sample.py decides then.
"""

import math
from dataclasses import replace

import numpy as np

from worker.engine.sampling.row import Ids, Mask, Reals
from worker.engine.sampling.shortlist import Shortlist
from worker.wire.jobs import SamplingParams

_SORTABLE = 1024
"""More tokens than these are first narrowed to those near the sum that is looked for."""
_N_BINS = 512
_MAX_NARROWINGS = 4
_SPAN = 40.0
"""Tokens whose scores are so far below the highest share the last bin: exp(-40) of any vocabulary is next to
nothing."""
_RATIO_ROUNDING = 1e-14
"""This is more than a few roundings of a ratio of two weights."""
_NEARNESS_ROUNDING = 1e-12
"""This is more than a few roundings of a difference of informations."""


class Undecided(Exception):
    """A sum lies so close to a border that only the plain order of additions says on which side."""


def truncated(shortlist: Shortlist, sampling: SamplingParams) -> Shortlist:
    """The tokens that typical_p, top_p and min_p leave, in this order. Raises: Undecided."""
    if sampling.typical_p < 1.0:
        shortlist = _typical(shortlist, sampling.typical_p)
    kept = shortlist
    if sampling.min_p > 0.0:
        kept = shortlist.keep(_are_at_least(sampling.min_p, shortlist.weights / shortlist.weights.max()))
    if sampling.top_p >= 1.0:
        return kept
    target = sampling.top_p * shortlist.total
    if kept is not shortlist and kept.total < target - shortlist.error:
        return kept
    return kept.keep(_up_to(kept, _reaching(kept, target, shortlist.error)))


def drawn(shortlist: Shortlist, sampling: SamplingParams, number: float, *, is_xtc: bool) -> int:
    """The token at which the running sum of what is left passes `number` (0 <= number < 1) of it. Raises: Undecided."""
    if sampling.typical_p >= 1.0 and len(shortlist.ids) <= _SORTABLE:
        return _drawn_of_few(shortlist, sampling, number, is_xtc=is_xtc)
    shortlist = truncated(shortlist, sampling)
    if is_xtc:
        shortlist = _without_top_choices(shortlist, sampling.xtc_threshold)
    return int(shortlist.ids[_reaching(shortlist, number * shortlist.total, shortlist.error)])


def _drawn_of_few(shortlist: Shortlist, sampling: SamplingParams, number: float, *, is_xtc: bool) -> int:
    """Does what `drawn` does, with one sort for the cuts and the draw."""
    order = (-shortlist.scores).argsort(kind="stable")
    weights = shortlist.weights.take(order)
    sums = weights.cumsum()
    total, error = shortlist.total, shortlist.error
    n_kept = len(order)
    if sampling.min_p > 0.0:
        n_kept = int(np.count_nonzero(_are_at_least(sampling.min_p, weights / weights[0])))
    nucleus = sampling.top_p * total
    if sampling.top_p < 1.0 and not sums[n_kept - 1] < nucleus - error:
        n_kept = _place(sums[:n_kept], nucleus, error) + 1
    if n_kept < len(order) or sampling.top_p < 1.0 or sampling.min_p > 0.0:
        total = float(sums[n_kept - 1])
        error = total * shortlist.rounding
    gone = 0.0
    if is_xtc:
        n_top = int(np.count_nonzero(_are_at_least(sampling.xtc_threshold, weights[:n_kept] / total, error / total)))
        if n_top == len(order):
            raise Undecided  # there may be more of them outside the shortlist
        gone = float(sums[n_top - 2]) if n_top > 1 else 0.0
    return int(shortlist.ids[order[_place(sums[:n_kept], gone + number * (total - gone), error)]])


def _without_top_choices(shortlist: Shortlist, threshold: float) -> Shortlist:
    """XTC as in sample.py; tokens that are not in the shortlist go on counting. Raises: Undecided."""
    shares = shortlist.weights / shortlist.total
    top = _are_at_least(threshold, shares, shortlist.error / shortlist.total).nonzero()[0]
    if len(top) == len(shares):
        raise Undecided
    is_kept = np.ones(len(shares), dtype=np.bool_)
    is_kept[top[(-shortlist.scores[top]).argsort(kind="stable")][:-1]] = False
    return replace(shortlist.keep(is_kept), rest=shortlist.rest, rest_error=shortlist.rest_error)


def _typical(shortlist: Shortlist, mass: float) -> Shortlist:
    """typical_p as in sample.py: the fewest tokens, nearest to the expected information first, that together hold
    `mass`.
    """
    information = shortlist.scores.max() - shortlist.scores
    information += math.log(shortlist.total)
    # Not np.dot: it would wake the threads of the linear algebra library.
    entropy = float((shortlist.weights * information).sum()) / shortlist.total
    nearness = np.abs(np.subtract(information, entropy, out=information), out=information)
    np.negative(nearness, out=nearness)
    ordered = replace(shortlist, scores=nearness)
    last = _reaching(ordered, mass * shortlist.total, shortlist.error)
    is_as_near = nearness <= nearness[last] + _NEARNESS_ROUNDING
    is_as_near &= nearness >= nearness[last] - _NEARNESS_ROUNDING
    if (shortlist.scores[is_as_near] != shortlist.scores[last]).any():
        raise Undecided
    return shortlist.keep(_up_to(ordered, last))


def _are_at_least(border: float, ratios: Reals, error: float = 0.0) -> Mask:
    """Raises: Undecided, where a ratio is so near the border that its rounding decides."""
    if (np.abs(ratios - border) <= error + _RATIO_ROUNDING).any():
        raise Undecided
    are: Mask = ratios >= border
    return are


def _up_to(shortlist: Shortlist, last: int) -> Mask:
    """Return the tokens that come no later in sorted order than the one at position `last`."""
    score = shortlist.scores[last]
    is_kept: Mask = shortlist.scores > score
    is_kept[: last + 1] |= shortlist.scores[: last + 1] == score
    return is_kept


def _reaching(shortlist: Shortlist, target: float, error: float) -> int:
    """Position in the shortlist of the token at which the running sum of weights, in sorted order, reaches `target`."""
    positions, before = _narrowed(shortlist, target)
    order = positions[(-shortlist.scores[positions]).argsort(kind="stable")]
    sums = shortlist.weights[order].cumsum()
    sums += before
    return int(order[_place(sums, target, error, before)])


def _place(sums: Reals, target: float, error: float, before: float = 0.0) -> int:
    """Return where the running sums reach `target`. `before`: the sum ahead of the first. Raises: Undecided."""
    place = int(sums.searchsorted(target))
    if place == len(sums) or sums[place] - target <= error:
        raise Undecided
    if place:
        before = float(sums[place - 1])
    if before > 0.0 and target - before <= error:
        raise Undecided
    return place


def _narrowed(shortlist: Shortlist, target: float) -> tuple[Ids, float]:
    """Positions, ascending, of few tokens among which the sum reaches `target`, and the weight of all that are sorted
    before these.

    A histogram of the scores, highest first, shows in which bin that is; equal scores share a bin.
    """
    positions = np.arange(len(shortlist.ids))
    scores, weights, before = shortlist.scores, shortlist.weights, 0.0
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
