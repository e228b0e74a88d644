"""A row of logits as a request sees it: biased, banned, divided by the temperature, penalised.

Only a few tokens are touched by more than the temperature. They are kept apart with their scores, so that the row
itself can stay float32 and untouched.
"""

from collections import Counter
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from functools import cache
from math import log

import numpy as np
from numpy.lib.introspect import opt_func_info
from numpy.typing import NDArray

from worker.wire.jobs import MAX_BIAS, SamplingParams

Ids = NDArray[np.intp]
"""Token ids, or positions in another array."""
Logits = NDArray[np.float32]
Reals = NDArray[np.float64]
Mask = NDArray[np.bool_]

NO_IDS: Ids = np.empty(0, dtype=np.intp)
NO_IDS.flags.writeable = False

Estimate = Callable[[Logits, float, float], float]
"""(logits, only read; the logit that weighs 1; temperature) → the sum of exp((logit - shift) / temperature) in float32,
perhaps infinite; NaN where a logit is. F32_SLACK bounds its error.

It is most of the cost of a draw over the whole vocabulary, so that there may be faster ways to it than numpy's. It says
where to cut and what lies beyond; where its error could matter, the draw is decided in float64."""

F32_SLACK = 1e-5
"""Bounds the relative error of a float32 sum of float32 weights: exp's argument, rounded three times, is off by 7e-6
where it is above -40 (weights below that are less than float64's rounding of a total), exp by 3e-7, the sum by 2e-6."""
F32_SUM = 3e-6
"""The part of F32_SLACK that the sum itself adds: numpy adds pairwise, in chains of some 40 additions at most."""


class NoToken(ValueError):
    """No token is possible."""


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
    return (np.exp2, 1.0 / log(2.0)) if has_vectors else (np.exp, 1.0)


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
    bans, tokens = banned(sampling, len(generated), ends), window(sampling, generated)
    if not tokens and not sampling.logit_bias:
        touched = np.unique(bans) if bans.size else NO_IDS
        return Row(logits, temperature, touched, np.full(touched.size, -np.inf), estimate)
    counts = Counter(tokens)
    biased = np.fromiter(map(int, sampling.logit_bias), dtype=np.intp)
    touched = np.unique(np.concatenate([biased, bans, np.fromiter(counts, dtype=np.intp)]))
    scores = logits[touched].astype(np.float64)
    bias = np.fromiter(sampling.logit_bias.values(), dtype=np.float64)
    places = np.searchsorted(touched, biased)
    scores[places] = np.where(bias <= -MAX_BIAS, -np.inf, scores[places] + bias)
    scores[np.searchsorted(touched, bans)] = -np.inf
    if temperature != 1.0:
        scores /= temperature
    if tokens:
        penalise(touched, scores, sampling, tokens, counts)
    return Row(logits, temperature, touched, scores, estimate)


def banned(sampling: SamplingParams, n_generated: int, ends: Ids) -> Ids:
    """Tokens that cannot be drawn now, besides those with a bias of -MAX_BIAS."""
    if n_generated < sampling.min_tokens:
        return np.concatenate([ends, np.array(sampling.stop_token_ids, dtype=np.intp)])
    return ends if sampling.ignore_eos else NO_IDS


_MIN_PENALTY = 1e-6
"""docs/protocol.md#sampling: penalty 0 acts as this; it is a floor, so a smaller penalty is never a stronger one."""

_MAX_DRY = 1e100
"""DRY subtracts at most this. It is beyond any score, and its square is still a number, so that a long repetition makes
a token hopeless and not impossible."""


def window(sampling: SamplingParams, generated: Seq[int]) -> Seq[int]:
    """The generated tokens that the penalties look at; none when every penalty is off."""
    is_off = (
        sampling.repetition_penalty == 1.0
        and sampling.frequency_penalty == 0.0
        and sampling.presence_penalty == 0.0
        and sampling.dry_multiplier == 0.0
    )
    if is_off or sampling.repeat_last_n == 0:
        return ()
    return generated if sampling.repeat_last_n < 0 else generated[-sampling.repeat_last_n :]


def penalise(ids: Ids, scores: Reals, sampling: SamplingParams, tokens: Seq[int], counts: Counter[int]) -> None:
    """Change, in place, the scores of the tokens of a window.

    `ids`: distinct, ascending; all of `tokens` are among them. `scores`: of the ids, after the temperature.
    `counts`: how often each of the tokens occurs.
    Sources: repetition: Keskar et al. 2019 (CTRL), with negative scores multiplied instead of divided; frequency and
    presence: OpenAI's API reference, "score - count * frequency - presence"; DRY: p-e-w, "DRY: A modern repetition
    penalty that reliably prevents looping", text-generation-webui pull request 5677, without its sequence breakers;
    llama.cpp's llama_sampler_dry computes the same.
    """
    seen = np.searchsorted(ids, np.fromiter(counts, dtype=np.intp))
    if sampling.repetition_penalty != 1.0:
        # Tokens become less likely for a penalty above 1, more likely below.
        known, penalty = scores[seen], max(sampling.repetition_penalty, _MIN_PENALTY)
        scores[seen] = np.where(known > 0.0, known / penalty, known * penalty)
    if sampling.frequency_penalty or sampling.presence_penalty:
        n_times = np.fromiter(counts.values(), dtype=np.float64)
        scores[seen] -= n_times * sampling.frequency_penalty + sampling.presence_penalty
    if sampling.dry_multiplier:
        lengths = repetitions(tokens, sampling.dry_allowed_length)
        carried_on = np.searchsorted(ids, np.fromiter(lengths, dtype=np.intp))
        scores[carried_on] -= dry(np.fromiter(lengths.values(), dtype=np.float64), sampling)


def dry(lengths: Reals, sampling: SamplingParams) -> Reals:
    """DRY's penalties for repetitions of these lengths: multiplier * base^(length - allowed_length), at most 1e100."""
    with np.errstate(over="ignore"):
        sizes: Reals = sampling.dry_multiplier * sampling.dry_base ** (lengths - sampling.dry_allowed_length)
    return np.minimum(sizes, _MAX_DRY)


def repetitions(tokens: Seq[int], shortest: int) -> dict[int, int]:
    """token → how many final tokens of `tokens`, at most, also stand right before an earlier place of that token.

    Counts below `shortest` (at least 1) are left out. Takes time linear in len(tokens), whatever they are.
    Source: Gusfield's Z algorithm on the reversed tokens; only places that begin with the last token can match.
    """
    backwards = list(reversed(tokens))
    n_tokens = len(backwards)
    matched = [0] * n_tokens
    longest: dict[int, int] = {}
    begin = end = 0  # [begin, end) is the match found so far that reaches furthest
    for place in [place for place in range(1, n_tokens) if backwards[place] == backwards[0]]:
        length = matched[place - begin] if place < end else 0
        if place + length >= end:
            length = max(end - place, 0)
            while place + length < n_tokens and backwards[length] == backwards[place + length]:
                length += 1
            begin, end = place, place + length
        matched[place] = length
        if length >= shortest and length > longest.get(backwards[place - 1], 0):
            longest[backwards[place - 1]] = length
    return longest
