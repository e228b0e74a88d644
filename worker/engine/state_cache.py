"""Prefix reuse where a sequence has recurrent state: it can begin at a checkpoint only, and so nowhere else is shared.

At a checkpoint the cells that the index lacks are copied out, and the state with them; and once more when a sequence
loses its slot. The end of a sequence is reported before its copy is made. There are no retained slots, because each
would have a state of its own. The cells before a checkpoint are shared where another slot has them; the state comes
from the index. A slot that has computed just the beginning of a sequence, and no more, gives it cells and state without
any copy.

A sequence that follows another waits for a checkpoint; the leader gets one shortly before the two prompts part. One
that wants log-probabilities of its prompt computes all of it.
"""

from collections.abc import Collection, Iterable

from worker.engine.backend import Checkpoint, Kv
from worker.engine.checkpoints import NEAR, Stops
from worker.engine.config import EngineConfig
from worker.engine.kv_blocks import BlockJournal
from worker.engine.prefix_cache import MIN_KEPT, PrefixCache, Source
from worker.engine.prefix_tree import n_common
from worker.engine.sequence import Sequence, State
from worker.engine.state_tree import StateIndex
from worker.wire.jobs import SlotId, TokenId

MAX_TOKENS_TO_WAIT_FOR = 256
"""A sequence waits if another one is computing at least this many tokens of its prefix, or a chunk if that is less."""


def prefix_cache_of(kv: Kv, config: EngineConfig, journal: BlockJournal | None) -> PrefixCache:
    """Return the cache for the kind of memory that a model has."""
    grain = config.chunk if config.is_deterministic else 1
    min_tokens_to_wait_for = min(config.chunk, MAX_TOKENS_TO_WAIT_FOR)
    if kv.has_state and config.stops is not None:
        return StateCache(
            kv,
            stops=config.stops,
            limit_bytes=config.prefix_cache_bytes,
            grain=grain,
            min_tokens_to_wait_for=min_tokens_to_wait_for,
            journal=journal,
        )
    return PrefixCache(
        kv,
        limit_bytes=config.prefix_cache_bytes,
        grain=grain,
        min_tokens_to_wait_for=min_tokens_to_wait_for,
        retained_slots=config.retained_slots,
        max_dead_cells=config.max_dead_cells,
        journal=journal,
    )


class StateCache(PrefixCache):
    """PrefixCache's promises for models with recurrent state. `stops` says where checkpoints are taken."""

    def __init__(
        self,
        kv: Kv,
        *,
        stops: Stops,
        limit_bytes: int,
        grain: int,
        min_tokens_to_wait_for: int,
        journal: BlockJournal | None = None,
    ) -> None:
        self._stops = stops
        self._states = StateIndex(limit_bytes, journal, stride=stops.stride, reach=NEAR + stops.grain - 1)
        super().__init__(
            kv,
            limit_bytes=limit_bytes,
            grain=grain,
            min_tokens_to_wait_for=min_tokens_to_wait_for,
            retained_slots=(),
            journal=journal,
            index=self._states,
        )
        self._ended: list[tuple[Sequence, SlotId]] = []
        """The ended sequences that are to be copied out, and the slots where their cells are."""

    def n_shared(self, sequence: Sequence, running: Iterable[Sequence]) -> int:
        """Return how many of its first tokens it can share with running sequences."""
        return self._nearest(sequence, running)[1]

    def settle(self, sequence: Sequence, running: Collection[Sequence]) -> bool:
        """Settle a sequence as PrefixCache does, and choose where its checkpoints are taken."""
        is_settled = super().settle(sequence, running)
        if is_settled and self.is_keeping:
            sequence.stops = self._stops.of(sequence, self._n_alike(sequence, running))
        return is_settled

    def n_missing(self, prompt: list[TokenId], _: Iterable[Sequence]) -> int | None:
        """Return how many tokens of a prompt would be computed if it came now. Nothing changes."""
        checkpoint = self._states.checkpoint(prompt[:-1])
        return len(prompt) - (0 if checkpoint is None else checkpoint.n_tokens)

    def keep(self, sequence: Sequence, running: Collection[Sequence]) -> None:
        """Copy out the cells of a sequence that is about to lose its slot, and its state."""
        if sequence.slot is not None and self._is_worth_keeping(sequence):
            self._copy_out_all(sequence, sequence.slot, running)

    @property
    def is_owing(self) -> bool:
        """True if sequences have ended that are not copied out yet."""
        return bool(self._ended)

    def leave(self, sequence: Sequence, _: Collection[Sequence]) -> bool:
        """Put off the copy of a sequence that ends. Return True if there is one to make."""
        if sequence.slot is None or not self._is_worth_keeping(sequence):
            return False
        self._ended.append((sequence, sequence.slot))
        return True

    def take_checkpoints(self, running: Collection[Sequence]) -> bool:
        """Copy out the sequences that have ended and empty their slots, and take the checkpoints that others have come
        to. Return True if there were any.
        """
        ended, self._ended = self._ended, []
        for sequence, slot in ended:
            self._copy_out_all(sequence, slot, running)
            self._kv.trim(slot, 0)
        due = [one for one in running if one.stops and one.n_computed >= one.stops[0]]
        for sequence in due:
            is_there = sequence.n_computed in sequence.stops
            sequence.stops = tuple(stop for stop in sequence.stops if stop > sequence.n_computed)
            if is_there and self.is_keeping:
                assert sequence.slot is not None
                self._copy_out_all(sequence, sequence.slot, running)
        return bool(ended or due)

    def restore_checkpoint(self, tokens: list[TokenId], checkpoint: Checkpoint) -> bool:
        """Keep the state after `tokens` that an earlier engine has saved. Return False if their cells are missing."""
        if not self.is_keeping or self.index.match(tokens) < len(tokens):
            return False
        self._states.add_checkpoint(tokens, checkpoint)
        return True

    def _is_worth_keeping(self, sequence: Sequence) -> bool:
        return self.is_keeping and sequence.n_computed >= MIN_KEPT

    def _copy_out_all(self, sequence: Sequence, slot: SlotId, running: Collection[Sequence]) -> None:
        """Put all of a sequence's cells that the index lacks into it, and the state after them. With a grain nothing is
        copied behind the prompt. What there is no memory for is not copied; it can be computed again.
        """
        # The state must be that after the sequence's own tokens; a job may end before its wrong drafts are taken back.
        self._kv.trim(slot, sequence.n_computed)
        tokens = sequence.tokens[: sequence.n_computed]
        if self._n_worth(sequence) < len(tokens) or len(tokens) % self._grain:
            return
        known = self._states.checkpoint(tokens)
        if known is not None and known.n_tokens == len(tokens):
            self.index.take(tokens, len(tokens))
            return
        n_known = self.index.match(tokens)
        try:
            if n_known < len(tokens):
                self.index.insert(tokens, n_known, self._kv.save(slot, n_known, tokens))
            if self.index.match(tokens) == len(tokens):
                partings = [self._stops.near(tokens, n_common(tokens, one.tokens)) for one in running]
                self._states.add_checkpoint(tokens, self._kv.checkpoint(slot, tokens), partings)
        except MemoryError:
            return

    # ── where a sequence can begin ───────────────────────────────────────────────────────────────

    def _checkpoint_of(self, sequence: Sequence) -> Checkpoint | None:
        """Return the last checkpoint of the index where a sequence can begin, if it is worth a copy."""
        if sequence.is_scoring:
            return None
        checkpoint = self._states.checkpoint(sequence.tokens[: self._cut(len(sequence.tokens), sequence)])
        return checkpoint if checkpoint is not None and checkpoint.n_tokens >= MIN_KEPT else None

    def _n_kept(self, sequence: Sequence) -> int:
        checkpoint = self._checkpoint_of(sequence)
        return 0 if checkpoint is None else checkpoint.n_tokens

    def _share(self, sequence: Sequence, source: SlotId, n_tokens: int) -> None:
        assert sequence.slot is not None
        checkpoint = self._checkpoint_of(sequence)
        if checkpoint is not None and checkpoint.n_tokens == n_tokens:
            self.index.take(sequence.tokens, n_tokens)
            self._kv.share(source, sequence.slot, n_tokens, checkpoint)
        else:
            self._kv.share(source, sequence.slot, n_tokens)

    def _load(self, sequence: Sequence, n_tokens: int) -> bool:
        assert sequence.slot is not None
        parts, checkpoint = self.index.take(sequence.tokens, n_tokens), self._checkpoint_of(sequence)
        try:
            self._kv.load(sequence.slot, parts, n_tokens, checkpoint)
        except MemoryError:
            return False
        return True

    def _nearest(self, sequence: Sequence, running: Iterable[Sequence]) -> tuple[Source | None, int]:
        """Return the slot whose state is the one after most of this sequence's prefix, and how much that is. If the
        index has a later checkpoint, return a slot that has at least its cells, and their number.
        """
        if sequence.is_scoring:
            return None, 0
        others = [one for one in running if one is not sequence]
        n_kept = self._n_kept(sequence)
        source, n_whole = self._longest_of([one for one in others if self._is_beginning(one, sequence)], sequence)
        if n_whole > n_kept:
            return source, n_whole
        source, n_shared = self._longest_of(others, sequence)
        return (source, n_kept) if n_shared >= n_kept > 0 else (None, 0)

    def _longest_of(self, others: list[Sequence], sequence: Sequence) -> tuple[Source | None, int]:
        held = [(Source(one.slot, []), one.tokens, self._n_worth(one)) for one in others if one.slot is not None]
        return self._longest(sequence, held)

    def _is_beginning(self, one: Sequence, sequence: Sequence) -> bool:
        """Return True if the sequence can begin with all that another has computed."""
        n = one.n_computed
        return n == self._n_worth(one) == self._cut(n, sequence) and one.tokens[:n] == sequence.tokens[:n]

    # ── where checkpoints are taken ──────────────────────────────────────────────────────────────

    def _n_alike(self, sequence: Sequence, running: Iterable[Sequence]) -> int:
        """Return how many of its first tokens the index or another sequence has as well, computed or not."""
        n_alike = [n_common(sequence.tokens, one.tokens) for one in running if one is not sequence]
        return self._cut(max([self.index.match(sequence.tokens), *n_alike]), sequence)

    def _on_its_way(self, sequence: Sequence, running: Iterable[Sequence]) -> tuple[Sequence | None, int]:
        """Return the sequence that will come to the last checkpoint in this one's prefix, and where that is. It gets
        one shortly before the two part, unless it has passed that place.
        """
        best: tuple[Sequence | None, int] = (None, 0)
        for one in running if not sequence.is_scoring else ():
            stop = self._next_stop(one, sequence) if one.state is State.PREFILL else 0
            best = (one, stop) if stop > best[1] else best
        leader, stop = best
        if leader is not None:
            leader.stops = tuple(sorted({*leader.stops, stop}))
        return best

    def _next_stop(self, leader: Sequence, sequence: Sequence) -> int:
        """Return where a leader's last checkpoint in this one's prefix can be; 0 if it has passed all such places."""
        n_alike = self._cut(n_common(sequence.tokens, leader.tokens), sequence)
        last = max((stop for stop in leader.stops if leader.n_computed < stop <= n_alike), default=0)
        place = self._stops.near(leader.tokens, n_alike)
        return place if place >= max(last, leader.n_computed) + self._stops.min_apart else last
