"""N-gram lookup: drafts of a job's next tokens, read from where its last tokens stood before, and how often such drafts
were right.

Owns the index over one job's tokens, and what the job's drafts have been worth (`Acceptance`). Knows neither the model
nor how many draft tokens pay (drafts.py). Pure; step thread.

A token is the same whether there was a draft or not, so every draw judges the draft token that was proposed for it,
also one that the step did not take.
"""

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

from worker.wire.messages import TokenId

NGRAM_SIZES = (4, 2, 1)
"""How many last tokens to look for, in this order: long n-grams find the right place, short ones find it soon after an
edit. What a short match is worth is learned apart (`Acceptance`), so that it does not spoil the long ones."""

MOST_COUNTED = 16
"""How far back a match that was just found is counted; beyond that it is simply long."""

N_CLASSES = 5
"""Matches of 1, 2-3, 4-7, 8-15 and more tokens are judged apart: a long one is right far more often."""
HALF_LIFE = 16
"""After so many draws, what was seen counts half. Values from 8 to 64 make no difference on edits, quotes and lists."""

_DECAY = 0.5 ** (1 / HALF_LIFE)


@dataclass(frozen=True, slots=True)
class Draft:
    """Draft tokens for a job, the next one first."""

    tokens: tuple[TokenId, ...] = ()
    n_matched: int = 0
    """How many of the job's last tokens, at least, also stand before the place that the draft was read from."""


NO_DRAFT = Draft()


class NgramLookup:
    """Where the n-grams of one job's tokens last stood; `tokens`, prompt and generated, is the job's own growing list.

    Keeps to the place it has found for as long as the text goes on as it did there: an earlier place that has agreed
    for long tells more than a later one that agrees in the last few tokens.

    Time: the index is made by `propose` and catches up then, two microseconds a token, so that a job which is never
    asked costs nothing. Memory: once asked up to 500 bytes a token; freed with the job.
    """

    def __init__(self, tokens: list[TokenId]) -> None:
        self._tokens = tokens
        self._n_indexed = 0
        self._ends: dict[tuple[TokenId, ...], int] = {}
        """n-gram → the position behind its last occurrence."""
        self._next: int | None = None
        """Position of the token that should come next; None: the last tokens never stood before."""
        self._n_matched = 0

    def propose(self, n_most: int) -> Draft:
        """What followed the earlier place, up to n_most tokens; `NO_DRAFT` where there is none.

        The draft runs on into its own tokens: of a text that repeats with any period it is n_most tokens long.
        """
        tokens = self._tokens
        while self._n_indexed < len(tokens):
            self._n_indexed += 1
            self._take_in(self._n_indexed)
        if self._next is None:
            return NO_DRAFT
        draft = tokens[self._next : self._next + n_most]
        period = len(tokens) - self._next
        for i in range(period, n_most):
            draft.append(draft[i - period])
        return Draft(tuple(draft), self._n_matched)

    def _take_in(self, end: int) -> None:
        """Follow and index the token before position `end`."""
        tokens = self._tokens
        ngrams = [tuple(tokens[end - size : end]) for size in NGRAM_SIZES if size <= end]
        if self._next is not None and tokens[self._next] == tokens[end - 1]:
            self._next += 1
            self._n_matched += 1
        else:
            self._next = next((self._ends[ngram] for ngram in ngrams if ngram in self._ends), None)
            self._n_matched = 0 if self._next is None else self._n_common(self._next, end)
        for ngram in ngrams:
            self._ends[ngram] = end

    def _n_common(self, earlier: int, end: int) -> int:
        """How many tokens before the two positions are the same, up to MOST_COUNTED."""
        tokens = self._tokens
        most = min(earlier, MOST_COUNTED)
        return next((n for n in range(most) if tokens[earlier - 1 - n] != tokens[end - 1 - n]), most)


@dataclass(slots=True, eq=False)
class Acceptance:
    """What one job's drafts have been worth. `Speculation.plan` keeps its account of seconds."""

    _right: list[float] = field(default_factory=lambda: [2.0**i for i in range(N_CLASSES)])
    """How many draft tokens were right, by class of match. A match of m tokens begins as if m had been right and one
    wrong."""
    _wrong: list[float] = field(default_factory=lambda: [1.0] * N_CLASSES)
    lost_s: float = 0.0
    """By how many modelled seconds drafts have made this job slower, less what is forgiven. What they win beyond that
    is forgotten by the next plan."""
    token_s: float = 0.0
    """What a token would have cost in the last plan without drafts."""

    def rate(self, n_matched: int) -> float:
        """The chance, in [0, 1], that the next draft token is right after a match of n_matched ≥ 1 tokens."""
        i = _class(n_matched)
        return self._right[i] / (self._right[i] + self._wrong[i])

    def saw(self, draft: Draft, drawn: Seq[TokenId]) -> None:
        """Learn from a step: all of the draft, taken or not, and the tokens drawn, which are one and one more for each
        draft token that was right.
        """
        self.lost_s -= (len(drawn) - 1) * self.token_s
        for n_matched, (expected, token) in enumerate(zip(draft.tokens, drawn, strict=False), draft.n_matched):
            i = _class(n_matched)
            self._right[i] = self._right[i] * _DECAY + (expected == token)
            self._wrong[i] = self._wrong[i] * _DECAY + (expected != token)


def _class(n_matched: int) -> int:
    return min(n_matched.bit_length(), N_CLASSES) - 1
