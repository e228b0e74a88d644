"""Sampling written a second time: loops from docs/protocol.md#sampling and the published formulas, slow on purpose.

Shares nothing with worker/sampling but the meaning, so that a misreading would have to happen twice.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.random import Philox
from numpy.typing import NDArray

from worker.engine.sampling.row import NO_IDS
from worker.engine.sampling.sample import candidates
from worker.wire.jobs import SamplingParams

Scores = dict[int, float]
Probs = dict[int, float]


class NothingLeft(Exception):
    """Every token has score -inf."""


@dataclass
class Borders:
    """The distance at which a decision would have gone the other way: sums of the same numbers may differ by less."""

    nearest: float = math.inf

    def reaches(self, value: float, border: float) -> bool:
        self.nearest = min(self.nearest, abs(value - border))
        return value >= border


def expected_candidates(
    logits: Sequence[float],
    sampling: SamplingParams,
    generated: Sequence[int],
    ends: Iterable[int] = (),
    borders: Borders | None = None,
) -> Probs:
    """token id → probability, most probable first; tokens of score -inf left out."""
    borders = borders or Borders()
    scores = biased(dict(enumerate(map(float, logits))), sampling, len(generated), ends)
    is_greedy = sampling.temperature < 1e-6
    if not is_greedy:
        scores = {token: score / sampling.temperature for token, score in scores.items()}
    scores = penalised_all(scores, sampling, generated)
    order = by_score(scores)
    if not order:
        raise NothingLeft
    if is_greedy:
        return {order[0]: 1.0}
    if sampling.top_n_sigma > 0.0:
        order = above_sigma(scores, order, sampling.top_n_sigma, borders)
    if sampling.top_k > 0:
        order = order[: sampling.top_k]
    if sampling.typical_p < 1.0:
        order = typical(scores, order, sampling.typical_p, borders)
    probs = softmax(scores, order)
    if sampling.top_p < 1.0:
        probs = nucleus(probs, sampling.top_p, borders)
    if sampling.min_p > 0.0:
        highest = max(probs.values())
        probs = {token: prob for token, prob in probs.items() if borders.reaches(prob, sampling.min_p * highest)}
    order = list(probs)
    if expected_uniform(sampling.drawn_seed, len(generated), 2) < sampling.xtc_probability:
        order = without_top_choices(softmax(scores, order), sampling.xtc_threshold, borders)
    return softmax(scores, order)


def expected_token(probs: Probs, number: float) -> int:
    """The first token at which the running sum passes `number`."""
    running = 0.0
    for token, prob in probs.items():
        running += prob
        if running > number:
            return token
    raise AssertionError(f"the probabilities sum to {running}, which does not pass {number}")


def expected_uniform(seed: int, position: int, lane: int) -> float:
    words = Philox(key=seed, counter=position).random_raw(4)
    return (int(words[lane]) >> 11) / 2**53


def biased(scores: Scores, sampling: SamplingParams, n_generated: int, ends: Iterable[int]) -> Scores:
    scores = dict(scores)
    for name, bias in sampling.logit_bias.items():
        token = int(name)
        scores[token] = -math.inf if bias == -100 else scores[token] + bias
    if n_generated < sampling.min_tokens:
        scores.update(dict.fromkeys([*ends, *sampling.stop_token_ids], -math.inf))
    if sampling.ignore_eos:
        scores.update(dict.fromkeys(ends, -math.inf))
    return scores


def penalised_all(scores: Scores, sampling: SamplingParams, generated: Sequence[int]) -> Scores:
    n_looked_at = len(generated) if sampling.repeat_last_n == -1 else min(sampling.repeat_last_n, len(generated))
    looked_at = list(generated)[len(generated) - n_looked_at :]
    scores = dict(scores)
    for token in set(looked_at):
        scores[token] = penalised(scores[token], sampling.repetition_penalty)
        count = looked_at.count(token)
        scores[token] -= count * sampling.frequency_penalty + sampling.presence_penalty
    if sampling.dry_multiplier > 0.0:
        for token, length in match_lengths(looked_at).items():
            if length >= sampling.dry_allowed_length:
                scores[token] -= dry_penalty(length, sampling)
    return scores


def penalised(score: float, penalty: float) -> float:
    if penalty == 1.0:
        return score
    penalty = 1e-6 if penalty == 0.0 else penalty
    if score > 0.0:
        return score / penalty
    return score * penalty


def match_lengths(tokens: Sequence[int]) -> dict[int, int]:
    """token → the longest end of `tokens` that is also the text right before one of the token's places."""
    lengths: dict[int, int] = {}
    for place, token in enumerate(tokens):
        length = 0
        while length < place and tokens[place - 1 - length] == tokens[len(tokens) - 1 - length]:
            length += 1
        lengths[token] = max(length, lengths.get(token, 0))
    return lengths


def dry_penalty(length: int, sampling: SamplingParams) -> float:
    try:
        penalty = sampling.dry_multiplier * sampling.dry_base ** (length - sampling.dry_allowed_length)
    except OverflowError:
        return 1e100
    return min(penalty, 1e100)


def by_score(scores: Scores) -> list[int]:
    possible = [token for token, score in scores.items() if score != -math.inf]
    return sorted(possible, key=lambda token: (-scores[token], token))


def above_sigma(scores: Scores, order: list[int], n_sigma: float, borders: Borders) -> list[int]:
    values = [scores[token] for token in order]
    mean = math.fsum(values) / len(values)
    sigma = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / len(values))
    below = scores[order[0]] - n_sigma * sigma
    return [token for token in order if borders.reaches(scores[token], below)]


def typical(scores: Scores, order: list[int], mass: float, borders: Borders) -> list[int]:
    probs = softmax(scores, order)
    entropy = -math.fsum(prob * math.log(prob) for prob in probs.values() if prob > 0.0)
    distance = {token: abs(-math.log(prob) - entropy) for token, prob in probs.items() if prob > 0.0}
    by_distance = sorted(distance, key=lambda token: distance[token])
    kept = nucleus({token: probs[token] for token in by_distance}, mass, borders)
    last = list(kept)[-1]
    for token, far in distance.items():
        if probs[token] != probs[last]:
            borders.reaches(far, distance[last])
    return [token for token in order if token in kept]


def nucleus(probs: Probs, mass: float, borders: Borders) -> Probs:
    kept: Probs = {}
    for token, prob in probs.items():
        kept[token] = prob
        if borders.reaches(sum(kept.values()), mass):
            break
    return kept


def without_top_choices(probs: Probs, threshold: float, borders: Borders) -> list[int]:
    order = list(probs)
    top = [token for token in order if borders.reaches(probs[token], threshold)]
    return order[max(len(top) - 1, 0) :]


def softmax(scores: Scores, order: Iterable[int]) -> Probs:
    tokens = list(order)
    highest = max(scores[token] for token in tokens)
    weights = {token: math.exp(scores[token] - highest) for token in tokens}
    total = math.fsum(weights.values())
    return {token: weight / total for token, weight in weights.items()}


Row = NDArray[np.float32]


def row(*logits: float) -> Row:
    values = np.array(logits, dtype=np.float32)
    values.flags.writeable = False
    return values


def ids_of(
    logits: Row, sampling: SamplingParams, generated: Sequence[int] = (), ends: NDArray[np.intp] = NO_IDS
) -> list[int]:
    return [int(token) for token in candidates(logits, sampling, generated, ends)[0]]
