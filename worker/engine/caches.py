"""Prefix reuse on a GPU, and where a sequence has recurrent state.

With recurrent state a sequence can begin at a checkpoint only, and so nowhere else is shared.

At a checkpoint, and when a sequence loses its slot, the cells that the index lacks are copied out, and the state with
them. What a sequence leaves stays in its own slot until it is copied: another slot would need a state. The cells before
a checkpoint are shared where another slot has them; the state comes from the index. A slot that has computed just the
beginning of a sequence, and no more, gives it cells and state without any copy.

A sequence that follows another waits for a checkpoint; the leader gets one shortly before the two prompts part. One
that wants log-probabilities of its prompt computes all of it.
"""

from collections.abc import Collection, Iterable
from collections.abc import Sequence as Seq
from contextlib import suppress
from itertools import accumulate, pairwise

from worker.engine.backend import Checkpoint, Found, Kv
from worker.engine.checkpoints import NEAR, Stops
from worker.engine.config import EngineConfig
from worker.engine.kv_blocks import BlockJournal
from worker.engine.prefix_cache import MIN_KEPT, PrefixCache, Retained
from worker.engine.prefix_tree import Node, PrefixIndex, n_common
from worker.engine.sequence import Sequence, State
from worker.limits import MAX_DRAFTS
from worker.wire.jobs import SlotId, TokenId

MAX_HEADROOM = 512
"""The largest number of cells that a GPU keeps free for the next step. A step that needs more gets them when it is
chosen."""


def prefix_cache_of(kv: Kv, config: EngineConfig, journal: BlockJournal | None) -> PrefixCache:
    """Return the cache for the kind of memory that a model has."""
    if kv.has_state and config.stops is not None:
        return StateCache(kv, config, config.stops, journal)
    stays_on_gpu = bool(config.retained_slots) and config.max_dead_cells > 0
    kind = GpuCache if stays_on_gpu else PrefixCache
    return kind(kv, config, PrefixIndex(config.prefix_cache_bytes, journal))


class GpuCache(PrefixCache):
    """The cells of ended sequences stay in retained slots. Running sequences may take these, the longest unused first.
    A copy to main memory is thousands of small blocking reads there, and all jobs would wait for it. Prompts, which lie
    in one piece, are copied out, but only while nothing runs.
    """

    def __init__(self, kv: Kv, config: EngineConfig, index: PrefixIndex) -> None:
        super().__init__(kv, config, index)
        self.is_keeping = kv.can_share
        self._max_dead_cells = config.max_dead_cells
        self._n_headroom = min(max(config.chunk, config.widest_step), MAX_HEADROOM) + MAX_DRAFTS
        """The number of cells that are kept free for the next step."""

    def evict(self, _: Collection[Sequence]) -> bool:
        """Drop the longest unused cells."""
        oldest = next(iter(self.retained.values()), None)
        if oldest is not None:
            self._drop(oldest)
        return oldest is not None

    def tidy(self, running: Collection[Sequence]) -> bool:
        """Drop cells while there are more than the budget of dead cells, or no headroom, the longest unused first."""
        n_before = len(self.retained)
        while running and self._is_too_full and self.evict(running):
            pass
        return len(self.retained) < n_before

    @property
    def _is_too_full(self) -> bool:
        return self._kv.n_free_cells < self._n_headroom or self.n_dead_cells > self._max_dead_cells

    def _put_away(self, kept: Retained, _: Iterable[Sequence] = (), __: int | None = None) -> None:
        self._drop(kept)

    def _n_whole(self, sequence: Sequence) -> int:
        return len(sequence.prompt)


class StateCache(PrefixCache):
    """The cache for models with recurrent state. `stops` says where checkpoints are taken."""

    index: "StateIndex"

    def __init__(self, kv: Kv, config: EngineConfig, stops: Stops, journal: BlockJournal | None) -> None:
        reach = NEAR + stops.grain - 1
        states = StateIndex(config.prefix_cache_bytes, journal, stride=stops.stride, reach=reach)
        super().__init__(kv, config, states)
        self._stops = stops

    def match(self, prompt: list[TokenId], _: Iterable[Sequence]) -> int:
        checkpoint = self.index.checkpoint(prompt[:-1])
        return 0 if checkpoint is None else checkpoint.n_tokens

    def n_shared(self, sequence: Sequence, running: Iterable[Sequence]) -> int:
        return self._nearest(sequence, running, self._checkpoint_of(sequence))[1]

    def fill(self, sequence: Sequence, running: Collection[Sequence]) -> bool:
        """Give it cells and state, and choose where its checkpoints are taken."""
        self.evict(running)
        if sequence.is_following:
            return False
        checkpoint = self._checkpoint_of(sequence)
        n_copied = 0 if checkpoint is None else checkpoint.n_tokens
        source, n_shared = self._nearest(sequence, running, checkpoint)
        if self._waits(sequence, *self._coming(sequence, running), max(n_shared, n_copied)):
            return False
        assert sequence.slot is not None
        if source is not None:
            is_copied = n_shared == n_copied
            if is_copied:
                self.index.take(sequence.tokens, n_copied)
            self._kv.share(source, sequence.slot, n_shared, checkpoint if is_copied else None)
            sequence.begin_at(n_shared, ())
        elif 0 < n_copied <= self._kv.n_free_cells:
            with suppress(MemoryError):
                parts = self.index.take(sequence.tokens, n_copied)
                self._kv.load(sequence.slot, parts, n_copied, checkpoint)
                sequence.begin_at(n_copied, ())
        if self.is_keeping:
            # Its first tokens that the index or another sequence has as well, computed or not.
            alike = [n_common(sequence.tokens, one.tokens) for one in running if one is not sequence]
            n_alike = self._cut(max([self.index.match(sequence.tokens), *alike]), sequence)
            sequence.stops = self._stops.of(sequence, n_alike)
        return True

    def keep(self, sequence: Sequence) -> None:
        """Let the cells stay in the slot until they are copied out; with a grain nothing behind the prompt is."""
        slot, n_computed = sequence.slot, sequence.n_computed
        assert slot is not None
        if self.is_keeping and n_computed >= MIN_KEPT and self._is_on_grain(sequence):
            self.retained[slot] = Retained(slot, sequence.tokens[:n_computed], [], n_computed)
        else:
            self._kv.trim(slot, 0)

    def evict(self, running: Collection[Sequence]) -> bool:
        """Copy out what sequences have left in their slots, and empty these."""
        was_retaining = bool(self.retained)
        for slot, kept in self.retained.items():
            self._save(slot, kept.tokens, running)
            self._kv.trim(slot, 0)
        self.retained.clear()
        return was_retaining

    def tidy(self, running: Collection[Sequence]) -> bool:
        """Copy out what sequences have left, and take the checkpoints that others have come to."""
        due = [one for one in running if one.stops and one.n_computed >= one.stops[0]]
        is_changed = self.evict(running) or bool(due)
        for one in due:
            is_there = one.n_computed in one.stops
            one.stops = tuple(stop for stop in one.stops if stop > one.n_computed)
            if is_there and self.is_keeping and self._is_on_grain(one):
                assert one.slot is not None
                self._save(one.slot, one.tokens[: one.n_computed], running)
        return is_changed

    def back_up(self) -> bool:
        return self.evict(())

    def _is_on_grain(self, sequence: Sequence) -> bool:
        return self._n_worth(sequence) == sequence.n_computed and sequence.n_computed % self._grain == 0

    def _save(self, slot: SlotId, tokens: list[TokenId], running: Iterable[Sequence]) -> None:
        """Put all of a slot's cells that the index lacks into it, and the state after them. What there is no memory for
        is not copied; it can be computed again.
        """
        # The state must be that after these tokens; a job may end before its wrong drafts are taken back.
        self._kv.trim(slot, len(tokens))
        known = self.index.checkpoint(tokens)
        if known is not None and known.n_tokens == len(tokens):
            self.index.take(tokens, len(tokens))
            return
        n_known = self.index.match(tokens)
        with suppress(MemoryError):
            if n_known < len(tokens):
                self.index.insert(tokens, n_known, self._kv.save(slot, n_known, tokens))
            if self.index.match(tokens) == len(tokens):
                partings = [self._stops.near(tokens, n_common(tokens, one.tokens)) for one in running]
                self.index.add_checkpoint(tokens, self._kv.checkpoint(slot, tokens), partings)

    def _checkpoint_of(self, sequence: Sequence) -> Checkpoint | None:
        """Return the last checkpoint of the index where a sequence can begin, if it is worth a copy."""
        if sequence.is_scoring:
            return None
        checkpoint = self.index.checkpoint(sequence.tokens[: self._cut(len(sequence.tokens), sequence)])
        return checkpoint if checkpoint is not None and checkpoint.n_tokens >= MIN_KEPT else None

    def _nearest(
        self, sequence: Sequence, running: Iterable[Sequence], checkpoint: Checkpoint | None
    ) -> tuple[SlotId | None, int]:
        """Return the slot whose state is the one after most of this sequence's prefix, and how much that is. If the
        index has a later checkpoint, return a slot that has at least its cells, and their number.
        """
        if sequence.is_scoring:
            return None, 0
        n_copied = 0 if checkpoint is None else checkpoint.n_tokens
        others = [one for one in running if one is not sequence]
        sources = [(one.slot, one.tokens, self._n_worth(one), 0) for one in others]
        whole = [source for one, source in zip(others, sources, strict=True) if self._is_beginning(one, sequence)]
        source, n_whole = self._longest(sequence, whole)
        if n_whole > n_copied:
            return source, n_whole
        source, n_shared = self._longest(sequence, sources)
        return (source, n_copied) if n_shared >= n_copied > 0 else (None, 0)

    def _is_beginning(self, one: Sequence, sequence: Sequence) -> bool:
        """Return True if the sequence can begin with all that another has computed."""
        n = one.n_computed
        return n == self._n_worth(one) == self._cut(n, sequence) and one.tokens[:n] == sequence.tokens[:n]

    def _coming(self, sequence: Sequence, running: Iterable[Sequence]) -> tuple[Sequence | None, int]:
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


LAST_KEPT = 3
"""The number of checkpoints at the end of a path that are kept however near they are: after an answer, before it, and
before the message that it answers."""


class StateIndex(PrefixIndex):
    """Saved cells and checkpoints by token prefix, at most `limit_bytes` of both. A node may have a checkpoint, the
    state after its last token. Each new one makes some of those before it superfluous: a state may be as large as the
    cells of thousands of tokens.
    """

    def __init__(self, limit_bytes: int, journal: BlockJournal | None = None, *, stride: int, reach: int) -> None:
        """`stride`: checkpoints in the middle of a path are kept this far apart. `reach`: a checkpoint may lie fewer
        tokens than this before the place where paths part.
        """
        super().__init__(limit_bytes, journal)
        self._stride, self._reach = stride, reach

    def checkpoint(self, tokens: Seq[TokenId]) -> Checkpoint | None:
        """Return the last checkpoint among `tokens`, after whose tokens a sequence can begin. This does not count as
        a use: nothing changes.
        """
        path, n_matched = self._walk(tokens)
        found = [node.checkpoint for node in path if node.checkpoint is not None]
        return next((each for each in reversed(found) if each.n_tokens <= n_matched), None)

    def restore(self, found: Found) -> int:
        return super().restore(found) + sum(self.add_checkpoint(*each) for each in found.checkpoints)

    def add_checkpoint(self, tokens: Seq[TokenId], checkpoint: Checkpoint, partings: Collection[int] = ()) -> bool:
        """Keep the state after `tokens` and mark them as used. Return False if their cells are not all kept.
        `partings`: the places where prompts that are being computed part, of which the tree knows nothing yet.

        Other leaves are evicted to make room, and before them the earlier checkpoints of its own path. If there is no
        room even so, it is dropped and nothing changes.
        """
        assert checkpoint.n_tokens == len(tokens)
        path, n_matched = self._walk(tokens)
        if n_matched < len(tokens):
            return False
        if super()._cut_at(path, n_matched, checkpoint.n_bytes):
            self._mark(path)
            self._set_checkpoint(path[-1], checkpoint)
            self._thin_out(path, partings)
            self._shrink()
        return True

    def _cut_at(self, path: list[Node], end: int, n_more_bytes: int) -> bool:
        has_room = super()._cut_at(path, end, n_more_bytes)
        if has_room:
            self._drop_checkpoints(path, n_more_bytes)
        return has_room

    def _thin_out(self, path: list[Node], partings: Collection[int]) -> None:
        """Drop the checkpoints before the end of the path that are hardly worth their room: those less than a stride
        after the last one that stays, if prompts do not part there. If there is no room for all, the first go.
        """
        n_kept = 0
        bearers = [at for at, node in enumerate(path) if node.checkpoint is not None]
        ends = list(accumulate(node.saved.n_tokens for node in path))
        for at, following in [*pairwise(bearers)][: -LAST_KEPT + 1]:
            parts = ends[at] in partings or any(
                len(node.children) > 1 and end - ends[at] < self._reach
                for node, end in zip(path[at:following], ends[at:following], strict=True)
            )
            if parts or ends[at] - n_kept >= self._stride:
                n_kept = ends[at]
            else:
                self._set_checkpoint(path[at], None)
        self._drop_checkpoints(path)

    def _drop_checkpoints(self, path: list[Node], n_more_bytes: int = 0) -> None:
        """Drop as many of the first checkpoints of a path as leave room for the rest of it with `n_more_bytes`."""
        n_bytes = sum(node.n_bytes for node in path) + n_more_bytes
        for node in path:
            if n_bytes <= self.limit_bytes:
                return
            if node.checkpoint is not None:
                n_bytes -= node.checkpoint.n_bytes
                self._set_checkpoint(node, None)

    def _set_checkpoint(self, node: Node, checkpoint: Checkpoint | None) -> None:
        self.n_bytes -= node.n_bytes
        node.checkpoint = checkpoint
        self.n_bytes += node.n_bytes
