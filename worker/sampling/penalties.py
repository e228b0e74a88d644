"""Penalties on tokens that the job has generated: repetition, frequency, presence, DRY, in that order.

Owns which tokens count (the window) and what their scores become. Knows nothing of rows. Pure; the step thread.
"""

from collections import Counter
from collections.abc import Sequence as Seq

import numpy as np

from worker.sampling.arrays import Ids, Reals
from worker.wire.jobs import SamplingParams

_MIN_PENALTY = 1e-6
"""docs/protocol.md#sampling: penalty 0 acts as this; it is a floor, so a smaller penalty is never a stronger one."""

_MAX_DRY = 1e100
"""DRY subtracts at most this. It is beyond any score, and its square is still a number, so that a long repetition makes
a token hopeless and not impossible."""


def are_on(sampling: SamplingParams) -> bool:
    """Return whether any penalty looks at any token."""
    is_off = (
        sampling.repetition_penalty == 1.0
        and sampling.frequency_penalty == 0.0
        and sampling.presence_penalty == 0.0
        and sampling.dry_multiplier == 0.0
    )
    return not is_off and sampling.repeat_last_n != 0


def window(sampling: SamplingParams, generated: Seq[int]) -> Seq[int]:
    """The generated tokens that the penalties look at; none when every penalty is off."""
    if not are_on(sampling):
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
        scores[seen] = _repeated(scores[seen], sampling.repetition_penalty)
    if sampling.frequency_penalty or sampling.presence_penalty:
        n_times = np.fromiter(counts.values(), dtype=np.float64)
        scores[seen] -= n_times * sampling.frequency_penalty + sampling.presence_penalty
    if sampling.dry_multiplier:
        lengths = repetitions(tokens, sampling.dry_allowed_length)
        carried_on = np.searchsorted(ids, np.fromiter(lengths, dtype=np.intp))
        scores[carried_on] -= dry(np.fromiter(lengths.values(), dtype=np.float64), sampling)


def _repeated(scores: Reals, penalty: float) -> Reals:
    """The scores after the repetition penalty: tokens become less likely for a penalty above 1, more likely below."""
    penalty = max(penalty, _MIN_PENALTY)
    return np.where(scores > 0.0, scores / penalty, scores * penalty)


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
