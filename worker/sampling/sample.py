"""From a row of logits to a token: the samplers of PROTOCOL.md 5, in that order, and the draw.

Owns the arithmetic of sampling. Knows nothing of slots, steps or llama.cpp: a row, a Sampling and the job's own
tokens come in, a token goes out. Pure; runs on the engine's step thread. Arithmetic is float64 throughout, so that
neither a temperature of 1e-6 nor a penalty of 1e-6 can overflow a float32 logit.
"""

import math
from collections.abc import Sequence as Seq

import numpy as np
from numpy.typing import NDArray

from worker.engine.contract import Sampling, TokenId
from worker.sampling.draw import uniform

_GREEDY_BELOW = 1e-6
"""PROTOCOL.md 5: a lower temperature means argmax."""
_LEAST_PENALTY = 1e-6
"""PROTOCOL.md 5: penalty 0 acts as this; used as a floor, so that a smaller penalty is never a stronger one."""

Ids = NDArray[np.intp]
Logits = NDArray[np.float32]
Reals = NDArray[np.float64]


def sample(logits: Logits, sampling: Sampling, generated: Seq[int]) -> TokenId:
    """The job's next token.

    `logits`: float32[n_vocab], a view that is only read. `generated`: the job's tokens so far, without the prompt;
    their number is the position of the draw.
    Raises: ValueError when no distribution exists (a NaN, a +inf, or nothing but -inf).
    """
    if sampling.temperature < _GREEDY_BELOW:
        return TokenId(_most_likely(logits, sampling, generated))
    ids, probs = candidates(logits, sampling, generated)
    cumulative = np.cumsum(probs)
    # u < 1 keeps the target below the last sum, and side="right" passes over candidates of probability 0.
    target = uniform(sampling.seed, len(generated)) * cumulative[-1]
    return TokenId(int(ids[np.searchsorted(cumulative, target, side="right")]))


def candidates(logits: Logits, sampling: Sampling, generated: Seq[int]) -> tuple[Ids, Reals]:
    """The tokens that can be drawn and their probabilities (sum 1), most probable first, ties by lower id.

    Arguments and errors as for `sample`. A logit of -inf is no candidate; at temperature 0 there is exactly one.
    """
    if sampling.temperature < _GREEDY_BELOW:
        return np.array([_most_likely(logits, sampling, generated)], dtype=np.intp), np.ones(1)
    scores = logits.astype(np.float64)
    if sampling.temperature != 1.0:
        scores /= sampling.temperature
    _penalise(scores, sampling.repetition_penalty, generated)
    _check_highest(float(scores.max()))
    ids = _ranked(scores)
    if sampling.top_k:
        ids = ids[: sampling.top_k]
    probs = _softmax(scores[ids])
    if sampling.top_p < 1.0:
        probs = _nucleus(probs, sampling.top_p)
    if sampling.min_p > 0.0:
        probs = probs[probs >= sampling.min_p * probs[0]]
    return ids[: len(probs)], probs / probs.sum()


def _most_likely(logits: Logits, sampling: Sampling, generated: Seq[int]) -> int:
    """argmax after the penalty; numpy's takes the lowest id of equals, and a NaN before all others."""
    scores: Logits | Reals = logits
    if sampling.repetition_penalty != 1.0:
        scores = logits.astype(np.float64)
        _penalise(scores, sampling.repetition_penalty, generated)
    best = int(np.argmax(scores))
    _check_highest(float(scores[best]))
    return best


def _penalise(scores: Reals, penalty: float, generated: Seq[int]) -> None:
    """Make each distinct generated token less likely (penalty > 1) or more likely (< 1), in place."""
    if penalty == 1.0:
        return
    penalty = max(penalty, _LEAST_PENALTY)
    seen = np.fromiter(set(generated), dtype=np.intp)
    before = scores[seen]
    scores[seen] = np.where(before > 0.0, before / penalty, before * penalty)


def _check_highest(highest: float) -> None:
    """One look is enough: max and argmax prefer NaN to +inf to finite values to -inf."""
    if math.isnan(highest):
        raise ValueError("cannot sample: the logits contain NaN; the model's computation failed for this job")
    if highest == math.inf:
        raise ValueError("cannot sample: the logits contain +inf; the model's computation failed for this job")
    if highest == -math.inf:
        raise ValueError("cannot sample: every logit is -inf, so no token is possible")


def _ranked(scores: Reals) -> Ids:
    """Ids of the possible tokens, highest score first. Scores, not probabilities: those may round to equals."""
    ids = np.argsort(-scores, kind="stable")
    return ids[: np.count_nonzero(scores > -np.inf)]


def _softmax(ranked: Reals) -> Reals:
    weights: Reals = np.exp(ranked - ranked[0])
    weights /= weights.sum()
    return weights


def _nucleus(probs: Reals, top_p: float) -> Reals:
    """The shortest prefix whose sum is at least `top_p`, and at least one."""
    n_short = int(np.searchsorted(np.cumsum(probs), top_p, side="left"))
    return probs[: n_short + 1]
