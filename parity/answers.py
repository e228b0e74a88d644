"""The first difference of two served answers, and the check that a seed drew the served tokens.

A request with `top_k` N_DRAWN can draw only the first of the reported tokens, so that their log-probabilities, the
temperature and the seed give the token. Pure.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import accumulate, zip_longest
from math import exp, inf

from client.execute import END, Answer, Drawn
from worker.engine.sampling.sample import uniform

N_TOP = 20
"""Log-probabilities asked for with each token: as many as a request may ask for."""

N_DRAWN = 16
"""Tokens that a seeded request may draw from; those reported after them are so near that rounding may bring them in."""


@dataclass(frozen=True, slots=True)
class Parting:
    """The first difference of two continuations of one prompt."""

    position: int
    """Generated tokens that are the same."""
    gap: float
    """The difference of the two tokens in nats, the larger one of both rows; inf if a row does not list both."""


def parting(one: Answer, other: Answer, ends: Collection[int] = ()) -> Parting | None:
    """The first difference of two served answers; None if they are the same. `ends`: the vocabulary's end tokens."""
    for position, (mine, yours) in enumerate(zip_longest(one.choices, other.choices)):
        if mine != yours:
            rows = [answer.drawn[position] for answer in (one, other) if position < len(answer.drawn)]
            return Parting(position, max((_gap(row, mine, yours, ends) for row in rows), default=inf))
    return None


def parting_from(answer: Answer, expected: Sequence[int], ends: Collection[int] = ()) -> Parting | None:
    """The first difference of a served answer from the expected tokens, which may continue after their own end.

    Tokens whose text was never shown (half a character at the very end) are not missed.
    """
    for position, (mine, theirs) in enumerate(zip(answer.choices, expected, strict=False)):
        wanted = END if theirs in ends else theirs
        if mine != wanted:
            is_shown = position < len(answer.drawn)
            return Parting(position, _gap(answer.drawn[position], mine, theirs, ends) if is_shown else inf)
        if mine == END:
            return None
    return None if answer.n_sampled >= len(expected) else Parting(len(answer.choices), inf)


def _gap(row: Drawn, one: int | None, other: int | None, ends: Collection[int]) -> float:
    """The difference of two choices in one row. The token's own figure is not trusted: its id is looked up like the
    other's."""
    difference = abs(_listed(row, one, ends) - _listed(row, other, ends))
    return difference if difference < inf else inf


def _listed(row: Drawn, choice: int | None, ends: Collection[int]) -> float:
    ids = ends if choice == END else (choice,)
    return max((top.logprob for top in row.top if top.id in ids), default=-inf)


# ── the draw ─────────────────────────────────────────────────────────────────────────────────────


def worst_draw(answer: Answer, seed: int, temperature: float) -> tuple[float, int]:
    """The largest distance of a draw's number from the drawn token's share, and its position; (0, 0) for no draws.

    The distance is a probability. It is 0 if the number is in the share, as it is if the worker used the seed.
    """
    misses = [
        (miss(row, row.id, uniform(seed, position), temperature), position) for position, row in enumerate(answer.drawn)
    ]
    return max(misses, default=(0.0, 0))


def miss_at_parting(one: Answer, other: Answer, seed: int, temperature: float, ends: Collection[int]) -> float:
    """The largest distance of the first differing draw's number from the other answer's token; 0 if none differs.

    The distance is small if both rows are nearly the same and the number is near the border of two shares, or if the
    token is a runner-up that nearly took the last place. It is inf if no row lists the token.
    """
    for position, (mine, yours) in enumerate(zip_longest(one.choices, other.choices)):
        if mine != yours:
            number = uniform(seed, position)
            sides = ((one, yours), (other, mine))
            seen = [(answer.drawn[position], choice) for answer, choice in sides if position < len(answer.drawn)]
            return max((_nearest(row, choice, number, temperature, ends) for row, choice in seen), default=inf)
    return 0.0


def miss(row: Drawn, token: int, number: float, temperature: float) -> float:
    """The distance from `number` to the token's share of [0, 1); inf if it has none.

    Shares are adjacent, most probable first.
    """
    weights = _weights(row, temperature)[:N_DRAWN]
    upper = list(accumulate(weights))
    for top, high, weight in zip(row.top, upper, weights, strict=False):
        if top.id == token:
            return max(0.0, (high - weight) / upper[-1] - number, number - high / upper[-1])
    return inf


def _miss_of_runner_up(row: Drawn, token: int, number: float, temperature: float) -> float:
    """The distance for a token that was reported but could not be drawn. It must first take the last token's place, so
    the difference of their weights is added. It is inf if the token was not reported."""
    weights = _weights(row, temperature)
    for top, weight in list(zip(row.top, weights, strict=True))[N_DRAWN:]:
        if top.id == token:
            last = row.top[N_DRAWN - 1].id
            gap = (weights[N_DRAWN - 1] - weight) / sum(weights[:N_DRAWN])
            return max(gap, miss(row, last, number, temperature))
    return inf


def _weights(row: Drawn, temperature: float) -> list[float]:
    return [exp((top.logprob - row.top[0].logprob) / temperature) for top in row.top]


def _nearest(row: Drawn, choice: int | None, number: float, temperature: float, ends: Collection[int]) -> float:
    tokens = ends if choice == END else () if choice is None else (choice,)
    ways = (miss, _miss_of_runner_up)
    return min((way(row, token, number, temperature) for token in tokens for way in ways), default=inf)
