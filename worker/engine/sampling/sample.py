"""The way from a row of logits to a token: the request's settings in their order, and the draw; log-probabilities.

The order: bias, bans, temperature and penalties (row.py), top_n_sigma and top_k (shortlist.py), typical_p, top_p,
min_p, xtc, the draw. The plain way to the last five, which sorts all tokens, is here; the cheap one (shortlist.py)
is taken wherever it gives the same answer. Scores are float64, so that neither a temperature of 1e-6 nor a penalty of
1e-6 can overflow a float32 logit.
"""

from collections.abc import Iterator
from collections.abc import Sequence as Seq
from contextlib import suppress
from math import isfinite
from math import log as ln

import numpy as np
from msgspec.structs import replace

from worker.engine.sampling.row import (
    NO_IDS,
    Estimate,
    Ids,
    Logits,
    Mask,
    NoToken,
    Reals,
    Row,
    banned,
    numpy_estimate,
    row_of,
    window,
)
from worker.engine.sampling.shortlist import Shortlist, Undecided, covering, drawn, highest_first, settled, whole
from worker.wire.jobs import SamplingParams, TokenId

TOKEN_LANE, XTC_LANE = 0, 2
"""The lane of the number that decides the token, and of the one that decides whether XTC acts."""

GREEDY_BELOW = 1e-6
"""docs/protocol.md#sampling: a lower temperature means argmax."""
_NEVER = np.float32(-np.inf)
_LEFT_BY_XTC = 0.25
"""The share of the probability that the cheap way expects XTC to leave; where it leaves less, the row is sorted."""


def sample(
    logits: Logits,
    sampling: SamplingParams,
    generated: Seq[int],
    ends: Ids = NO_IDS,
    allowed: Mask | None = None,
    *,
    estimate: Estimate = numpy_estimate,
) -> TokenId:
    """The job's next token.

    `logits`: float32[n_vocab], a view that is only read. `generated`: the job's tokens so far, without the prompt;
    their number is the position of the draw. `ends`: the vocabulary's end-of-generation ids. `allowed`: bool[n_vocab],
    the only tokens that may come; every setting sees a row that has no others. If only ends may come, min_tokens
    has no effect. `estimate`: the function that weighs the row; no token depends on it. Raises: ValueError when no
    distribution exists (a NaN, a +inf, or no token that is possible, unbanned and allowed).
    """
    if allowed is None:
        return TokenId(_drawn(logits, sampling, generated, ends, estimate))
    row = masked(logits, allowed)
    for settings in (sampling, replace(sampling, min_tokens=0)):
        with suppress(NoToken):
            return TokenId(_drawn(row, settings, generated, ends, estimate))
    raise NoToken("cannot sample: the constraint allows no token that is possible and not banned")


def masked(logits: Logits, allowed: Mask) -> Logits:
    """A copy of the row with -inf at every token that is not allowed."""
    return np.where(allowed, logits, _NEVER)


def candidates(logits: Logits, sampling: SamplingParams, generated: Seq[int], ends: Ids = NO_IDS) -> tuple[Ids, Reals]:
    """The tokens that can be drawn and their probabilities (sum 1), most probable first, ties by lower id.

    Arguments and errors as for `sample`. A logit of -inf is no candidate; at temperature 0 there is exactly one.
    XTC acts here whenever it acts for this seed and position.
    """
    if sampling.temperature < GREEDY_BELOW:
        return np.array([_most_likely(logits, sampling, generated, ends)], dtype=np.intp), np.ones(1)
    return _candidates(row_of(logits, sampling, generated, ends, sampling.temperature), sampling, len(generated))


def _drawn(logits: Logits, sampling: SamplingParams, generated: Seq[int], ends: Ids, estimate: Estimate) -> int:
    if sampling.temperature < GREEDY_BELOW:
        return _most_likely(logits, sampling, generated, ends)
    row = row_of(logits, sampling, generated, ends, sampling.temperature, estimate=estimate)
    number = uniform(sampling.drawn_seed, len(generated), TOKEN_LANE)
    is_xtc = _xtc_acts(sampling, len(generated))
    # XTC takes from the front: what is drawn then lies further back.
    reach = 1.0 - (1.0 - number) * _LEFT_BY_XTC if is_xtc else number
    for shortlist in _shortlists(row, sampling, reach):
        with suppress(Undecided):
            return drawn(shortlist, sampling, number, is_xtc=is_xtc)
    ids, probs = _candidates(row, sampling, len(generated))
    cumulative = np.cumsum(probs)
    # number < 1 keeps the target below the last sum, and side="right" passes over candidates of probability 0.
    return int(ids[np.searchsorted(cumulative, number * cumulative[-1], side="right")])


def _most_likely(logits: Logits, sampling: SamplingParams, generated: Seq[int], ends: Ids) -> int:
    """The token of the highest score after the penalties; numpy's argmax takes the lowest id of equals, and a NaN
    before all others.
    """
    if not sampling.logit_bias and not window(sampling, generated):
        best = int(logits.argmax())
        if isfinite(logits[best]) and best not in banned(sampling, len(generated), ends).tolist():
            return best
    row = row_of(logits, sampling, generated, ends, temperature=1.0)
    scores = row.all_scores()
    best = int(scores.argmax())
    row.check(float(scores[best]))
    return best


def _xtc_acts(sampling: SamplingParams, position: int) -> bool:
    chance = sampling.xtc_probability
    return chance > 0.0 and uniform(sampling.drawn_seed, position, XTC_LANE) < chance


def _shortlists(row: Row, sampling: SamplingParams, number: float) -> Iterator[Shortlist]:
    """The shortlist that a draw with `number` needs: first with a quick sum of all other tokens, then with an exact
    one.
    """
    share = sampling.top_p
    if share >= 1.0 and sampling.min_p == 0.0:
        share = number
    shortlist = covering(row, sampling, share)
    yield shortlist
    if shortlist.rest or shortlist.rest_error:
        yield settled(shortlist, row)


def _candidates(row: Row, sampling: SamplingParams, position: int) -> tuple[Ids, Reals]:
    """Return what typical_p, top_p, min_p and xtc leave, in this order, each measured on what the one before left, with
    its probabilities. Tokens are not sorted by probability, because different scores may round to equal probabilities.
    """
    ids, scores = in_order(whole(row, sampling))
    if sampling.typical_p < 1.0:
        kept = _typical(softmax(scores), sampling.typical_p)
        ids, scores = ids[kept], scores[kept]
    probs = softmax(scores)
    if sampling.top_p < 1.0:
        # The shortest prefix whose sum is at least top_p; it has at least one token.
        probs = probs[: int(np.searchsorted(np.cumsum(probs), sampling.top_p, side="left")) + 1]
    if sampling.min_p > 0.0:
        probs = probs[probs >= sampling.min_p * probs[0]]
    ids, scores = ids[: len(probs)], scores[: len(probs)]
    if _xtc_acts(sampling, position):
        # All of at least this probability go but the least probable. Source: p-e-w, "Exclude Top Choices (XTC)",
        # text-generation-webui pull request 6335.
        n_top = int(np.count_nonzero(softmax(scores) >= sampling.xtc_threshold))
        ids, scores = ids[max(n_top - 1, 0) :], scores[max(n_top - 1, 0) :]
    return ids, softmax(scores)


def in_order(shortlist: Shortlist) -> tuple[Ids, Reals]:
    """The shortlist's ids and scores in sorted order: the highest score first, of equal scores the lower id."""
    order = np.argsort(-shortlist.scores, kind="stable")
    return shortlist.ids[order], shortlist.scores[order]


def softmax(scores: Reals) -> Reals:
    """Probabilities (sum 1) of sorted scores."""
    weights: Reals = np.exp(scores - scores[0])
    weights /= weights.sum()
    return weights


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


def log_probabilities(logits: Logits, token: int, n_top: int) -> tuple[float, list[tuple[int, float]]]:
    """ln of the token's probability, and the `n_top` most probable (id, ln): highest logit first, ties by lower id.

    `logits`: float32[n_vocab], only read; before bias, bans, temperature and penalties. A token of logit -inf has -inf
    and is never listed, so the list may be shorter. Arithmetic is float64. Raises: ValueError as `sample`.
    """
    highest = float(logits.max())
    if not isfinite(highest):
        raise ValueError(f"no log-probabilities: the highest logit is {highest}; the model's computation failed")
    weights = logits.astype(np.float64)
    weights -= highest
    log_sum = ln(np.exp(weights, out=weights).sum())

    def logprob(token: int) -> float:
        # The order of subtractions matters: log_sum is nothing beside a logit of 1e30.
        return (float(logits[token]) - highest) - log_sum

    tops = highest_first(logits, n_top) if n_top else NO_IDS
    return logprob(token), [(int(top), logprob(top)) for top in tops]


_MANTISSA_BITS = 53
_WORD_BITS = 64
_WORD = 2**_WORD_BITS - 1
_ROUNDS = 10
_MULTIPLIERS = 0xD2E7470EE14C6C93, 0xCA5A826395121157
_KEY_STEPS = 0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B


def uniform(seed: int, position: int, lane: int = TOKEN_LANE) -> float:
    """A number in [0, 1), a multiple of 2^-53, that depends on (seed, position, lane) only, so that a job that is run
    again, preempted or computed with other jobs draws the same numbers.

    `seed`: u64. `position`: how many tokens the job has generated, from 0. `lane`: 0..3, independent of each other.
    Source: Philox4x64-10 (Salmon et al., SC11) with key = seed and counter = position + 1, one word per lane; these are
    the words of numpy.random.Philox(key=seed, counter=position), which reads the system's entropy each time it is made.
    """
    return (_block(seed, position + 1)[lane] >> (_WORD_BITS - _MANTISSA_BITS)) * 2.0**-_MANTISSA_BITS


def _block(key: int, counter: int) -> tuple[int, int, int, int]:
    """The four 64-bit words of Philox4x64-10 for a key and a counter below 2^64."""
    multiplier_a, multiplier_b = _MULTIPLIERS
    step_a, step_b = _KEY_STEPS
    key_a, key_b = key, 0
    a, b, c, d = counter, 0, 0, 0
    for _ in range(_ROUNDS):
        product_a, product_b = multiplier_a * a, multiplier_b * c
        a, b = (product_b >> _WORD_BITS) ^ b ^ key_a, product_b & _WORD
        c, d = (product_a >> _WORD_BITS) ^ d ^ key_b, product_a & _WORD
        key_a, key_b = (key_a + step_a) & _WORD, (key_b + step_b) & _WORD
    return a, b, c, d
