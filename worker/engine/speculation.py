"""How many guesses a decode step takes along: as many as pay, and never so many that a job is held up.

Owns what a job's guesses have been worth (`Acceptance`) and what wider steps cost (`Speculation`). Knows neither where
guesses come from nor what a token means. Pure; step thread.

A token is the same whether it was guessed or not, so every draw judges the guess that was offered for it, also one that
the step did not take. No guess is ever made only to find out whether it would be right.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import accumulate, islice, pairwise
from math import log
from statistics import median

from worker.engine.ngram import Draft
from worker.wire.messages import TokenId

N_CLASSES = 5
"""Matches of 1, 2-3, 4-7, 8-15 and more tokens are judged apart: a long one is right far more often."""
HALF_LIFE = 16
"""Draws after which what was seen counts half. Between 8 and 64 makes no difference on edits, quotes and lists."""
LEAST_GAIN = 1.03
"""A step must be expected to be so much faster; measured costs are no better than that."""
MOST_LOST = 0.02
"""Of a job's time, wrong guesses may cost this share."""
N_TIMED = 9
"""Steps whose times are remembered; the median of them is not moved by one that was held up."""

_DECAY = 0.5 ** (1 / HALF_LIFE)


@dataclass(slots=True, eq=False)
class Acceptance:
    """What one job's guesses have been worth. Changed by `saw`, and by `Speculation.plan`, which keeps its account."""

    _right: list[float] = field(default_factory=lambda: [2.0**i for i in range(N_CLASSES)])
    """By class of match. A match of m tokens begins as if m guesses had been right and one wrong."""
    _wrong: list[float] = field(default_factory=lambda: [1.0] * N_CLASSES)
    lost_s: float = 0.0
    """Modelled seconds by which guesses have made this job slower, less what is forgiven. What they win beyond that is
    forgotten by the next plan."""
    token_s: float = 0.0
    """What a token cost in the last plan without guesses."""

    def rate(self, n_matched: int) -> float:
        """The chance, in [0, 1], that the next guess is right after a match of n_matched ≥ 1 tokens."""
        i = _class(n_matched)
        return self._right[i] / (self._right[i] + self._wrong[i])

    def saw(self, offer: Draft, drawn: Seq[TokenId]) -> None:
        """Learn from a step: everything that was offered, taken or not, and the tokens drawn: one, and one more for
        each guess that was right."""
        self.lost_s -= (len(drawn) - 1) * self.token_s
        for n_matched, (guess, token) in enumerate(zip(offer.tokens, drawn, strict=False), offer.n_matched):
            i = _class(n_matched)
            self._right[i] = self._right[i] * _DECAY + (guess == token)
            self._wrong[i] = self._wrong[i] * _DECAY + (guess != token)


def _class(n_matched: int) -> int:
    return min(n_matched.bit_length(), N_CLASSES) - 1


@dataclass(frozen=True, slots=True)
class Candidate:
    """A decoding sequence of the step; its offer may be empty."""

    acceptance: Acceptance
    offer: Draft


class Speculation:
    """Plans the guesses of decode steps.

    `row_costs` are (tokens in a decode step, seconds it took), ascending from 1 token, and linear between; no step is
    made wider than the widest of them, and without any nothing is guessed. `n_most` bounds the guesses of a step.

    A plan maximises the geometric mean of the sequences' expected speeds. For one sequence that is its tokens per
    second; in a batch one sequence's guesses must win more than they cost all the others, and then the batch's tokens
    per second rise as well.

    Law: whatever is accepted, any stretch of a job costs at most 1 + MOST_LOST times what it costs without guesses,
    plus one step of a single sequence with n_most guesses. A job that has used this up guesses again when it is
    forgiven: soon a little, and what it wins lets it go on.
    """

    def __init__(self, row_costs: Seq[tuple[int, float]], n_most: int) -> None:
        assert not row_costs or row_costs[0][0] == 1
        self._row_costs = _interpolated(row_costs)
        self._n_most = n_most
        self._surplus_s: deque[float] = deque(maxlen=N_TIMED)
        self._row_surplus_s = 0.0

    def took(self, n_rows: int, seconds: float) -> None:
        """Learn from a decode step's time. What it took beyond its measured cost is put down to its rows.

        Attention over a long context costs every row the same, and was not there at warm-up. Where it was something
        else, less is guessed than would pay.
        """
        if n_rows > len(self._row_costs):
            return
        self._surplus_s.append((seconds - self._row_costs[n_rows - 1]) / n_rows)
        self._row_surplus_s = max(0.0, median(self._surplus_s))

    def most_drafts(self, n_rows: int) -> int:
        """Drafts that would pay with n_rows ≥ 1 sequences if all were right; 0: no need to look for any."""
        gains = (log(1 + 1 / n) for n in range(1, self._n_most + 1) for _ in range(n_rows))
        return self._n_worthwhile(n_rows, gains)

    def plan(self, candidates: Seq[Candidate]) -> list[int]:
        """How many of its guesses each sequence of the step takes, in order; their cost is put on its account.

        Give every sequence of the step, and tell each `Acceptance` what was drawn.
        """
        n_rows = len(candidates)
        counts = [0] * n_rows
        if not 0 < n_rows <= len(self._row_costs):
            return counts
        token_s = self._cost(n_rows) / n_rows
        for candidate in candidates:
            account = candidate.acceptance
            account.token_s = token_s
            account.lost_s = max(0.0, account.lost_s - MOST_LOST * token_s)
        ranked = self._ranked(candidates)
        n_taken = self._n_worthwhile(n_rows, (gain for _, gain in ranked))
        for n_before, (i, _) in enumerate(ranked[:n_taken], n_rows):
            counts[i] += 1
            candidates[i].acceptance.lost_s += self._cost_of_one_more(n_before)
        return counts

    def _ranked(self, candidates: Seq[Candidate]) -> list[tuple[int, float]]:
        """The n_most best guesses that their jobs can pay, as (candidate, gain), best first."""
        prospects = [_gains(candidate) for candidate in candidates]
        room_s = [self._most_lost_s - candidate.acceptance.lost_s for candidate in candidates]
        heap = [(-gain, i) for i, gains in enumerate(prospects) for gain in islice(gains, 1)]
        heapify(heap)
        ranked: list[tuple[int, float]] = []
        n_most = min(self._n_most, len(self._row_costs) - len(candidates))
        while heap and len(ranked) < n_most:
            negative_gain, i = heappop(heap)
            room_s[i] -= self._cost_of_one_more(len(candidates) + len(ranked))
            if room_s[i] < 0:
                continue
            ranked.append((i, -negative_gain))
            for gain in islice(prospects[i], 1):
                heappush(heap, (-gain, i))
        return ranked

    def _n_worthwhile(self, n_rows: int, gains: Iterable[float]) -> int:
        """How many of the guesses, given by what each adds to the logarithm of its sequence's tokens, best first, make
        the step fastest."""
        n_most = min(self._n_most, len(self._row_costs) - n_rows)
        if n_most <= 0:
            return 0
        n_best, best = 0, n_rows * log(LEAST_GAIN)
        cost_s, gained = self._cost(n_rows), 0.0
        for n_guesses, gain in enumerate(islice(gains, n_most), 1):
            gained += gain
            net = gained - n_rows * log(self._cost(n_rows + n_guesses) / cost_s)
            if net > best:
                n_best, best = n_guesses, net
        return n_best

    @property
    def _most_lost_s(self) -> float:
        return self._cost(min(1 + self._n_most, len(self._row_costs)))

    def _cost(self, n_rows: int) -> float:
        return self._row_costs[n_rows - 1] + n_rows * self._row_surplus_s

    def _cost_of_one_more(self, n_rows: int) -> float:
        return self._cost(n_rows + 1) - self._cost(n_rows)


def _gains(candidate: Candidate) -> Iterator[float]:
    """What each guess adds to the logarithm of the sequence's expected tokens; never more than the one before it."""
    chance = expected = 1.0
    for n_matched in range(candidate.offer.n_matched, candidate.offer.n_matched + len(candidate.offer.tokens)):
        # A guess is right only after the ones before it were.
        chance *= candidate.acceptance.rate(n_matched)
        yield log(1 + chance / expected)
        expected += chance


def _interpolated(row_costs: Seq[tuple[int, float]]) -> list[float]:
    """Seconds of steps of 1, 2, ... rows. More rows never cost less: where it was measured so, it was noise."""
    rising = list(accumulate((seconds for _, seconds in row_costs), max))
    costs = rising[:1]
    for ((n, _), (m, _)), (n_s, m_s) in zip(pairwise(row_costs), pairwise(rising), strict=True):
        costs += (n_s + (m_s - n_s) * i / (m - n) for i in range(1, m - n + 1))
    return costs
