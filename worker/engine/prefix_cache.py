"""What need not be computed again: cells that running sequences share, and those that ended ones have left.

Owns the choice of a source and what is kept for later. Refuses to know steps and events. Step thread.

The KV memory holds running sequences; a prefix that two of them have in common lies there once. What an ended or paused
sequence computed is copied out into the prefix index, because attention looks at every cell in use, dead ones too. Only
while nothing runs may the last sequence's cells stay in the KV memory, in the retained slot.
A sequence whose beginning another one is computing right now follows that one until it is computed.

The log-probabilities of prompts (scores) go along with the cells: a sequence takes over those of the beginning it
finds, and leaves them behind, though it wants none. One that wants them finds only what has them. The row of logits
behind the last token it has in common with another says what its own next token is worth, so that this last token is
computed again.
"""

from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from worker.engine.backend import Kv, Saved, Score
from worker.engine.kv_blocks import BlockJournal, Held
from worker.engine.prefix_tree import PrefixIndex, n_common
from worker.engine.sequence import Sequence, State
from worker.wire.messages import SlotId, TokenId

T = TypeVar("T")

LEAST_KEPT = 16
"""How many tokens are worth the calls of copying them out, or in again."""


@dataclass(frozen=True, slots=True)
class _Source:
    """A slot that has cells, and the scores of its first tokens."""

    slot: SlotId
    scores: list[Score]


class PrefixCache:
    """`grain`: found prefixes are cut to a multiple of so many tokens, 1 for no cut; `worthwhile`: how many tokens of a
    prefix are worth waiting for until another sequence has computed them; `retained_slot`: the slot where the last
    sequence's cells stay while nothing runs; `journal` is told what the index keeps.
    """

    def __init__(
        self,
        kv: Kv,
        *,
        limit_bytes: int,
        grain: int,
        worthwhile: int,
        retained_slot: SlotId | None,
        journal: BlockJournal | None = None,
    ) -> None:
        self._kv = kv
        self._grain = grain
        self._worthwhile = worthwhile
        self._retained_slot = retained_slot
        self._token_bytes = 0.0
        """How many bytes of a copy each token takes; 0 before the first copy."""
        self.is_keeping = kv.can_share and limit_bytes > 0
        """Whether anything is kept of sequences that lose their slot."""
        self.index = PrefixIndex(limit_bytes, journal)
        self.retained: list[TokenId] = []
        """The tokens whose cells are in the retained slot. A conversation that goes on finds them there, without a
        copy."""
        self._retained_scores: list[Score] = []

    def n_retained(self, slot: SlotId) -> int:
        """How many tokens the slot holds while nothing runs."""
        return len(self.retained) if slot == self._retained_slot else 0

    def n_shared(self, sequence: Sequence, running: Iterable[Sequence]) -> int:
        """How many of its first tokens lie in the KV memory."""
        _, n_shared = self._nearest(sequence, running)
        return n_shared

    def in_memory(self, running: Iterable[Sequence]) -> Iterator[Held]:
        """What other sequences may have of the KV memory."""
        if not self._kv.can_share:
            return
        for one in running:
            if one.slot is not None:
                yield one.slot, one.tokens, self._n_worth(one)
        if self._retained_slot is not None:
            yield self._retained_slot, self.retained, len(self.retained)

    def settle(self, sequence: Sequence, running: Collection[Sequence]) -> bool:
        """Give a sequence in FOLLOW what is kept of its beginning. False: it waits, as another is computing more."""
        if _is_awaiting(sequence):
            return False
        source, n_shared = self._nearest(sequence, running)
        n_kept = self._n_kept(sequence)
        sequence.leader, sequence.n_awaited = self._on_its_way(sequence, running)
        if sequence.n_awaited >= max(n_shared, n_kept) + self._worthwhile:
            return False
        sequence.leader = None
        self._fill(sequence, source, n_shared, n_kept)
        sequence.move(State.TELL if sequence.has_untold else State.PREFILL)
        return True

    def keep(self, sequence: Sequence, *, is_last: bool = False) -> None:
        """Keep what a sequence that is about to lose its slot has computed: in the retained slot if it is the last that
        runs, else by copying out what the index does not have.
        """
        if sequence.slot is None or not self.is_keeping or sequence.n_computed < LEAST_KEPT:
            return
        tokens = sequence.tokens[: self._n_worth(sequence)]
        if is_last and self._retained_slot is not None:
            self.put_away([sequence])
            self._kv.share(sequence.slot, self._retained_slot, len(tokens))
            self.retained, self._retained_scores = tokens, sequence.scores[: len(tokens)]
        else:
            # Draft tokens may lie behind them.
            self._kv.trim(sequence.slot, len(tokens))
            self._copy_out(sequence.slot, tokens, sequence.scores[: len(tokens)])

    def put_away(self, running: Iterable[Sequence] = ()) -> bool:
        """Empty the retained slot, because others run now. Its cells are copied out first where all the running
        sequences have left enough of them unused. False where the slot was empty.
        """
        if not self.retained:
            return False
        assert self._retained_slot is not None
        tokens, self.retained = self.retained, []
        scores, self._retained_scores = self._retained_scores, []
        n_alive = max((min(n_common(tokens, one.tokens), one.n_computed) for one in running), default=0)
        if len(tokens) - n_alive >= LEAST_KEPT:
            self._copy_out(self._retained_slot, tokens, scores)
        self._kv.trim(self._retained_slot, 0)
        return True

    def back_up(self) -> None:
        """Copy out what the retained slot has, and leave it there too."""
        if self.retained:
            assert self._retained_slot is not None
            self._copy_out(self._retained_slot, self.retained, self._retained_scores)

    def restore(self, tokens: list[TokenId], saved: Saved) -> bool:
        """Keep cells that an engine before this one has left, of the last of `tokens`. False where their beginning is
        missing, or they are known.
        """
        n_known, start = self.index.match(tokens), len(tokens) - saved.n_tokens
        if not self.is_keeping or not start <= n_known < len(tokens):
            return False
        self.index.insert(tokens, n_known, saved if n_known == start else saved.split(n_known - start)[1])
        return True

    def _copy_out(self, slot: SlotId, tokens: list[TokenId], scores: list[Score]) -> None:
        """Put the slot's cells and their scores into the index. What there is no memory for is not even copied; it can
        be computed again.
        """
        n_known = self.index.match(tokens)
        if len(tokens) - n_known >= LEAST_KEPT and len(tokens) * self._token_bytes <= self.index.limit_bytes:
            with suppress(MemoryError):
                saved = self._kv.save(slot, n_known, tokens)
                self._token_bytes = saved.n_bytes / saved.n_tokens
                self.index.insert(tokens, n_known, saved)
        if scores:
            self.index.add_scores(tokens, scores)

    def _n_kept(self, sequence: Sequence) -> int:
        """How many of its first tokens the index has, if they are worth a copy; else 0."""
        tokens = sequence.tokens
        n_kept = self._cut(
            len(self.index.scores(tokens)) if sequence.is_scoring else self.index.match(tokens), sequence
        )
        return n_kept if n_kept >= LEAST_KEPT else 0

    def _fill(self, sequence: Sequence, source: _Source | None, n_shared: int, n_kept: int) -> None:
        """Fill the sequence's empty slot from the index or, where that has no more tokens or no room, from `source`."""
        assert sequence.slot is not None
        if n_kept > max(n_shared, self._kv.n_free_cells):
            self.put_away()
            source = None if source is not None and source.slot == self._retained_slot else source
            # What was copied out may have taken its place in the index.
            n_kept = self._n_kept(sequence)
        if n_shared < n_kept <= self._kv.n_free_cells and self._load(sequence, n_kept):
            sequence.begin_at(n_kept, self.index.scores(sequence.tokens))
        elif source is not None:
            self._kv.share(source.slot, sequence.slot, n_shared)
            sequence.begin_at(n_shared, source.scores)

    def _load(self, sequence: Sequence, n_tokens: int) -> bool:
        assert sequence.slot is not None
        try:
            self._kv.load(sequence.slot, self.index.take(sequence.tokens, n_tokens), n_tokens)
        except MemoryError:
            return False
        return True

    def _nearest(self, sequence: Sequence, running: Iterable[Sequence]) -> tuple[_Source | None, int]:
        """The slot that has computed most of this one's beginning, and how much; (None, 0) where none has any."""
        sources = [
            (_Source(one.slot, one.scores), one.tokens, _n_usable(sequence, self._n_worth(one), len(one.scores)))
            for one in running
            if one is not sequence and one.slot is not None
        ]
        if self._retained_slot is not None:
            retained = _Source(self._retained_slot, self._retained_scores)
            n_usable = _n_usable(sequence, len(self.retained), len(self._retained_scores))
            sources.append((retained, self.retained, n_usable))
        return self._longest(sequence, sources)

    def _on_its_way(self, sequence: Sequence, running: Iterable[Sequence]) -> tuple[Sequence | None, int]:
        """The sequence that is computing most of this one's beginning, and how much; (None, 0) where none is."""
        coming = [
            (one, one.tokens, _n_usable(sequence, len(one.tokens), len(one.prompt if one.is_scoring else one.scores)))
            for one in running
            if one.state is State.PREFILL
        ]
        return self._longest(sequence, coming)

    def _longest(self, sequence: Sequence, sources: Iterable[tuple[T, list[TokenId], int]]) -> tuple[T | None, int]:
        """The source that has most of the sequence's beginning. `sources`: (whose, their tokens, how many of these
        count).
        """
        best: tuple[T | None, int] = (None, 0)
        for who, tokens, n_most in sources if self._kv.can_share else ():
            if n_most > best[1]:
                n_equal = self._cut(min(n_common(sequence.tokens, tokens), n_most), sequence)
                if n_equal > best[1]:
                    best = who, n_equal
        return best

    def _n_worth(self, sequence: Sequence) -> int:
        """How many of its computed tokens another sequence may have. With a grain these are only the prompt's:
        generated ones were computed one by one, and in another's prompt they would be computed in chunks.
        """
        return sequence.n_computed if self._grain == 1 else min(sequence.n_computed, len(sequence.prompt))

    def _cut(self, n_tokens: int, sequence: Sequence) -> int:
        """So many tokens cut to the grain, and without the sequence's last: that is always computed, because a draw
        needs its logits. Where scores are wanted, the last of the tokens found is computed too, because the score of
        the one behind it needs its logits.
        """
        n_found = n_tokens - 1 if sequence.is_scoring else n_tokens
        return min(n_found, len(sequence.tokens) - 1) // self._grain * self._grain


def _n_usable(sequence: Sequence, n_computed: int, n_scored: int) -> int:
    """How many of another's tokens count for the sequence. If it wants scores, these are the tokens with one, and the
    last of them need not be computed.
    """
    return min(n_computed + 1, n_scored) if sequence.is_scoring else n_computed


def _is_awaiting(sequence: Sequence) -> bool:
    leader = sequence.leader
    return leader is not None and leader.state is State.PREFILL and leader.n_computed < sequence.n_awaited
