"""N-grams of earlier answers: drafts of a job's next tokens, read from what other jobs have generated.

This module owns the stored answers and the index over them, both of a fixed size in bytes. Nothing of it outlives the
engine.
"""

from array import array
from collections import deque
from collections.abc import Sequence as Seq

from worker.engine.drafting.acceptance import NO_DRAFT, Acceptance, Draft, Lookup
from worker.engine.drafting.ngram import n_common
from worker.wire.jobs import TokenId

HISTORY_BYTES = 4 * 2**20
"""Some 260,000 tokens of answers and their index."""

NGRAM_SIZES = (8, 4, 2)
"""The numbers of last tokens to look for, in this order."""
_END = -1
"""A mark after each answer, and in places that were never written. It is no token, so no n-gram and no draft reaches
across it."""
_WIDTH = array("i").itemsize


class History:
    """The last answers in a ring, each after the last tokens of its prompt; and a table that has the place after an
    n-gram for its hash.

        ring:  ... q q q b b b b b ■ p p p a a a a a a a ■ x x x x x ■ (the oldest)
                                           └ a place: the n-gram ends before it, the draft begins there

    Nothing is ever deleted from the table: an n-gram overwrites whatever had its hash, and the tokens before a place
    are compared before anything is read from it. So a place may be old or wrong.

    Memory: at most `limit_bytes`, all of it allocated at the start.
    """

    def __init__(self, limit_bytes: int) -> None:
        n_tokens = limit_bytes // (_WIDTH * (1 + len(NGRAM_SIZES)))
        self._ring = array("i", [_END]) * n_tokens
        self._places = array("i", [0]) * (n_tokens * len(NGRAM_SIZES))
        self._head = 0
        self._unread: deque[range] = deque()
        """The places of answers that are in the ring and not yet in the table."""

    @property
    def n_bytes(self) -> int:
        return _WIDTH * (len(self._ring) + len(self._places))

    def remember(self, tokens: Seq[TokenId], n_prompt: int) -> None:
        """Store an answer, tokens[n_prompt:], and the tokens before it by which it will be found. An answer that is too
        long for the ring loses its beginning. This takes microseconds; `read` makes the answer known.
        """
        begin = max(0, n_prompt - NGRAM_SIZES[0], len(tokens) + 1 - len(self._ring))
        if len(tokens) == n_prompt or begin >= len(tokens):
            return
        record = array("i", tokens[begin:])
        record.append(_END)
        if self._head + len(record) > len(self._ring):
            self._head = 0
        start, self._head = self._head, self._head + len(record)
        self._ring[start : self._head] = record
        self._unread.append(range(start + max(1, n_prompt - begin), self._head - 1))

    def read(self, n_most: int) -> bool:
        """Put the n-grams before up to n_most tokens of stored answers into the table, at a microsecond each. Return
        True if there are more.
        """
        while self._unread and n_most > 0:
            places = self._unread.popleft()
            self._index(places[:n_most])
            if rest := places[n_most:]:
                self._unread.appendleft(rest)
            n_most -= len(places)
        return bool(self._unread)

    def place_after(self, ngram: Seq[TokenId]) -> int:
        """Return where the n-gram, or another one, was last seen to end; 0 if there is nothing."""
        return self._places[self._slot(ngram)] if self._places else 0

    def read_at(self, place: int, tokens: list[TokenId], n_least: int, n_most: int) -> Draft:
        """Return the tokens at the place, if at least n_least tokens before it are the job's last ones."""
        if not 0 < place < len(self._ring) or self._ring[place] == _END:
            return NO_DRAFT
        n_matched = n_common(self._ring, place, tokens, len(tokens))
        if n_matched < n_least:
            return NO_DRAFT
        draft = self._ring[place : place + n_most].tolist()
        if _END in draft:
            del draft[draft.index(_END) :]
        return Draft(tuple(map(TokenId, draft)), n_matched)

    def _index(self, places: range) -> None:
        begin = max(0, places.start - NGRAM_SIZES[0])
        tokens = self._ring[begin : places.stop].tolist()
        for place in places:
            end = place - begin
            for size in NGRAM_SIZES:
                if size <= end:
                    self._places[self._slot(tokens[end - size : end])] = place

    def _slot(self, ngram: Seq[int]) -> int:
        """Return the index of the n-gram in the table. Tuples of numbers have the same hash in every process."""
        return hash(tuple(ngram)) % len(self._places)


class EarlierAnswers(Lookup):
    """The continuation of one job's last tokens in an earlier answer, up to its end. `tokens` is the job's own growing
    list. The acceptance is learned from all jobs together, so that a job begins with it.

    A place is kept for as long as the text goes on as it did there, as in NgramLookup.
    """

    def __init__(self, history: History, tokens: list[TokenId], acceptance: Acceptance) -> None:
        self.acceptance = acceptance
        self._history, self._tokens = history, tokens
        self._place = 0
        """The place where the job's text was last found: of the token that should come next; 0 means none."""
        self._n_seen = 0
        """The number of tokens that the job had then."""

    def propose(self, n_most: int) -> Draft:
        tokens, history = self._tokens, self._history
        place = self._place + len(tokens) - self._n_seen if self._place else 0
        draft = history.read_at(place, tokens, 1, n_most)
        for size in NGRAM_SIZES:
            if draft is NO_DRAFT and size <= len(tokens):
                place = history.place_after(tokens[-size:])
                draft = history.read_at(place, tokens, size, n_most)
        self._place, self._n_seen = (0 if draft is NO_DRAFT else place), len(tokens)
        return draft
