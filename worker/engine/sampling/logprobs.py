"""The log-probabilities of a sampled token, from the model's raw logits.

Owns the log-softmax and the list of the most probable tokens. Knows nothing of settings, text or the wire. Pure; the
step thread.
"""

import math

import numpy as np

from worker.engine.sampling.arrays import NO_IDS, Logits
from worker.engine.sampling.shortlist import highest_first


def log_probabilities(logits: Logits, token: int, n_top: int) -> tuple[float, list[tuple[int, float]]]:
    """ln of the token's probability, and the `n_top` most probable (id, ln): highest logit first, ties by lower id.

    `logits`: float32[n_vocab], only read; before bias, bans, temperature and penalties. A token of logit -inf has -inf
    and is never listed, so the list may be shorter. Arithmetic is float64. Raises: ValueError as `sample`.
    """
    highest = float(logits.max())
    if not math.isfinite(highest):
        raise ValueError(f"no log-probabilities: the highest logit is {highest}; the model's computation failed")
    weights = logits.astype(np.float64)
    weights -= highest
    log_sum = math.log(np.exp(weights, out=weights).sum())

    def logprob(token: int) -> float:
        # The order of subtractions matters: log_sum is nothing beside a logit of 1e30.
        return (float(logits[token]) - highest) - log_sum

    tops = highest_first(logits, n_top) if n_top else NO_IDS
    return logprob(token), [(int(top), logprob(top)) for top in tops]
