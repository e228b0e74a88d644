"""The truncations on sorted tokens: typical_p, top_p, min_p and XTC from their plain formulas.

What unsorted.py cannot decide, and what needs the order itself, is done here at the cost of a sort. Tokens come and go
in sorted order: the highest score first, of equal scores the lower id. They are not sorted by probability, because
different scores may round to equal probabilities. Pure; the step thread.
"""

import numpy as np

from worker.engine.sampling.arrays import Ids, Reals
from worker.engine.sampling.shortlist import Shortlist
from worker.wire.jobs import SamplingParams


def in_order(shortlist: Shortlist) -> tuple[Ids, Reals]:
    """The shortlist's ids and scores in sorted order."""
    order = np.argsort(-shortlist.scores, kind="stable")
    return shortlist.ids[order], shortlist.scores[order]


def softmax(scores: Reals) -> Reals:
    """Probabilities (sum 1) of sorted scores."""
    weights: Reals = np.exp(scores - scores[0])
    weights /= weights.sum()
    return weights


def truncated(ids: Ids, scores: Reals, sampling: SamplingParams) -> tuple[Ids, Reals]:
    """Return what typical_p, top_p and min_p leave, in this order, each measured on what the one before left."""
    if sampling.typical_p < 1.0:
        kept = _typical(softmax(scores), sampling.typical_p)
        ids, scores = ids[kept], scores[kept]
    probs = softmax(scores)
    if sampling.top_p < 1.0:
        probs = _nucleus(probs, sampling.top_p)
    if sampling.min_p > 0.0:
        probs = probs[probs >= sampling.min_p * probs[0]]
    return ids[: len(probs)], scores[: len(probs)]


def without_top_choices(ids: Ids, scores: Reals, threshold: float) -> tuple[Ids, Reals]:
    """Return what XTC leaves: all tokens but those of at least this probability, of which the least probable stays.

    Source: p-e-w, "Exclude Top Choices (XTC)", text-generation-webui pull request 6335.
    """
    n_top = int(np.count_nonzero(softmax(scores) >= threshold))
    first = max(n_top - 1, 0)
    return ids[first:], scores[first:]


def _typical(probs: Reals, mass: float) -> Ids:
    """Places of the fewest tokens, nearest to the expected information first, that together hold at least `mass`.

    Of tokens that are equally near the first in sorted order comes first. Source: Meister et al. 2022, "Locally Typical
    Sampling".
    """
    probs = probs[probs > 0.0]
    information = -np.log(probs)
    entropy = float((probs * information).sum())
    order = np.argsort(np.abs(information - entropy), kind="stable")
    n_short = int(np.searchsorted(np.cumsum(probs[order]), mass, side="left"))
    return np.sort(order[: n_short + 1])


def _nucleus(probs: Reals, top_p: float) -> Reals:
    """The shortest prefix whose sum is at least `top_p`; it has at least one token."""
    n_short = int(np.searchsorted(np.cumsum(probs), top_p, side="left"))
    return probs[: n_short + 1]
