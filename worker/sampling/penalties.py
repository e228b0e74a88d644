"""Penalties on tokens that the job has generated: repetition, frequency, presence, DRY, in that order.

Owns which tokens count (the window) and what their scores become. Knows nothing of rows. Pure; the step thread.
"""

from collections import Counter
from collections.abc import Sequence as Seq

import numpy as np

from worker.sampling import dry
from worker.sampling.arrays import Ids, Reals
from worker.wire.messages import Sampling

_LEAST_PENALTY = 1e-6
"""docs/protocol.md 5: penalty 0 acts as this; used as a floor, so that a smaller penalty is never a stronger one."""


def are_on(sampling: Sampling) -> bool:
    """Whether any penalty looks at any token."""
    is_off = (
        sampling.repetition_penalty == 1.0
        and sampling.frequency_penalty == 0.0
        and sampling.presence_penalty == 0.0
        and sampling.dry_multiplier == 0.0
    )
    return not is_off and sampling.repeat_last_n != 0


def window(sampling: Sampling, generated: Seq[int]) -> Seq[int]:
    """The generated tokens that the penalties look at; none when every penalty is off."""
    if not are_on(sampling):
        return ()
    return generated if sampling.repeat_last_n < 0 else generated[-sampling.repeat_last_n :]


def penalise(ids: Ids, scores: Reals, sampling: Sampling, tokens: Seq[int], counts: Counter[int]) -> None:
    """Change, in place, the scores of the tokens of a window.

    `ids`: distinct, ascending; all of `tokens` are among them. `scores`: of the ids, after the temperature.
    `counts`: of the tokens.
    Sources: repetition: Keskar et al. 2019 (CTRL), with negative scores multiplied instead of divided; frequency and
    presence: OpenAI's API reference, "score - count * frequency - presence"; DRY: dry.py.
    """
    seen = np.searchsorted(ids, np.fromiter(counts, dtype=np.intp))
    if sampling.repetition_penalty != 1.0:
        scores[seen] = _repeated(scores[seen], sampling.repetition_penalty)
    if sampling.frequency_penalty or sampling.presence_penalty:
        n_times = np.fromiter(counts.values(), dtype=np.float64)
        scores[seen] -= n_times * sampling.frequency_penalty + sampling.presence_penalty
    if sampling.dry_multiplier:
        _dry(ids, scores, sampling, tokens)


def _repeated(scores: Reals, penalty: float) -> Reals:
    """Less likely for a penalty above 1, more likely below."""
    penalty = max(penalty, _LEAST_PENALTY)
    return np.where(scores > 0.0, scores / penalty, scores * penalty)


def _dry(ids: Ids, scores: Reals, sampling: Sampling, tokens: Seq[int]) -> None:
    lengths = dry.repetitions(tokens, sampling.dry_allowed_length)
    carried_on = np.searchsorted(ids, np.fromiter(lengths, dtype=np.intp))
    scores[carried_on] -= dry.penalties(
        np.fromiter(lengths.values(), dtype=np.float64),
        sampling.dry_multiplier,
        sampling.dry_base,
        sampling.dry_allowed_length,
    )
