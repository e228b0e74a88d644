"""Prefix reuse: running sequences share KV cells, and the cells of ended ones are kept for later prompts.

Cells that an ended or paused sequence leaves stay in the KV memory at first, in a retained slot, where later sequences
find them without a copy. If another sequence is computing the prefix of a sequence right now, this one follows it.

The log-probabilities of prompts (scores) go along with the cells: a sequence takes over those of its cached prefix, and
leaves them to others, even if it wants none. A sequence that wants scores reuses only cells that have them. The row of
logits after the last token that it has in common with another gives the score of its own next token, so this last token
is computed again.
"""

from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from worker.engine.backend import Kv
from worker.engine.config import EngineConfig
from worker.engine.kv_blocks import Held
from worker.engine.prefix_tree import PrefixIndex, n_common
from worker.engine.sequence import Sequence, State
from worker.engine.step import Score
from worker.wire.jobs import SlotId, TokenId

T = TypeVar("T")
Source = tuple[T, list[TokenId], int, int]
"""A holder of cells, its tokens, the number of these that are computed, and of those that have scores."""

MAX_TOKENS_TO_WAIT_FOR = 256
"""A sequence waits if another one is computing at least this many tokens of its prefix, or a chunk if that is less."""

MIN_KEPT = 16
"""The least number of tokens that are worth the calls to copy them out, or in again."""

PART = 256
"""The number of tokens that are copied at a time: 1 to 2 ms, and 15 if the system has to find the memory first."""

MAX_DEAD = 1024
"""The largest number of cells that retained slots alone may hold on a CPU while a job waits for its first token.
Attention walks past them; copying them takes 3 ms, or 50."""


@dataclass(slots=True, eq=False)
class Retained:
    """The cells of a sequence that has lost its slot, which no running sequence owns."""

    slot: SlotId
    tokens: list[TokenId]
    scores: list[Score]
    n_whole: int
    """The number of its first tokens whose cells may be copied out: on a GPU only those that lie in one piece."""
    is_backed_up: bool = False
    """True once they were copied out. They are not copied again, even if the index has evicted the copy."""


class PrefixCache:
    """The cells that can be reused. Those of retained slots are copied out into the prefix index, because attention
    looks at every cell in use, dead ones too. Copies are made after a step's report, a part at a time, and not while a
    job waits for its first token. The last sequence's cells may stay, but only while nothing runs.
    """

    def __init__(self, kv: Kv, config: EngineConfig, index: PrefixIndex) -> None:
        self._kv = kv
        self._grain = config.chunk if config.is_deterministic else 1
        """Cached prefixes are cut to a multiple of this number of tokens; 1 cuts nothing."""
        self._min_tokens_to_wait_for = min(config.chunk, MAX_TOKENS_TO_WAIT_FOR)
        self.index = index
        self.is_keeping = kv.can_share and index.limit_bytes > 0
        """True if cells of sequences that lose their slot are kept at all."""
        self.retained: dict[SlotId, Retained] = {}
        """The retained cells, the longest unused first. A conversation that goes on finds its cells here, without a
        copy."""
        self._free_slots = list(config.retained_slots)
        self._token_bytes = 0.0
        """The bytes of a copy for each token; 0 before the first copy."""

    def match(self, prompt: list[TokenId], running: Iterable[Sequence]) -> int | None:
        """Return how many tokens of a prompt need not be computed if it comes now; None if it would wait until another
        one has computed its prefix. Nothing changes.
        """
        if not self._kv.can_share:
            return 0
        running = list(running)
        in_memory = (min(n_common(prompt, tokens), n_tokens) for _, tokens, n_tokens in self.held(running))
        n_found = max([self.index.match(prompt), *in_memory])
        coming = [n_common(prompt, one.tokens) for one in running if one.state is State.PREFILL]
        if max(coming, default=0) >= n_found + self._min_tokens_to_wait_for:
            return None
        return min(n_found, len(prompt) - 1)

    def fill(self, sequence: Sequence, running: Collection[Sequence]) -> bool:
        """Give a sequence in FOLLOW the cached cells of its prefix. Return False if it waits, because another one is
        computing more of it."""
        if sequence.is_following:
            return False
        retained = [(each, each.tokens, len(each.tokens), len(each.scores)) for each in self.retained.values()]
        source, n_shared = self._longest(sequence, [*self._held_by_others(sequence, running), *retained])
        n_copied = self._n_copied(sequence)
        if self._waits(sequence, *self._coming(sequence, running), max(n_shared, n_copied)):
            return False
        if n_copied > max(n_shared, self._kv.n_free_cells):
            while self._kv.n_free_cells < n_copied and self.evict(()):
                pass
            if isinstance(source, Retained) and source.slot not in self.retained:
                source = None
            # Cells that were copied out may have evicted these from the index.
            n_copied = self._n_copied(sequence)
        if n_shared < n_copied <= self._kv.n_free_cells and self._load(sequence, n_copied):
            sequence.begin_at(n_copied, self.index.scores(sequence.tokens))
        elif source is not None:
            assert sequence.slot is not None
            assert source.slot is not None
            self._kv.share(source.slot, sequence.slot, n_shared)
            sequence.begin_at(n_shared, source.scores)
            if isinstance(source, Retained):
                self.retained[source.slot] = self.retained.pop(source.slot)
        return True

    def keep(self, sequence: Sequence) -> None:
        """Give the computed cells of a sequence that is about to lose its slot to a retained one. Retained slots that
        hold a prefix of them are not needed any more."""
        assert sequence.slot is not None
        if self.is_keeping and sequence.n_computed >= MIN_KEPT:
            tokens = sequence.tokens[: self._n_worth(sequence)]
            kept = Retained(sequence.slot, tokens, sequence.scores[: len(tokens)], self._n_whole(sequence))
            for other in list(self.retained.values()):
                is_beginning = len(other.tokens) == n_common(other.tokens, tokens)
                if is_beginning and len(other.scores) <= len(kept.scores):
                    self._drop(other)
            if not self._free_slots:
                self._put_away(next(iter(self.retained.values()), kept))
            if self._free_slots:
                kept.slot = self._free_slots.pop()
                self._kv.share(sequence.slot, kept.slot, len(tokens))
                self.retained[kept.slot] = kept
        self._kv.trim(sequence.slot, 0)

    def evict(self, running: Collection[Sequence]) -> bool:
        """Free retained cells because running sequences need room. Return False if there are none."""
        was_retaining = bool(self.retained)
        for each in list(self.retained.values()):
            self._put_away(each, running)
        return was_retaining

    def tidy(self, running: Collection[Sequence]) -> bool:
        """Copy a part of the longest unused cells out, or drop some, after a step's results were sent to the front;
        while nothing runs the last used stay. Return False if there was nothing to do."""
        if len(self.retained) <= (0 if running else 1):
            return False
        awaits_first_token = any(one.state is not State.DECODE and not one.generated for one in running)
        if awaits_first_token and self.n_dead_cells <= MAX_DEAD:
            return False
        self._put_away(next(iter(self.retained.values())), running, PART)
        return True

    def back_up(self) -> bool:
        """Copy out one slot's cells that the index lacks, and leave them there, too. Return False if there are none.
        Each slot is copied once at most, the last used first, as many as the index has room for."""
        n_before, n_bytes = self.index.n_tokens, 0.0
        for each in reversed(self.retained.values()):
            n_own_bytes = len(each.tokens[: each.n_whole]) * self._token_bytes
            if n_bytes + n_own_bytes > self.index.limit_bytes:
                continue
            n_bytes += n_own_bytes
            if not each.is_backed_up:
                each.is_backed_up = True
                self._copy_out(each)
                if self.index.n_tokens != n_before:
                    return True
        return False

    @property
    def n_dead_cells(self) -> int:
        """The number of cells that retained slots alone hold; any job may take them."""
        return self._kv.n_cells_of(self.retained) if self.retained else 0

    def n_shared(self, sequence: Sequence, running: Iterable[Sequence]) -> int:
        """Return how many of its first tokens running sequences hold. Retained cells are not counted: they count as
        free (`n_dead_cells`)."""
        return self._longest(sequence, self._held_by_others(sequence, running))[1]

    def held(self, running: Iterable[Sequence]) -> Iterator[Held]:
        """Yield the contents of the KV memory that other sequences may share."""
        if not self._kv.can_share:
            return
        for one in running:
            if one.slot is not None:
                yield one.slot, one.tokens, self._n_worth(one)
        for each in self.retained.values():
            yield each.slot, each.tokens, len(each.tokens)

    def _longest(self, sequence: Sequence, sources: Iterable[Source[T]]) -> tuple[T | None, int]:
        """Return the source that has most of the sequence's prefix, and how much. If the sequence wants scores, only
        tokens with one count, and the last of them need not be computed.
        """
        best: tuple[T | None, int] = (None, 0)
        for who, tokens, n_computed, n_scored in sources if self._kv.can_share else ():
            n_most = min(n_computed + 1, n_scored) if sequence.is_scoring else n_computed
            if n_most > best[1]:
                n_equal = self._cut(min(n_common(sequence.tokens, tokens), n_most), sequence)
                if n_equal > best[1]:
                    best = who, n_equal
        return best

    def _waits(self, sequence: Sequence, leader: Sequence | None, n_coming: int, n_found: int) -> bool:
        """Let the sequence follow a leader that is computing `n_coming` of its tokens, if these are enough more than
        the `n_found` that it can have now. Return True if it waits."""
        is_waiting = n_coming >= n_found + self._min_tokens_to_wait_for
        sequence.leader, sequence.n_awaited = leader if is_waiting else None, n_coming
        return is_waiting

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

    def _held_by_others(self, sequence: Sequence, running: Iterable[Sequence]) -> list[Source[Sequence | Retained]]:
        others = (one for one in running if one is not sequence)
        return [(one, one.tokens, self._n_worth(one), len(one.scores)) for one in others]

    def _coming(self, sequence: Sequence, running: Iterable[Sequence]) -> tuple[Sequence | None, int]:
        """Return the sequence that is computing most of this one's prefix, and how much; (None, 0) if none is."""
        coming = (one for one in running if one.state is State.PREFILL)
        return self._longest(
            sequence,
            ((one, one.tokens, len(one.tokens), len(one.prompt if one.is_scoring else one.scores)) for one in coming),
        )

    def _n_copied(self, sequence: Sequence) -> int:
        """Return how many of its first tokens the index has, if they are worth a copy; otherwise 0."""
        tokens = sequence.tokens
        n_found = len(self.index.scores(tokens)) if sequence.is_scoring else self.index.match(tokens)
        n_copied = self._cut(n_found, sequence)
        return n_copied if n_copied >= MIN_KEPT else 0

    def _load(self, sequence: Sequence, n_tokens: int) -> bool:
        assert sequence.slot is not None
        with suppress(MemoryError):
            self._kv.load(sequence.slot, self.index.take(sequence.tokens, n_tokens), n_tokens)
            return True
        return False

    def _n_whole(self, sequence: Sequence) -> int:
        """Return how many of its first tokens may be copied out."""
        return sequence.n_computed

    def _put_away(self, kept: Retained, running: Iterable[Sequence] = (), n_most: int | None = None) -> None:
        """Copy cells out if the running sequences share few enough of them, and drop them once all are copied."""
        n_alive = max((min(n_common(kept.tokens, one.tokens), one.n_computed) for one in running), default=0)
        is_worth_copying = len(kept.tokens) - n_alive >= MIN_KEPT
        if not is_worth_copying or not self._copy_out(kept, n_most):
            self._drop(kept)

    def _copy_out(self, kept: Retained, n_most: int | None = None) -> bool:
        """Put a slot's cells and their scores into the index, at most n_most cells. Return True if there are more.
        Cells that there is no memory for are not copied; they can be computed again.
        """
        tokens = kept.tokens[: kept.n_whole]
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

    def _drop(self, kept: Retained) -> None:
        if self.retained.pop(kept.slot, None) is not None:
            self._free_slots.append(kept.slot)
            self._kv.trim(kept.slot, 0)
