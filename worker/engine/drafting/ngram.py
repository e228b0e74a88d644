"""N-gram lookup: drafts of a job's next tokens, read from where its last tokens stood before.

Owns the index over one job's tokens. Knows neither the model nor how many draft tokens pay (drafts.py). Pure; step
thread.
"""

from collections.abc import Sequence as Seq

from worker.engine.drafting.acceptance import NO_DRAFT, Draft
from worker.wire.messages import TokenId

NGRAM_SIZES = (4, 2, 1)
"""How many last tokens to look for, in this order: long n-grams find the right place, short ones find it soon after an
edit. What a short match is worth is learned apart (`Acceptance`), so that it does not spoil the long ones."""

MAX_COUNTED = 16
"""How far back a match that was just found is counted; beyond that it is simply long."""

TRUST_BEHIND_A_CHANGE = 4
"""A place that goes on behind a changed token is trusted as one that has agreed for this part of what it had. With 1
drafts behind names are too long, with more than any match has had those behind an edit are too short."""


def n_common(one: Seq[int], end: int, other: Seq[int], other_end: int) -> int:
    """How many tokens before the two positions are the same, up to MAX_COUNTED."""
    most = min(end, other_end, MAX_COUNTED)
    return next((n for n in range(most) if one[end - 1 - n] != other[other_end - 1 - n]), most)


class NgramLookup:
    """Where the n-grams of one job's tokens last stood; `tokens`, prompt and generated, is the job's own growing list.

    Keeps to the place it has found for as long as the text goes on as it did there: an earlier place that has agreed
    for long tells more than a later one that agrees in the last few tokens. Where one token is another than there, as a
    name in a form is, it goes on behind it, unless the last two tokens have stood somewhere together.

    Time: the index is made by `propose` and `catch_up`, two microseconds a token, so that a job which is never asked
    costs nothing. Memory: once asked up to 500 bytes a token; freed with the job.
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
        self.catch_up(len(tokens))
        if self._next is None:
            return NO_DRAFT
        draft = tokens[self._next : self._next + n_most]
        period = len(tokens) - self._next
        for i in range(period, n_most):
            draft.append(draft[i - period])
        return Draft(tuple(draft), self._n_matched)

    def catch_up(self, n_most: int) -> int:
        """Take in so many tokens at most, of those that there are now; how many that were."""
        start, end = self._n_indexed, min(len(self._tokens), self._n_indexed + n_most)
        while self._n_indexed < end:
            self._n_indexed += 1
            self._take_in(self._n_indexed)
        return end - start

    def _take_in(self, end: int) -> None:
        """Follow and index the token before position `end`."""
        tokens = self._tokens
        ngrams = [tuple(tokens[end - size : end]) for size in NGRAM_SIZES if size <= end]
        if self._next is not None and tokens[self._next] == tokens[end - 1]:
            self._next += 1
            self._n_matched += 1
        else:
            self._look_for(ngrams, end)
        for ngram in ngrams:
            self._ends[ngram] = end

    def _look_for(self, ngrams: list[tuple[TokenId, ...]], end: int) -> None:
        """Find the place to go on from after a token that was not expected."""
        known = [ngram for ngram in ngrams if ngram in self._ends]
        if self._next is not None and self._n_matched and not any(len(ngram) > 1 for ngram in known):
            self._next += 1
            self._n_matched //= TRUST_BEHIND_A_CHANGE
        else:
            self._next = self._ends[known[0]] if known else None
            self._n_matched = 0 if self._next is None else n_common(self._tokens, self._next, self._tokens, end)
