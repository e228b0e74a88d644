"""The shortlist: the tokens of a row that can matter, cut from the vocabulary before any float64 work and any sort.

A cut may keep too many tokens, never too few. The *bulk* of a row is its logits without those of the touched tokens
(row.py), which are few and weighed apart.

typical_p, top_p, min_p and the draw need no sort either. All but min_p are one question about tokens in some order: at
which of them does the running sum of probabilities reach a number? Where float64 rounding leaves the answer open,
sample.py decides.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from worker.engine.sampling.row import F32_SLACK, F32_SUM, Ids, Logits, Mask, Reals, Row
from worker.wire.jobs import SamplingParams

_ROUNDING = 2.0**-52
"""This times the number of terms bounds the relative difference of two float64 sums of the same weights."""
_N_OTHER_ROUNDINGS = 16
"""The most roundings of exp, a division and a product; they count like terms."""
_EAGERNESS = (56.0, 28.0, 6.0, 0.5)
"""The weights to cut at, as multiples of the one that always leaves enough; most rows need only the first."""
_F32_ROUNDING = 2.0**-22
_MIN_LOGIT = float(np.finfo(np.float32).min)
_MIN_SCORE = float(np.finfo(np.float64).min)
_MIN_TOTAL, _MAX_TOTAL = 2.0**-20, 2.0**80
"""The range of totals in which nothing in a float32 sum overflows, what is lost at its other end is 2^-80 of it, and an
exponent's rounding stays within F32_SLACK."""
_SAMPLE = 1024
"""The number of sampled values that show where the highest lie."""


@dataclass(frozen=True, slots=True)
class Shortlist:
    """The tokens of highest scores of a row, in ascending order of id. None of them has score -inf."""

    ids: Ids
    scores: Reals
    weights: Reals
    """exp(score - the row's highest score)."""
    held: float
    """The sum of these weights."""
    rounding: float
    """The most by which the order of additions can change a sum of weights, as a share of it."""
    rest: float = 0.0
    """The weight of all other tokens that still count."""
    rest_error: float = 0.0
    """The most by which `rest` may be off."""

    @property
    def total(self) -> float:
        return self.held + self.rest

    @property
    def error(self) -> float:
        """The most by which `total`, or any sum of weights, may be off from a plain float64 sum in sorted order."""
        return self.rest_error + self.total * self.rounding

    def keep(self, chosen: Ids | Mask) -> "Shortlist":
        """The shortlist of only these tokens; all others count no more."""
        weights = self.weights[chosen]
        return Shortlist(self.ids[chosen], self.scores[chosen], weights, float(weights.sum()), self.rounding)


def covering(row: Row, sampling: SamplingParams, share: float) -> Shortlist:
    """Return, after top_n_sigma and top_k, at least the most probable tokens that together hold `share` of the
    probability.

    It has all tokens where typical_p is on, because that does not begin with the most probable ones.
    `share`: 0..1 (0: at least the most probable one). Tokens that min_p removes may be missing from it.
    Raises: ValueError when there is no distribution.
    """
    if sampling.top_n_sigma > 0.0 or sampling.top_k or sampling.typical_p < 1.0:
        return whole(row, sampling)
    bulk = row.bulk()
    shift, total = _total(row, bulk)
    if not math.isfinite(total):
        return whole(row, sampling)
    lowest = _lowest_needed(row, bulk, sampling.min_p)
    for cut in _cuts(row, shift, (1.0 - share) * total / len(bulk), lowest):
        ids = (bulk >= cut).nonzero()[0]
        if cut > lowest and not ids.size:
            continue
        held = row.estimate(bulk.take(ids), shift, row.temperature)
        if cut > lowest and held < share * total:
            continue
        shortlist = _shortlist(row, ids, cut, _Rest(max(total - held, 0.0), total, shift))
        if cut == lowest or shortlist.held - shortlist.error >= share * shortlist.total:
            return shortlist
        break
    return whole(row, sampling)


def whole(row: Row, sampling: SamplingParams) -> Shortlist:
    """Return, after top_n_sigma and top_k, every token, with a total that is exact to float64.

    Raises: ValueError when there is no distribution.
    """
    if sampling.top_n_sigma > 0.0:
        # Tang et al. 2024, "Top-nσ: Not All Logits Are You Need"; on scores after temperature and penalties.
        scores = row.all_scores()
        highest = float(scores.max())
        row.check(highest)
        possible = scores[scores > -np.inf]
        possible -= possible.mean()
        deviation = math.sqrt(np.square(possible, out=possible).mean())
        ids = (scores >= highest - sampling.top_n_sigma * deviation).nonzero()[0]
        shortlist = _of(row, ids, scores[ids])
    elif sampling.top_k:
        bulk = row.bulk()
        row.check(float(np.maximum(bulk.max(), row.scores.max(initial=-np.inf))))
        shortlist = _shortlist(row, some_highest(bulk, sampling.top_k))
    else:
        scores = row.all_scores()
        row.check(float(scores.max()))
        ids = (scores > -np.inf).nonzero()[0]
        shortlist = _of(row, ids, scores[ids])
    if sampling.top_k and len(shortlist.ids) > sampling.top_k:
        return shortlist.keep(np.sort(highest_first(shortlist.scores, sampling.top_k)))
    return shortlist


def highest_first(values: Logits | Reals, n_wanted: int) -> Ids:
    """Positions of the `n_wanted` highest values, highest first; of equals the first; never of a -inf."""
    some = some_highest(values, n_wanted)
    return some[np.argsort(-values[some], kind="stable")[:n_wanted]]


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


def settled(shortlist: Shortlist, row: Row) -> Shortlist:
    """The same tokens of the row, with the weight of all others exact to float64."""
    weights = row.all_scores()
    weights -= shortlist.scores.max()
    np.exp(weights, out=weights)
    weights[shortlist.ids] = 0.0
    return replace(shortlist, rest=float(weights.sum()), rest_error=0.0)


class _Rest(NamedTuple):
    """The weight of the untouched tokens that are not in a shortlist, and of all untouched ones, by a float32 sum: its
    error is a share of the latter. A token of logit `shift` weighs 1."""

    weight: float = 0.0
    total: float = 0.0
    shift: float = 0.0


_NOTHING = _Rest()


def _shortlist(row: Row, ids: Ids, cut: float = -math.inf, rest: _Rest = _NOTHING) -> Shortlist:
    """The shortlist of the untouched tokens `ids`, ascending, and of the touched ones with scores like those of logits
    from `cut` on.
    """
    scores = row.logits.take(ids).astype(np.float64)
    if row.temperature != 1.0:
        scores /= row.temperature
    if not row.touched.size:
        return _of(row, ids, scores, rest)
    is_low = row.scores < max(cut / row.temperature, _MIN_SCORE)
    ids = np.concatenate([ids, row.touched[~is_low]])
    order = ids.argsort(kind="stable")
    scores = np.concatenate([scores, row.scores[~is_low]])[order]
    shortlist = _of(row, ids[order], scores, rest)
    return replace(shortlist, rest=shortlist.rest + float(np.exp(row.scores[is_low] - scores.max()).sum()))


def _of(row: Row, ids: Ids, scores: Reals, rest: _Rest = _NOTHING) -> Shortlist:
    highest = float(scores.max(initial=-np.inf))
    row.check(highest)
    weight = error = 0.0
    if rest.total and len(ids) < len(row.logits):
        scale = math.exp(rest.shift / row.temperature - highest)
        weight, error = scale * rest.weight, scale * (rest.weight * F32_SLACK + rest.total * F32_SUM)
    rounding = (len(row.logits) + _N_OTHER_ROUNDINGS) * _ROUNDING
    weights = scores - highest
    np.exp(weights, out=weights)
    return Shortlist(ids, scores, weights, float(weights.sum()), rounding, weight, error)


def _total(row: Row, bulk: Logits) -> tuple[float, float]:
    """(the logit whose weight is 1, the sum of all weights by float32); the sum is NaN where there is none.

    That logit is 0, which saves two passes over the row, unless the sum would leave float32's range.
    """
    total = row.estimate(bulk, 0.0, row.temperature)
    if _MIN_TOTAL <= total <= _MAX_TOTAL:
        return 0.0, total
    highest = float(bulk.max())
    if not math.isfinite(highest):
        return 0.0, math.nan
    return highest, row.estimate(bulk, highest, row.temperature)


def _cuts(row: Row, shift: float, mean_left_out: float, lowest: float) -> Iterator[float]:
    """Ever lower logits to cut at, down to `lowest`, the last one; or until nothing would be left out.

    `mean_left_out`: if no token that is left out weighs more than this, enough are left.
    """
    for eagerness in _EAGERNESS:
        weight = eagerness * mean_left_out
        cut = float(np.float32(shift + row.temperature * math.log(weight))) if weight else -math.inf
        if cut <= lowest:
            break
        yield cut
    if lowest > -math.inf:
        yield lowest


def _lowest_needed(row: Row, bulk: Logits, min_p: float) -> float:
    """A logit below which min_p surely removes every untouched token; -inf: none."""
    if min_p <= 0.0:
        return -math.inf
    highest = float(bulk.max())
    lead = max(0.0, float(row.scores.max(initial=-np.inf)) - highest / row.temperature)
    below_highest = row.temperature * max(-math.log(min_p) - lead, 0.0)
    cut = highest - below_highest - _F32_ROUNDING * (abs(highest) + below_highest)
    return float(np.float32(max(cut, _MIN_LOGIT)))


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
