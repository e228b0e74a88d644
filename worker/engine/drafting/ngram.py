"""N-gram lookup: drafts of a job's next tokens, read from an earlier place with the same last tokens.

This module owns the index over one job's tokens.
"""

from collections.abc import Sequence as Seq

from worker.engine.drafting.acceptance import NO_DRAFT, Acceptance, Draft, Lookup
from worker.wire.jobs import TokenId

NGRAM_SIZES = (4, 2, 1)
"""The numbers of last tokens to look for, in this order: long n-grams find the right place, short ones find it soon
after an edit. The acceptance of short matches is learned separately (`Acceptance`), so that it does not spoil the long
ones.
"""

MAX_COUNTED = 16
"""The largest number of tokens that are counted back from a new match; a longer match is simply long."""

TRUST_BEHIND_A_CHANGE = 4
"""A place that goes on after a changed token is trusted as if it had agreed for this part of its tokens. With 1, drafts
after names are too long; with more than any match has had, drafts after an edit are too short."""


def n_common(one: Seq[int], end: int, other: Seq[int], other_end: int) -> int:
    """Return how many tokens before the two positions are the same, up to MAX_COUNTED."""
    most = min(end, other_end, MAX_COUNTED)
    return next((n for n in range(most) if one[end - 1 - n] != other[other_end - 1 - n]), most)


class NgramLookup(Lookup):
    """The last place of each n-gram of one job's tokens; `tokens`, prompt and generated, is the job's own growing list.

    A place is kept for as long as the text goes on as it did there: an earlier place that has agreed for long predicts
    more than a later one that agrees in the last few tokens. If one token differs, as a name in a form does, the place
    goes on after it, unless the last two tokens have stood somewhere together.

    Time: the index is made by `propose` and `catch_up`, two microseconds a token, so a job that is never asked
    costs nothing. Memory: up to 500 bytes a token once it was asked; freed with the job.
    """

    def __init__(self, tokens: list[TokenId]) -> None:
        self.acceptance = Acceptance()
        self._tokens = tokens
        self._n_indexed = 0
        self._ends: dict[tuple[TokenId, ...], int] = {}
        """n-gram → the position after its last occurrence."""
        self._next: int | None = None
        """The position of the token that should come next; None if the last tokens never stood before."""
        self._n_matched = 0

    def propose(self, n_most: int) -> Draft:
        """Return the continuation at the earlier place, up to n_most tokens; `NO_DRAFT` if there is none.

        The draft runs on into its own tokens: if a text repeats with any period, it is n_most tokens long.
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
