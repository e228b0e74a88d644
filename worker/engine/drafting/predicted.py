"""Drafts from a text that the client expects its answer to repeat: OpenAI's `prediction`.

This module owns the index over one such text, and the place that the answer has reached in it.
"""

from bisect import bisect_left
from collections.abc import Sequence as Seq

from worker.engine.drafting.acceptance import NO_DRAFT, Acceptance, Draft, Lookup
from worker.engine.drafting.ngram import NGRAM_SIZES, TRUST_BEHIND_A_CHANGE, n_common
from worker.wire.jobs import TokenId

MAX_TOKENS = 32_768
"""The most tokens of a text that are used. The index takes up to 800 bytes for each."""
N_INDEXED = 512
"""The most tokens that are indexed before a step, at about two microseconds each: other jobs wait meanwhile."""
BELIEVED = 8
"""The number of matching tokens that the start of the text is credited with, because the client predicted it."""


class Predicted(Lookup):
    """A text that the answer will probably repeat, with changes. `generated` is the job's own growing list.

    Its place is the start of the text at first, and moves on with the answer for as long as both agree. After a token
    that differs, the place is where the answer's last tokens stand next in the text. If they stand nowhere, it is after
    the expected token, which another one has replaced.
    """

    def __init__(self, tokens: Seq[TokenId], generated: list[TokenId]) -> None:
        self.acceptance = Acceptance()
        self._tokens, self._generated = list(tokens[:MAX_TOKENS]), generated
        self._places: dict[tuple[TokenId, ...], list[int]] = {}
        """n-gram → the positions after it, ascending."""
        self._n_indexed = 0
        self._n_seen = 0
        """The number of the answer's tokens that were compared."""
        self._next = 0
        """The position of the token that should come next."""
        self._n_matched = BELIEVED
        self._reached = 0
        """The position after the part that the answer has surely repeated: it goes on there or later rather than
        before."""

    def propose(self, n_most: int) -> Draft:
        """Return the next tokens of the text, up to n_most; `NO_DRAFT` at its end."""
        self._index(min(len(self._tokens), self._n_indexed + N_INDEXED))
        while self._n_seen < len(self._generated):
            self._n_seen += 1
            self._follow(self._n_seen)
        tokens = tuple(self._tokens[self._next : self._next + n_most])
        return Draft(tokens, self._n_matched) if tokens else NO_DRAFT

    def _index(self, end: int) -> None:
        tokens = self._tokens
        for at in range(self._n_indexed + 1, end + 1):
            for size in NGRAM_SIZES:
                if size <= at:
                    self._places.setdefault(tuple(tokens[at - size : at]), []).append(at)
        self._n_indexed = end

    def _follow(self, end: int) -> None:
        """Take in the answer's token before position `end`."""
        if self._tokens[self._next : self._next + 1] == self._generated[end - 1 : end]:
            self._next += 1
            self._n_matched += 1
        else:
            self._look_for(end)
        if self._n_matched >= NGRAM_SIZES[0]:
            self._reached = self._next

    def _look_for(self, end: int) -> None:
        ngrams = (tuple(self._generated[end - size : end]) for size in NGRAM_SIZES if size <= end)
        known = next((ngram for ngram in ngrams if ngram in self._places), ())
        if len(known) > 1 or (known and not self._n_matched):
            places = self._places[known]
            at = bisect_left(places, self._reached)
            self._next = places[at] if at < len(places) else places[-1]
            self._n_matched = n_common(self._tokens, self._next, self._generated, end)
        else:
            self._next += 1
            self._n_matched //= TRUST_BEHIND_A_CHANGE
