"""Drafts that are looked up in texts: a job's own, the one that its client predicts, and earlier answers.

A place in a text is kept for as long as the job goes on as the text did there: a place that has agreed for long
predicts more than a later one that agrees in the last few tokens.
"""

from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Sequence as Seq
from typing import Protocol

from worker.engine.drafting.pricing import NO_DRAFT, Acceptance, Draft
from worker.wire.jobs import TokenId

NGRAM_SIZES = (4, 2, 1)
"""The numbers of last tokens to look for, in this order: long n-grams find the right place, short ones find it soon
after an edit."""
EARLIER_SIZES = (8, 4, 2)
"""The same for earlier answers."""

MAX_COUNTED = 16
"""The largest number of tokens that are counted back from a new match; a longer match is simply long."""

TRUST_BEHIND_A_CHANGE = 4
"""A place that goes on after a changed token is trusted as if it had agreed for this part of its tokens. With 1, drafts
after names are too long; with more than any match has had, drafts after an edit are too short."""

MAX_PREDICTED = 32_768
"""The most tokens of a prediction that are used. Its index takes up to 800 bytes for each."""
N_INDEXED = 512
"""The most tokens of a prediction that are indexed before a step, at about two microseconds each: other jobs wait."""
BELIEVED = 8
"""The number of matching tokens that the start of a prediction is credited with."""

HISTORY_BYTES = 4 * 2**20
"""Some 260,000 tokens of answers and their index."""
_END = -1
"""A mark after each answer, and in places that were never written. It is no token, so no n-gram and no draft reaches
across it."""
_WIDTH = array("i").itemsize


class Lookup(Protocol):
    """Drafts for one job that are looked up in a text, which takes next to no time."""

    acceptance: Acceptance

    def propose(self, n_most: int) -> Draft:
        """Return a draft of the job's next tokens, up to n_most; `NO_DRAFT` if there is none."""

    def catch_up(self, n_most: int) -> int:  # noqa: ARG002 - most have nothing to do ahead of a draft
        """Index at most n_most of the current tokens ahead of the next draft. Return how many were indexed."""
        return 0


def n_common(one: Seq[int], end: int, other: Seq[int], other_end: int) -> int:
    """Return how many tokens before the two positions are the same, up to MAX_COUNTED."""
    most = min(end, other_end, MAX_COUNTED)
    return next((n for n in range(most) if one[end - 1 - n] != other[other_end - 1 - n]), most)


def _ngrams(tokens: Seq[TokenId], end: int) -> list[tuple[TokenId, ...]]:
    return [tuple(tokens[end - size : end]) for size in NGRAM_SIZES if size <= end]


class NgramLookup(Lookup):
    """The last place of each n-gram of one job's tokens; `tokens`, prompt and generated, is the job's own growing list.

    If one token differs from those at the place, as a name in a form does, the place goes on after it, unless the last
    two tokens have stood somewhere together.

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
        tokens, ngrams = self._tokens, _ngrams(self._tokens, end)
        if self._next is not None and tokens[self._next] == tokens[end - 1]:
            self._next += 1
            self._n_matched += 1
        else:
            known = [ngram for ngram in ngrams if ngram in self._ends]
            if self._next is not None and self._n_matched and not any(len(ngram) > 1 for ngram in known):
                self._next += 1
                self._n_matched //= TRUST_BEHIND_A_CHANGE
            else:
                self._next = self._ends[known[0]] if known else None
                self._n_matched = 0 if self._next is None else n_common(tokens, self._next, tokens, end)
        for ngram in ngrams:
            self._ends[ngram] = end


class Predicted(Lookup):
    """A text that the client expects its answer to repeat, with changes: OpenAI's `prediction`. `generated` is the
    job's own growing list.

    Its place is the start of the text at first. After a token that differs, the place is where the answer's last tokens
    stand next in the text. If they stand nowhere, it is after the expected token, which another one has replaced.
    """

    def __init__(self, tokens: Seq[TokenId], generated: list[TokenId]) -> None:
        self.acceptance = Acceptance()
        self._tokens, self._generated = list(tokens[:MAX_PREDICTED]), generated
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
        start, self._n_indexed = self._n_indexed, min(len(self._tokens), self._n_indexed + N_INDEXED)
        for at in range(start + 1, self._n_indexed + 1):
            for ngram in _ngrams(self._tokens, at):
                self._places.setdefault(ngram, []).append(at)
        while self._n_seen < len(self._generated):
            self._n_seen += 1
            self._follow(self._n_seen)
        tokens = tuple(self._tokens[self._next : self._next + n_most])
        return Draft(tokens, self._n_matched) if tokens else NO_DRAFT

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
        known = next((ngram for ngram in _ngrams(self._generated, end) if ngram in self._places), ())
        if len(known) > 1 or (known and not self._n_matched):
            places = self._places[known]
            self._next = places[min(bisect_left(places, self._reached), len(places) - 1)]
            self._n_matched = n_common(self._tokens, self._next, self._generated, end)
        else:
            self._next += 1
            self._n_matched //= TRUST_BEHIND_A_CHANGE


class History:
    """The last answers in a ring, each after the last tokens of its prompt; and a table that has the place after an
    n-gram for its hash. Nothing of it outlives the engine.

        ring:  ... q q q b b b b b ■ p p p a a a a a a a ■ x x x x x ■ (the oldest)
                                           └ a place: the n-gram ends before it, the draft begins there

    Nothing is ever deleted from the table: an n-gram overwrites whatever had its hash, and the tokens before a place
    are compared before anything is read from it. So a place may be old or wrong.

    Memory: at most `limit_bytes`, all of it allocated at the start.
    """

    def __init__(self, limit_bytes: int) -> None:
        n_tokens = limit_bytes // (_WIDTH * (1 + len(EARLIER_SIZES)))
        self._ring = array("i", [_END]) * n_tokens
        self._places = array("i", [0]) * (n_tokens * len(EARLIER_SIZES))
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
        begin = max(0, n_prompt - EARLIER_SIZES[0], len(tokens) + 1 - len(self._ring))
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
            begin = max(0, places.start - EARLIER_SIZES[0])
            tokens = self._ring[begin : places[:n_most].stop].tolist()
            for place in places[:n_most]:
                for size in EARLIER_SIZES:
                    if size <= place - begin:
                        self._places[self._slot(tokens[place - begin - size : place - begin])] = place
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

    def _slot(self, ngram: Seq[int]) -> int:
        """Return the index of the n-gram in the table. Tuples of numbers have the same hash in every process."""
        return hash(tuple(ngram)) % len(self._places)


class EarlierAnswers(Lookup):
    """The continuation of one job's last tokens in an earlier answer, up to its end. `tokens` is the job's own growing
    list. The acceptance is learned from all jobs together, so that a job begins with it."""

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
        for size in EARLIER_SIZES:
            if draft is NO_DRAFT and size <= len(tokens):
                place = history.place_after(tokens[-size:])
                draft = history.read_at(place, tokens, size, n_most)
        self._place, self._n_seen = (0 if draft is NO_DRAFT else place), len(tokens)
        return draft
