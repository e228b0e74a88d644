"""The samplers of PROTOCOL.md 5 written a second time: plain Python loops from the text, slow on purpose.

Shares nothing with worker/sampling but the meaning, so that a misreading would have to happen twice.
"""

import math
from collections.abc import Sequence

from worker.engine.contract import Sampling


def expected_candidates(logits: Sequence[float], sampling: Sampling, generated: Sequence[int]) -> dict[int, float]:
    """token id → probability, most probable first; tokens of logit -inf left out."""
    is_greedy = sampling.temperature < 1e-6
    scores = {token: float(logit) for token, logit in enumerate(logits)}
    if not is_greedy and sampling.temperature != 1.0:
        scores = {token: score / sampling.temperature for token, score in scores.items()}
    for token in scores:
        if token in generated:
            scores[token] = penalised(scores[token], sampling.repetition_penalty)
    order = by_score(scores)
    if is_greedy:
        return {order[0]: 1.0}
    if sampling.top_k > 0:
        order = order[: sampling.top_k]
    probs = shares({token: math.exp(scores[token] - scores[order[0]]) for token in order})
    if sampling.top_p < 1.0:
        probs = nucleus(probs, sampling.top_p)
    if sampling.min_p > 0.0:
        highest = max(probs.values())
        probs = {token: prob for token, prob in probs.items() if prob >= sampling.min_p * highest}
    return shares(probs)


def expected_token(probs: dict[int, float], number: float) -> int:
    """The first token at which the running sum passes `number`."""
    running = 0.0
    for token, prob in probs.items():
        running += prob
        if running > number:
            return token
    raise AssertionError(f"the probabilities sum to {running}, which does not pass {number}")


def penalised(score: float, penalty: float) -> float:
    penalty = 1e-6 if penalty == 0.0 else penalty
    if score > 0.0:
        return score / penalty
    return score * penalty


def by_score(scores: dict[int, float]) -> list[int]:
    possible = [token for token, score in scores.items() if score != -math.inf]
    return sorted(possible, key=lambda token: (-scores[token], token))


def shares(weights: dict[int, float]) -> dict[int, float]:
    total = math.fsum(weights.values())
    return {token: weight / total for token, weight in weights.items()}


def nucleus(probs: dict[int, float], top_p: float) -> dict[int, float]:
    kept: dict[int, float] = {}
    for token, prob in probs.items():
        kept[token] = prob
        if sum(kept.values()) >= top_p:
            break
    return kept
