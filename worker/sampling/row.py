"""A row of logits as a request sees it: biased, banned, divided by the temperature, penalised.

Only a few tokens are touched by more than the temperature. They are kept apart with their scores, so that the row
itself can stay float32 and untouched. Owns that split. Knows nothing of what is cut or drawn. Pure; the step thread.
"""

from collections import Counter
from collections.abc import Sequence as Seq
from dataclasses import dataclass

import numpy as np

from worker.sampling import penalties
from worker.sampling.arrays import NO_IDS, Ids, Logits, Reals
from worker.sampling.estimate import Estimate, numpy_estimate
from worker.wire.jobs import MAX_BIAS, SamplingParams


class NoToken(ValueError):
    """No token is possible."""


@dataclass(frozen=True, slots=True)
class Row:
    """Every token's score: the logit over the temperature in float64, except for the touched ones."""

    logits: Logits
    """float32[n_vocab], only read."""
    temperature: float
    touched: Ids
    """Ids of the touched tokens, distinct and ascending."""
    scores: Reals
    """The touched tokens' scores; -inf is a ban."""
    estimate: Estimate = numpy_estimate
    """The function that weighs the logits."""

    def bulk(self) -> Logits:
        """The logits with -inf at the touched tokens."""
        if not self.touched.size:
            return self.logits
        bulk = self.logits.copy()
        bulk[self.touched] = -np.inf
        return bulk

    def all_scores(self) -> Reals:
        """float64[n_vocab]: every token's score."""
        scores = self.logits.astype(np.float64)
        if self.temperature != 1.0:
            scores /= self.temperature
        scores[self.touched] = self.scores
        return scores

    def check(self, highest: float) -> None:
        """Refuse a row whose highest score is no number. max and argmax prefer NaN to +inf, and that to numbers.

        Raises: ValueError; NoToken when the highest is -inf.
        """
        if -np.inf < highest < np.inf:
            return
        if highest == np.inf:
            raise ValueError("cannot sample: the logits contain +inf; the model's computation failed for this job")
        if highest != -np.inf:
            raise ValueError("cannot sample: the logits contain NaN; the model's computation failed for this job")
        if self.logits.max() == -np.inf:
            raise NoToken("cannot sample: every logit is -inf, so no token is possible")
        raise NoToken("cannot sample: logit_bias, ignore_eos and min_tokens together ban every possible token")


def has_only_bans(sampling: SamplingParams, n_generated: int) -> bool:
    """Return whether no score but a banned token's is changed."""
    return not sampling.logit_bias and (n_generated == 0 or not penalties.are_on(sampling))


def row_of(
    logits: Logits,
    sampling: SamplingParams,
    generated: Seq[int],
    ends: Ids,
    temperature: float,
    *,
    estimate: Estimate = numpy_estimate,
) -> Row:
    """The row after bias and bans, min_tokens, temperature and the penalties, in this order.

    `ends`: the vocabulary's end-of-generation ids. `temperature`: positive; it is used in place of the request's.
    """
    bans = banned(sampling, len(generated), ends)
    if has_only_bans(sampling, len(generated)):
        touched = np.unique(bans) if bans.size else NO_IDS
        return Row(logits, temperature, touched, np.full(touched.size, -np.inf), estimate)
    tokens = penalties.window(sampling, generated)
    counts = Counter(tokens)
    biased = np.fromiter(map(int, sampling.logit_bias), dtype=np.intp)
    touched = np.unique(np.concatenate([biased, bans, np.fromiter(counts, dtype=np.intp)]))
    scores = logits[touched].astype(np.float64)
    _add_bias(scores, np.searchsorted(touched, biased), sampling)
    scores[np.searchsorted(touched, bans)] = -np.inf
    if temperature != 1.0:
        scores /= temperature
    if tokens:
        penalties.penalise(touched, scores, sampling, tokens, counts)
    return Row(logits, temperature, touched, scores, estimate)


def banned(sampling: SamplingParams, n_generated: int, ends: Ids) -> Ids:
    """Tokens that cannot be drawn now, besides those with a bias of -MAX_BIAS."""
    if n_generated < sampling.min_tokens:
        return np.concatenate([ends, np.array(sampling.stop_token_ids, dtype=np.intp)])
    return ends if sampling.ignore_eos else NO_IDS


def _add_bias(scores: Reals, places: Ids, sampling: SamplingParams) -> None:
    bias = np.fromiter(sampling.logit_bias.values(), dtype=np.float64)
    is_ban = bias <= -MAX_BIAS
    scores[places[~is_ban]] += bias[~is_ban]
    scores[places[is_ban]] = -np.inf
