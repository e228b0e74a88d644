"""Prefix reuse: running sequences share KV cells, and the cells of ended ones are kept for later prompts.

This module owns the choice of a source and of the cells to keep. It knows neither steps nor events. It runs on the step
thread.

The KV memory holds running sequences; a prefix that two of them have in common is stored once. Cells that an ended or
paused sequence leaves are kept in one of two ways:

- On a CPU they are copied out into the prefix index, because attention looks at every cell in use, dead ones too. Until
  then they wait in retained slots, where later sequences find them without a copy. Copies are made after a step's
  report, a part at a time, and not while a job waits for its first token. The last sequence's cells may stay, but only
  while nothing runs.
- On a GPU they stay in the KV memory, in retained slots. Running sequences may take these, the longest unused first. A
  copy to main memory is thousands of small blocking reads there, and all jobs would wait for it. Prompts, which lie in
  one piece, are copied out, but only while nothing runs.

If another sequence is computing the prefix of a sequence right now, this one follows it until it is computed.

If the model has recurrent state, a sequence can begin at checkpoints only: state_cache.py has the rules for that.

The log-probabilities of prompts (scores) go along with the cells: a sequence takes over those of its cached prefix, and
leaves them to others, even if it wants none. A sequence that wants scores reuses only cells that have them. The row of
logits after the last token that it has in common with another gives the score of its own next token, so this last token
is computed again.
"""

from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TypeVar

from worker.engine.backend import Checkpoint, Kv, Saved
from worker.engine.kv_blocks import BlockJournal, Held
from worker.engine.prefix_tree import PrefixIndex, n_common
from worker.engine.sequence import Sequence, State
from worker.engine.step import Score
from worker.wire.jobs import SlotId, TokenId

T = TypeVar("T")

MIN_KEPT = 16
"""The least number of tokens that are worth the calls to copy them out, or in again."""

PART = 256
"""The number of tokens that are copied at a time: 1 to 2 ms, and 15 if the system has to find the memory first."""

MAX_DEAD = 1024
"""The largest number of cells that retained slots alone may hold on a CPU while a job waits for its first token.
Attention walks past them; copying them takes 3 ms, or 50."""


@dataclass(frozen=True, slots=True)
class Source:
    """A slot that has cells, and the scores of its first tokens."""

    slot: SlotId
    scores: list[Score]
    is_retained: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class _Retained:
    """The cells of a sequence that has lost its slot, in a slot of their own."""

    slot: SlotId
    tokens: list[TokenId]
    scores: list[Score]
    n_prompt: int
    """The number of tokens of the prompt; on a GPU only these are in one piece."""


class PrefixCache:
    """The cells that can be reused, and the rules of their reuse.

    `grain`: cached prefixes are cut to a multiple of this number of tokens; 1 cuts nothing. `min_tokens_to_wait_for`:
    a sequence waits if another one is computing at least this many tokens of its prefix. `retained_slots`: the slots
    where cells of sequences that have lost theirs may stay. `max_dead_cells`: the number of cells that these may hold
    alone while jobs run; 0 on a CPU. `journal` gets the changes of the index.
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
        index: PrefixIndex | None = None,
    ) -> None:
        self._kv = kv
        self._grain = grain
        self._min_tokens_to_wait_for = min_tokens_to_wait_for
        self._free_slots = list(retained_slots)
        self._max_dead_cells = max_dead_cells
        self._token_bytes = 0.0
        """The bytes of a copy for each token; 0 before the first copy."""
        self._is_on_device = bool(self._free_slots) and max_dead_cells > 0
        self.is_keeping = kv.can_share and (limit_bytes > 0 or self._is_on_device)
        """True if cells of sequences that lose their slot are kept at all."""
        self.index = PrefixIndex(limit_bytes, journal) if index is None else index
        self._retained: dict[SlotId, _Retained] = {}
        """The retained cells, the longest unused first. A conversation that goes on finds its cells here, without a
        copy."""
        self._backed_up: set[SlotId] = set()
        """The retained slots that were copied once. They are not copied again, even if the index has evicted a copy."""

    @property
    def retained(self) -> list[list[TokenId]]:
        """The tokens whose cells are in retained slots, the longest unused first."""
        return [each.tokens for each in self._retained.values()]

    @property
    def n_dead_cells(self) -> int:
        """The number of cells that retained slots alone hold; any job may take them."""
        return self._kv.n_cells_of(self._retained) if self._retained else 0

    def n_retained(self, slot: SlotId) -> int:
        """Return how many tokens the slot holds while nothing runs."""
        return len(self._retained[slot].tokens) if slot in self._retained else 0

    def n_shared(self, sequence: Sequence, running: Iterable[Sequence]) -> int:
        """Return how many of its first tokens running sequences hold. Retained cells are not counted: they count as
        free (`n_dead_cells`)."""
        _, n_shared = self._longest(sequence, self._held_by(sequence, running))
        return n_shared

    def in_memory(self, running: Iterable[Sequence]) -> Iterator[Held]:
        """Yield the contents of the KV memory that other sequences may share."""
        if not self._kv.can_share:
            return
        for one in running:
            if one.slot is not None:
                yield one.slot, one.tokens, self._n_worth(one)
        for each in self._retained.values():
            yield each.slot, each.tokens, len(each.tokens)

    def settle(self, sequence: Sequence, running: Collection[Sequence]) -> bool:
        """Give a sequence in FOLLOW the cached cells of its prefix. Return False if it waits, because another one is
        computing more of it."""
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
        """Return how many tokens of a prompt would be computed if it came now; None if it would wait until another one
        has computed its prefix. Nothing changes.
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

    def keep(self, sequence: Sequence, _: Collection[Sequence]) -> None:
        """Keep the computed cells of a sequence that is about to lose its slot, in a retained slot. If there is none,
        copy out the cells that the index lacks.
        """
        if sequence.slot is None or not self.is_keeping or sequence.n_computed < MIN_KEPT:
            return
        tokens = sequence.tokens[: self._n_worth(sequence)]
        kept = _Retained(sequence.slot, tokens, sequence.scores[: len(tokens)], len(sequence.prompt))
        if self._free_slots or self._retained:
            self._retain(kept)
        else:
            # Draft tokens may lie after them.
            self._kv.trim(sequence.slot, len(tokens))
            self._copy_out(kept)

    @property
    def is_owing(self) -> bool:
        """True if ended sequences' cells are still in their slots, where `take_checkpoints` copies them out."""
        return False

    def leave(self, sequence: Sequence, running: Collection[Sequence]) -> bool:
        """Keep the computed cells of a sequence that ends. Return True if they are still in its slot (`is_owing`)."""
        self.keep(sequence, running)
        return False

    def take_checkpoints(self, _: Collection[Sequence]) -> bool:
        """Take the checkpoints that sequences have come to with the last step. Return True if there were any."""
        return False

    def give_up(self, running: Iterable[Sequence]) -> bool:
        """Free retained cells because running sequences need room: on a CPU all of them, copied out first; on a GPU
        those of the longest unused slot. Return False if there are none.
        """
        if self._is_on_device and self._retained:
            self._drop(next(iter(self._retained)))
            return True
        return self.put_away(running)

    def tidy(self, running: Collection[Sequence], n_headroom: int) -> bool:
        """Put retained cells away, or drop them, after a step's results were sent to the front. Return False if none
        had to go.

        On a CPU a part of the longest unused ones is put away; while nothing runs the last used stay. On a GPU they are
        kept within the budget of dead cells, with `n_headroom` cells free for the next step.
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
        """Empty the retained slots. Their cells are copied out first if the running sequences share few enough of them.
        Return False if the slots were empty.
        """
        was_retaining = bool(self._retained)
        for each in list(self._retained.values()):
            if self._is_worth_copying(each, running):
                self._copy_out(each)
            self._drop(each.slot)
        return was_retaining

    def _is_worth_copying(self, kept: _Retained, running: Iterable[Sequence]) -> bool:
        """Return True if the running sequences share few enough of its cells."""
        n_alive = max((min(n_common(kept.tokens, one.tokens), one.n_computed) for one in running), default=0)
        return len(kept.tokens) - n_alive >= MIN_KEPT

    def back_up(self) -> bool:
        """Copy out one retained slot's cells that the index lacks, and leave them in the slot, too. Return False if
        there was nothing to copy. Each slot is copied once at most, the last used first, as many as the index has room
        for.
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
        """Give the cells of a slot to a retained one. Retained slots that hold a prefix of it are not needed
        any more."""
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
        """Keep cells of the last of `tokens` that an earlier engine has saved. Return False if their prefix is missing,
        or if they are cached already.
        """
        n_known, start = self.index.match(tokens), len(tokens) - saved.n_tokens
        if not self.is_keeping or not start <= n_known < len(tokens):
            return False
        self.index.insert(tokens, n_known, saved if n_known == start else saved.split(n_known - start)[1])
        return True

    def restore_checkpoint(self, _tokens: list[TokenId], _checkpoint: Checkpoint) -> bool:
        """Keep the state after `tokens` that an earlier engine has saved. Return False if their cells are missing."""
        return False

    def _copy_out(self, kept: _Retained, n_most: int | None = None) -> bool:
        """Put a slot's cells and their scores into the index, at most n_most cells. Return True if there are more.
        Cells that there is no memory for are not copied; they can be computed again.
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
        """Return the tokens whose cells may be copied out: on a GPU only those that lie in one piece."""
        return kept.tokens[: kept.n_prompt] if self._is_on_device else kept.tokens

    def _n_kept(self, sequence: Sequence) -> int:
        """Return how many of its first tokens the index has, if they are worth a copy; otherwise 0."""
        tokens = sequence.tokens
        n_kept = self._cut(
            len(self.index.scores(tokens)) if sequence.is_scoring else self.index.match(tokens), sequence
        )
        return n_kept if n_kept >= MIN_KEPT else 0

    def _fill(self, sequence: Sequence, source: Source | None, n_shared: int, n_kept: int) -> None:
        """Fill the sequence's empty slot from the index, or from `source` if the index has no more tokens or
        no room."""
        assert sequence.slot is not None
        if n_kept > max(n_shared, self._kv.n_free_cells):
            source = self._make_room(n_kept, source)
            # Cells that were copied out may have evicted these from the index.
            n_kept = self._n_kept(sequence)
        if n_shared < n_kept <= self._kv.n_free_cells and self._load(sequence, n_kept):
            sequence.begin_at(n_kept, self.index.scores(sequence.tokens))
        elif source is not None:
            self._share(sequence, source.slot, n_shared)
            sequence.begin_at(n_shared, source.scores)
            if source.slot in self._retained:
                self._retained[source.slot] = self._retained.pop(source.slot)

    def _make_room(self, n_cells: int, source: Source | None) -> Source | None:
        """Give up retained cells for n_cells that are to be loaded. Return the source, if it is still there."""
        while self._kv.n_free_cells < n_cells and self.give_up(()):
            pass
        is_gone = source is not None and source.is_retained and source.slot not in self._retained
        return None if is_gone else source

    def _share(self, sequence: Sequence, source: SlotId, n_tokens: int) -> None:
        assert sequence.slot is not None
        self._kv.share(source, sequence.slot, n_tokens)

    def _load(self, sequence: Sequence, n_tokens: int) -> bool:
        assert sequence.slot is not None
        try:
            self._kv.load(sequence.slot, self.index.take(sequence.tokens, n_tokens), n_tokens)
        except MemoryError:
            return False
        return True

    def _nearest(self, sequence: Sequence, running: Iterable[Sequence]) -> tuple[Source | None, int]:
        """Return the slot that has computed most of this one's prefix, and how much; (None, 0) if none has any."""
        retained = (
            (
                Source(each.slot, each.scores, is_retained=True),
                each.tokens,
                _n_usable(sequence, len(each.tokens), len(each.scores)),
            )
            for each in self._retained.values()
        )
        return self._longest(sequence, [*self._held_by(sequence, running), *retained])

    def _held_by(self, sequence: Sequence, running: Iterable[Sequence]) -> list[tuple[Source, list[TokenId], int]]:
        """Return the tokens that other running sequences have computed, in the form of `_longest`."""
        return [
            (Source(one.slot, one.scores), one.tokens, _n_usable(sequence, self._n_worth(one), len(one.scores)))
            for one in running
            if one is not sequence and one.slot is not None
        ]

    def _on_its_way(self, sequence: Sequence, running: Iterable[Sequence]) -> tuple[Sequence | None, int]:
        """Return the sequence that is computing most of this one's prefix, and how much; (None, 0) if none is."""
        coming = [
            (one, one.tokens, _n_usable(sequence, len(one.tokens), len(one.prompt if one.is_scoring else one.scores)))
            for one in running
            if one.state is State.PREFILL
        ]
        return self._longest(sequence, coming)

    def _longest(self, sequence: Sequence, sources: Iterable[tuple[T, list[TokenId], int]]) -> tuple[T | None, int]:
        """Return the source that has most of the sequence's prefix. `sources` are (source, its tokens, how many of
        these count).
        """
        best: tuple[T | None, int] = (None, 0)
        for who, tokens, n_most in sources if self._kv.can_share else ():
            if n_most > best[1]:
                n_equal = self._cut(min(n_common(sequence.tokens, tokens), n_most), sequence)
                if n_equal > best[1]:
                    best = who, n_equal
        return best

    def _n_worth(self, sequence: Sequence) -> int:
        """Return how many of its computed tokens another sequence may share. With a grain these are only the prompt's:
        generated tokens were computed one by one, and in another prompt they would be computed in chunks.
        """
        return sequence.n_computed if self._grain == 1 else min(sequence.n_computed, len(sequence.prompt))

    def _cut(self, n_tokens: int, sequence: Sequence) -> int:
        """Cut n_tokens to the grain, and leave out the sequence's last token: it is always computed, because a draw
        needs its logits. If scores are wanted, the last cached token is computed too, because the score of the next
        token needs its logits.
        """
        n_found = n_tokens - 1 if sequence.is_scoring else n_tokens
        return min(n_found, len(sequence.tokens) - 1) // self._grain * self._grain


def _n_usable(sequence: Sequence, n_computed: int, n_scored: int) -> int:
    """Return how many of another sequence's tokens count for this one. If it wants scores, these are the tokens with
    one, and the last of them need not be computed.
    """
    return min(n_computed + 1, n_scored) if sequence.is_scoring else n_computed


def _awaits_first_token(sequence: Sequence) -> bool:
    return sequence.state is not State.DECODE and not sequence.generated


def _is_awaiting(sequence: Sequence) -> bool:
    leader = sequence.leader
    return leader is not None and leader.state is State.PREFILL and leader.n_computed < sequence.n_awaited
