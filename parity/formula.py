"""The protocol's sampling written plainly: a whole row in float64, sorted, in the order of docs/sampling.md.

What worker/sampling does without sorting is held against this. Pure.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from worker.engine.sampling.sample import uniform
from worker.wire.jobs import SamplingParams

Ids = NDArray[np.intp]
Reals = NDArray[np.float64]

_LEAST = 1e-6
"""A lower temperature means argmax, a lower repetition penalty acts as this."""


def sample(logits: NDArray[np.float32], sampling: SamplingParams, generated: Sequence[int]) -> int:
    """The token that the seed draws at position `len(generated)`."""
    return drawn(*candidates(logits, sampling, generated), uniform(sampling.drawn_seed, len(generated)))


def candidates(logits: NDArray[np.float32], sampling: SamplingParams, generated: Sequence[int]) -> tuple[Ids, Reals]:
    """The tokens that can be drawn and their probabilities, most probable first, ties by lower id."""
    is_greedy = sampling.temperature < _LEAST
    scores = logits.astype(np.float64) / (1.0 if is_greedy else sampling.temperature)
    seen = np.array(sorted(set(generated)), dtype=np.intp)
    penalty = max(sampling.repetition_penalty, _LEAST)
    scores[seen] = np.where(scores[seen] > 0.0, scores[seen] / penalty, scores[seen] * penalty)
    ids = np.argsort(-scores, kind="stable")[: np.count_nonzero(scores > -np.inf)]
    if is_greedy:
        return ids[:1], np.ones(1)
    if sampling.top_k:
        ids = ids[: sampling.top_k]
    probs = np.exp(scores[ids] - scores[ids[0]])
    probs /= probs.sum()
    if sampling.top_p < 1.0:
        probs = probs[: int(np.searchsorted(np.cumsum(probs), sampling.top_p, side="left")) + 1]
    if sampling.min_p > 0.0:
        probs = probs[probs >= sampling.min_p * probs[0]]
    return ids[: len(probs)], probs / probs.sum()


def drawn(ids: Ids, probs: Reals, number: float) -> int:
    """The first token at which the running sum passes `number`, which is in [0, 1)."""
    cumulative = np.cumsum(probs)
    return int(ids[np.searchsorted(cumulative, number * cumulative[-1], side="right")])
