"""The protocol's samplers on a whole row in float64, sorted: what worker/sampling did before it learnt to cut first.

For rows that are too long for reference.py. Every seed must still give the token that this gives.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from worker.engine.contract import Sampling
from worker.sampling.draw import uniform


def plain_sample(logits: NDArray[np.float32], sampling: Sampling, generated: Sequence[int]) -> int:
    ids, probs = plain_candidates(logits, sampling, generated)
    cumulative = np.cumsum(probs)
    target = uniform(sampling.seed, len(generated)) * cumulative[-1]
    return int(ids[np.searchsorted(cumulative, target, side="right")])


def plain_candidates(
    logits: NDArray[np.float32], sampling: Sampling, generated: Sequence[int]
) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
    """For temperatures from 1e-6 on."""
    scores = logits.astype(np.float64) / sampling.temperature
    seen = np.array(sorted(set(generated)), dtype=np.intp)
    penalty = max(sampling.repetition_penalty, 1e-6)
    scores[seen] = np.where(scores[seen] > 0.0, scores[seen] / penalty, scores[seen] * penalty)
    ids = np.argsort(-scores, kind="stable")[: np.count_nonzero(scores > -np.inf)]
    if sampling.top_k:
        ids = ids[: sampling.top_k]
    probs = np.exp(scores[ids] - scores[ids[0]])
    probs /= probs.sum()
    if sampling.top_p < 1.0:
        probs = probs[: int(np.searchsorted(np.cumsum(probs), sampling.top_p, side="left")) + 1]
    if sampling.min_p > 0.0:
        probs = probs[probs >= sampling.min_p * probs[0]]
    return ids[: len(probs)], probs / probs.sum()
