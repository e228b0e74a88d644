"""What need not be computed again: cells that running sequences share, and those that ended ones have left.

Owns the choice of a source and what is kept for later. Refuses to know steps and events. Step thread.

The KV memory holds running sequences; a prefix that two of them have in common lies there once. Cells that an ended or
paused sequence leaves are kept in one of two ways:

- On a CPU they are copied out into the prefix index, because attention looks at every cell in use, dead ones too. They
  wait for that in retained slots, where later sequences find them without a copy: copies are made behind a step's
  report, a part at a time, and not while somebody waits for his first token. Only while nothing runs may the last
  sequence's cells stay.
- On a GPU they stay in the KV memory, in retained slots, and give way to running sequences, the longest unused first. A
  copy to main memory is thousands of small blocking reads there, and everybody would wait for it. Only while nothing
  runs are prompts copied out, which lie in one piece.

A sequence whose beginning another one is computing right now follows that one until it is computed.

The log-probabilities of prompts (scores) go along with the cells: a sequence takes over those of the beginning it
finds, and leaves them behind, though it wants none. One that wants them finds only what has them. The row of logits
behind the last token it has in common with another says what its own next token is worth, so that this last token is
computed again.
"""

from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TypeVar

from worker.engine.backend import Kv, Saved, Score
from worker.engine.kv_blocks import BlockJournal, Held
from worker.engine.prefix_tree import PrefixIndex, n_common
from worker.engine.sequence import Sequence, State
from worker.wire.messages import SlotId, TokenId

T = TypeVar("T")

MIN_KEPT = 16
"""How many tokens are worth the calls of copying them out, or in again."""

PART = 256
"""Copies are made of so many tokens at a time: 1 to 2 ms, and 15 where the system has to find the memory first."""

MAX_DEAD = 1024
"""On a CPU retained slots alone may hold so many cells for as long as somebody waits for his first token. Attention
walks past them; copying them takes 3 ms, or 50."""


@dataclass(frozen=True, slots=True)
class _Source:
    """A slot that has cells, and the scores of its first tokens."""

    slot: SlotId
    scores: list[Score]
    is_retained: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class _Retained:
    """Cells of a sequence that has lost its slot, in a slot of their own."""

    slot: SlotId
    tokens: list[TokenId]
    scores: list[Score]
    n_prompt: int
    """The number of tokens of the prompt; only these are in one piece on a GPU."""


class PrefixCache:
    """`grain`: found prefixes are cut to a multiple of so many tokens, 1 for no cut; `worthwhile`: how many tokens of a
    prefix are worth waiting for until another sequence has computed them; `retained_slots`: the slots where cells of
    sequences that have lost theirs may stay; `max_dead_cells`: how many cells these may hold alone while others run,
    0 for none (a CPU's way); `journal` is told what the index keeps.
    """

    def __init__(
        self,
        kv: Kv,
        *,
        limit_bytes: int,
        grain: int,
        min_tokens_to_wait_for: int,
        retained_slots: Collection[SlotId],
        max_dead_cells: int = 0,
        journal: BlockJournal | None = None,
    ) -> None:
        self._kv = kv
        self._grain = grain
        self._min_tokens_to_wait_for = min_tokens_to_wait_for
        self._free_slots = list(retained_slots)
        self._max_dead_cells = max_dead_cells
        self._token_bytes = 0.0
        """How many bytes of a copy each token takes; 0 before the first copy."""
        self._is_on_device = bool(self._free_slots) and max_dead_cells > 0
        self.is_keeping = kv.can_share and (limit_bytes > 0 or self._is_on_device)
        """Whether anything is kept of sequences that lose their slot."""
        self.index = PrefixIndex(limit_bytes, journal)
        self._retained: dict[SlotId, _Retained] = {}
        """The longest unused first. A conversation that goes on finds its cells there, without a copy."""
        self._backed_up: set[SlotId] = set()
        """Retained slots that are done with: once copied, the index may give a copy up for another one."""

    @property
    def retained(self) -> list[list[TokenId]]:
        """The tokens whose cells are in retained slots, the longest unused first."""
        return [each.tokens for each in self._retained.values()]

    @property
    def n_dead_cells(self) -> int:
        """The number of cells that retained slots alone hold; they give way to any job."""
        return self._kv.n_cells_of(self._retained) if self._retained else 0

    def n_retained(self, slot: SlotId) -> int:
        """How many tokens the slot holds while nothing runs."""
        return len(self._retained[slot].tokens) if slot in self._retained else 0

    def n_shared(self, sequence: Sequence, running: Iterable[Sequence]) -> int:
        """The number of its first tokens that running sequences hold. Retained cells are not counted: they count as
        free (`n_dead_cells`)."""
        _, n_shared = self._longest(sequence, self._held_by(sequence, running))
        return n_shared

    def in_memory(self, running: Iterable[Sequence]) -> Iterator[Held]:
        """What other sequences may have of the KV memory."""
        if not self._kv.can_share:
            return
        for one in running:
            if one.slot is not None:
                yield one.slot, one.tokens, self._n_worth(one)
        for each in self._retained.values():
            yield each.slot, each.tokens, len(each.tokens)

    def settle(self, sequence: Sequence, running: Collection[Sequence]) -> bool:
        """Give a sequence in FOLLOW what is kept of its beginning. False: it waits, as another is computing more."""
        if _is_awaiting(sequence):
            return False
        source, n_shared = self._nearest(sequence, running)
        n_kept = self._n_kept(sequence)
        sequence.leader, sequence.n_awaited = self._on_its_way(sequence, running)
        if sequence.n_awaited >= max(n_shared, n_kept) + self._min_tokens_to_wait_for:
            return False
        sequence.leader = None
        self._fill(sequence, source, n_shared, n_kept)
        sequence.move(State.REPORT if sequence.has_unreported else State.PREFILL)
        return True

    def n_missing(self, prompt: list[TokenId], running: Iterable[Sequence]) -> int | None:
        """How many tokens of a prompt would be computed if it came now; None where it would wait until another one has
        computed its beginning. Nothing changes.
        """
        if not self._kv.can_share:
            return len(prompt)
        known = [(each.tokens, len(each.tokens)) for each in self._retained.values()]
        known += [(one.tokens, self._n_worth(one)) for one in running]
        n_found = max([self.index.match(prompt), *(min(n_common(prompt, tokens), n) for tokens, n in known)])
        coming = [n_common(prompt, one.tokens) for one in running if one.state is State.PREFILL]
        if max(coming, default=0) >= n_found + self._min_tokens_to_wait_for:
            return None
        return max(1, len(prompt) - n_found)

    def keep(self, sequence: Sequence) -> None:
        """Keep what a sequence that is about to lose its slot has computed, in a retained slot. Where there is none for
        it, what the index does not have is copied out.
        """
        if sequence.slot is None or not self.is_keeping or sequence.n_computed < MIN_KEPT:
            return
        tokens = sequence.tokens[: self._n_worth(sequence)]
        kept = _Retained(sequence.slot, tokens, sequence.scores[: len(tokens)], len(sequence.prompt))
        if self._free_slots or self._retained:
            self._retain(kept)
        else:
            # Draft tokens may lie behind them.
            self._kv.trim(sequence.slot, len(tokens))
            self._copy_out(kept)

    def give_up(self, running: Iterable[Sequence]) -> bool:
        """Free retained cells because running sequences need room: on a CPU all of them, copied out first; on a GPU
        those of the longest unused slot. False where there are none.
        """
        if self._is_on_device and self._retained:
            self._drop(next(iter(self._retained)))
            return True
        return self.put_away(running)

    def tidy(self, running: Collection[Sequence], n_headroom: int) -> bool:
        """Put retained cells away, or drop them, after the front was sent a step's results. False if none had to go.

        On a CPU a part of them is put away, of the longest unused first, and while nothing runs the last used stay. On
        a GPU they are kept within the budget of dead cells, with so many cells free for the next step.
        """
        if not self._is_on_device:
            return self._put_part_away(running)
        n_before = len(self._retained)
        while running and self._retained and self._is_too_full(n_headroom):
            self._drop(next(iter(self._retained)))
        return len(self._retained) < n_before

    def _is_too_full(self, n_headroom: int) -> bool:
        return self._kv.n_free_cells < n_headroom or self.n_dead_cells > self._max_dead_cells

    def _put_part_away(self, running: Collection[Sequence]) -> bool:
        if len(self._retained) <= (0 if running else 1):
            return False
        if any(map(_awaits_first_token, running)) and self.n_dead_cells <= MAX_DEAD:
            return False
        oldest = next(iter(self._retained.values()))
        if not self._is_worth_copying(oldest, running) or not self._copy_out(oldest, n_most=PART):
            self._drop(oldest.slot)
        return True

    def put_away(self, running: Iterable[Sequence] = ()) -> bool:
        """Empty the retained slots. Their cells are copied out first where all the running sequences have left enough
        of them unused. False where the slots were empty.
        """
        was_retaining = bool(self._retained)
        for each in list(self._retained.values()):
            if self._is_worth_copying(each, running):
                self._copy_out(each)
            self._drop(each.slot)
        return was_retaining

    def _is_worth_copying(self, kept: _Retained, running: Iterable[Sequence]) -> bool:
        """True if the running sequences have left enough of it unused."""
        n_alive = max((min(n_common(kept.tokens, one.tokens), one.n_computed) for one in running), default=0)
        return len(kept.tokens) - n_alive >= MIN_KEPT

    def back_up(self) -> bool:
        """Copy out what one of the retained slots has and the index has not, and leave it there too. False where there
        was nothing to copy. Each is copied once at most, the last used first, as many as the index has room for.
        """
        n_before, n_bytes = self.index.n_tokens, 0.0
        for each in reversed(self._retained.values()):
            n_own_bytes = len(self._worth_copying(each)) * self._token_bytes
            if n_bytes + n_own_bytes > self.index.limit_bytes:
                continue
            n_bytes += n_own_bytes
            if each.slot not in self._backed_up:
                self._backed_up.add(each.slot)
                self._copy_out(each)
                if self.index.n_tokens != n_before:
                    return True
        return False

    def _retain(self, kept: _Retained) -> None:
        """Give the cells of a slot to a retained one. Others whose tokens these begin with are not needed any more."""
        for other in list(self._retained.values()):
            is_beginning = len(other.tokens) == n_common(other.tokens, kept.tokens)
            if is_beginning and len(other.scores) <= len(kept.scores):
                self._drop(other.slot)
        if not self._free_slots:
            oldest = next(iter(self._retained.values()))
            if not self._is_on_device:
                self._copy_out(oldest)
            self._drop(oldest.slot)
        slot = self._free_slots.pop()
        self._kv.share(kept.slot, slot, len(kept.tokens))
        self._retained[slot] = replace(kept, slot=slot)

    def _drop(self, slot: SlotId) -> None:
        del self._retained[slot]
        self._backed_up.discard(slot)
        self._free_slots.append(slot)
        self._kv.trim(slot, 0)

    def restore(self, tokens: list[TokenId], saved: Saved) -> bool:
        """Keep cells that an engine before this one has left, of the last of `tokens`. False where their beginning is
        missing, or they are known.
        """
        n_known, start = self.index.match(tokens), len(tokens) - saved.n_tokens
        if not self.is_keeping or not start <= n_known < len(tokens):
            return False
        self.index.insert(tokens, n_known, saved if n_known == start else saved.split(n_known - start)[1])
        return True

    def _copy_out(self, kept: _Retained, n_most: int | None = None) -> bool:
        """Put a slot's cells and their scores into the index, at most so many cells; whether there are more. What there
        is no memory for is not even copied; it can be computed again.
        """
        tokens = self._worth_copying(kept)
        n_known = self.index.match(tokens)
        end = len(tokens) if n_most is None else min(n_known + n_most, len(tokens))
        n_bytes, limit_bytes = len(tokens) * self._token_bytes, self.index.limit_bytes
        if len(tokens) - n_known >= MIN_KEPT and n_bytes <= limit_bytes and limit_bytes:
            with suppress(MemoryError):
                saved = self._kv.save(kept.slot, n_known, tokens[:end], end=end)
                self._token_bytes = saved.n_bytes / saved.n_tokens
                self.index.insert(tokens[:end], n_known, saved)
                if end < len(tokens) and self.index.match(tokens) == end:
                    return True
        if kept.scores:
            self.index.add_scores(tokens, kept.scores)
        return False

    def _worth_copying(self, kept: _Retained) -> list[TokenId]:
        """The tokens whose cells may be copied out: on a GPU only those that lie in one piece."""
        return kept.tokens[: kept.n_prompt] if self._is_on_device else kept.tokens

    def _n_kept(self, sequence: Sequence) -> int:
        """How many of its first tokens the index has, if they are worth a copy; else 0."""
        tokens = sequence.tokens
        n_kept = self._cut(
            len(self.index.scores(tokens)) if sequence.is_scoring else self.index.match(tokens), sequence
        )
        return n_kept if n_kept >= MIN_KEPT else 0

    def _fill(self, sequence: Sequence, source: _Source | None, n_shared: int, n_kept: int) -> None:
        """Fill the sequence's empty slot from the index or, where that has no more tokens or no room, from `source`."""
        assert sequence.slot is not None
        if n_kept > max(n_shared, self._kv.n_free_cells):
            source = self._make_room(n_kept, source)
            # What was copied out may have taken its place in the index.
            n_kept = self._n_kept(sequence)
        if n_shared < n_kept <= self._kv.n_free_cells and self._load(sequence, n_kept):
            sequence.begin_at(n_kept, self.index.scores(sequence.tokens))
        elif source is not None:
            self._kv.share(source.slot, sequence.slot, n_shared)
            sequence.begin_at(n_shared, source.scores)
            if source.slot in self._retained:
                self._retained[source.slot] = self._retained.pop(source.slot)

    def _make_room(self, n_cells: int, source: _Source | None) -> _Source | None:
        """Give up retained cells for so many that are to be loaded; the source, if it is still there."""
        while self._kv.n_free_cells < n_cells and self.give_up(()):
            pass
        is_gone = source is not None and source.is_retained and source.slot not in self._retained
        return None if is_gone else source

    def _load(self, sequence: Sequence, n_tokens: int) -> bool:
        assert sequence.slot is not None
        try:
            self._kv.load(sequence.slot, self.index.take(sequence.tokens, n_tokens), n_tokens)
        except MemoryError:
            return False
        return True

    def _nearest(self, sequence: Sequence, running: Iterable[Sequence]) -> tuple[_Source | None, int]:
        """The slot that has computed most of this one's beginning, and how much; (None, 0) where none has any."""
        retained = (
            (
                _Source(each.slot, each.scores, is_retained=True),
                each.tokens,
                _n_usable(sequence, len(each.tokens), len(each.scores)),
            )
            for each in self._retained.values()
        )
        return self._longest(sequence, [*self._held_by(sequence, running), *retained])

    def _held_by(self, sequence: Sequence, running: Iterable[Sequence]) -> list[tuple[_Source, list[TokenId], int]]:
        """The tokens that other running sequences have computed, in `_longest`'s form."""
        return [
            (_Source(one.slot, one.scores), one.tokens, _n_usable(sequence, self._n_worth(one), len(one.scores)))
            for one in running
            if one is not sequence and one.slot is not None
        ]

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


def _awaits_first_token(sequence: Sequence) -> bool:
    return sequence.state is not State.DECODE and not sequence.generated


def _is_awaiting(sequence: Sequence) -> bool:
    leader = sequence.leader
    return leader is not None and leader.state is State.PREFILL and leader.n_computed < sequence.n_awaited
