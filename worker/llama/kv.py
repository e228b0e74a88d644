"""The KV cells of each slot, and the order in which they lie. Arguments that make no sense are errors of the engine.

llama.cpp's CPU attention adds up a sequence's cells in the order in which they lie, and the last bits of an answer
depend on it. New tokens go to the first free cell; a cell freed among others would be filled out of order. In an
ordered memory, therefore, forgotten cells stay occupied, under a seq_id that no slot has, until the living are moved
together: so no free cell lies before a used one, and every sequence lies in the order of its positions, alone or beside
others.

    cells:  A0 A1 B0 †  †  A2 B1 †  B2 | free      † = forgotten      after moving:  A0 A1 B0 A2 B1 B2 | free

A model with sliding windows has two caches, whose cells are used alike: one for its layers with a window, and one for
those without. In the first llama.cpp writes over a cell that only one seq_id has, once that one's window has passed it;
it would be missing when another sequence begins with the same tokens. So every cell there has two: each seq_id has a
twin. A saved state leaves out what the window has passed, so a copy is made of parts no longer than a window.
Models with recurrent layers have their own class, state_kv.py.
"""

import ctypes
from collections.abc import Callable, Collection, Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from llama_cpp import llama_cpp as capi

from worker.engine.backend import Checkpoint, KvMismatch, Saved
from worker.engine.step import salt_of
from worker.limits import MAX_DRAFTS
from worker.llama.seq_ids import SeqIds
from worker.models.upstream.numbers import MROPE_TYPES
from worker.server.saved.arena import Bytes
from worker.server.saved.copies import ORDINARY, Allocate, Kept, Layout, NoCells, SavedCells, chained, lasting, passing
from worker.server.saved.keeper import Keeper
from worker.wire.jobs import SlotId, TokenId

_SPARE_CELLS = 256
"""The number of forgotten cells that are always tolerated: moving costs time, and so does attention that walks past
them."""

_Uint8s = ctypes.POINTER(ctypes.c_uint8)
_UNCUT = "this model's memory cannot be cut anywhere: its cells can be neither shared nor saved"
ALL = capi.LLAMA_STATE_SEQ_FLAGS_NONE
"""All of a sequence."""


class Kv:
    """The engine's Kv (backend.py), made by a Context from its handle. Any: an opaque pointer of the library."""

    has_state = False
    n_state_bytes = 0
    """The bytes of a checkpoint."""
    n_snapshots = 0

    def __init__(self, handle: Any, *, n_ctx: int, n_slots: int, seq_ids: SeqIds, check: Callable[[], None]) -> None:
        """`seq_ids`: those that the context was made with. `check` raises where it is closed, or another thread's."""
        self._handle = handle
        self._n_slots = n_slots
        self._check_caller = check
        self._memory = capi.llama_get_memory(handle)
        model = capi.llama_get_model(handle)
        is_mrope = capi.llama_model_rope_type(model) in MROPE_TYPES
        n_empty_bytes = int(capi.llama_state_seq_get_size(handle, 0))
        if n_empty_bytes == ORDINARY.empty_bytes:
            seq_ids = replace(seq_ids, has_twins=False)  # a model may name a window that no layer has
        self.layout = Layout(is_mrope, n_caches=2 if seq_ids.has_twins else 1)
        if n_empty_bytes != self.layout.empty_bytes:
            seq_ids = SeqIds(seq_ids.n_slots)  # a memory of other parts
        self.seq_ids = seq_ids
        self._n_swa = int(capi.llama_model_n_swa(model)) if n_empty_bytes != ORDINARY.empty_bytes else 0
        self._n_ctx = n_ctx
        self._spans = Spans(seq_ids.n_slots)
        self._n_forgotten = 0
        """Forgotten cells that are still occupied."""
        self.keeper: Keeper | None = None
        """The keeper of copies beyond this process."""
        self.on_emptied: Callable[[SlotId], None] | None = None
        """It gets each slot that was emptied."""
        self._unproven: list[Kept] = []
        """The copies that were loaded, until a decode with them has returned."""
        self._newest: tuple[SlotId, int] = (SlotId(-1), 0)
        """The slot whose cells are the last of all used ones, as far as is known, and how many of its positions are."""

    @property
    def can_share(self) -> bool:
        """True if the memory has one part and can be cut anywhere."""
        return self.seq_ids.copy_seq_id is not None

    @property
    def can_cut(self) -> bool:
        """True if a slot may lose its last cells alone."""
        return self.can_share and not self.has_state

    @property
    def max_undone(self) -> int:
        return MAX_DRAFTS if self.can_cut else self.n_snapshots

    @property
    def n_cells_used(self) -> int:
        """Cells that slots hold; one that several of them share counts once."""
        return self._spans.n_cells

    @property
    def n_free_cells(self) -> int:
        """The cells that no slot holds; a decode of as many tokens has room."""
        return self._n_ctx - self._spans.n_cells

    def n_cells_of(self, slots: Collection[SlotId]) -> int:
        """Cells that these slots hold and no other does; one that several of them share counts once."""
        return self._spans.n_cells_of(slots)

    def n_cells(self, slot: SlotId) -> int:
        """Positions [0, n_cells) of the slot are computed."""
        assert 0 <= slot < self._n_slots, f"slot {slot}; there are {self._n_slots}"
        return self._spans.n_held(slot)

    # ── what a decode does to cells ──────────────────────────────────────────────────────────────

    def add(self, slot: SlotId, n_tokens: int) -> None:
        """A decode has filled `n` more cells; called in the order of its batch."""
        self._count(slot, n_tokens)
        if self._unproven and self.keeper is not None:
            self.keeper.mark(self._unproven, is_in_use=False)
            self._unproven = []

    def _count(self, slot: SlotId, n_tokens: int) -> None:
        self._spans.grow(slot, n_tokens)
        newest, n_newest = self._newest
        self._newest = (slot, n_tokens + n_newest if slot == newest else n_tokens)

    def recount(self, slot: SlotId) -> None:
        """Ask the library what a decode that was stopped has left."""
        # The library takes what was not computed from one seq_id of each token only, whichever comes first in its set.
        n_left = min(map(self._n_in_library, self.seq_ids.both(slot)))
        self.remove(slot, n_left)
        if n_more := n_left - self._spans.n_held(slot):
            self.add(slot, n_more)

    def clear(self) -> None:
        """Empty all slots: the next decode finds the memory as new. Source: llama_memory_clear."""
        self._check_caller()
        capi.llama_memory_clear(self._memory, False)
        self._spans.clear()
        self._n_forgotten = 0
        self._newest = (SlotId(-1), 0)

    # ── our counts and the library's ─────────────────────────────────────────────────────────────

    def count_tokens(self) -> list[int]:
        """Return how many tokens each slot has, by our count and by the library's: a microsecond for each seq_id.
        Raises: KvMismatch where the two differ, and where a seq_id that is no slot's has cells that it should not have.
        """
        self._check_caller()
        counts = [self._spans.n_held(SlotId(slot)) for slot in range(self._n_slots)]
        # A slot for rows that are not read, and the seq_id for copies, are empty between two calls.
        n_seq_ids = self.seq_ids.n_slots + (self.seq_ids.copy_seq_id is not None)
        for seq_id, n_counted in enumerate([*counts, *[0] * (n_seq_ids - self._n_slots)]):
            for each in self.seq_ids.both(seq_id):
                if (n_found := self._n_in_library(each)) != n_counted:
                    raise KvMismatch(f"seq_id {each} has {n_found} tokens in llama.cpp's memory; we count {n_counted}")
        n_held, forgotten = sum(counts), self.seq_ids.forgotten_seq_id
        if not max(counts) <= self._spans.n_cells <= n_held:
            raise KvMismatch(f"slots hold {n_held} tokens, but {self._spans.n_cells} cells are counted")
        if forgotten is not None and bool(n_found := self._n_in_library(forgotten)) != bool(self._n_forgotten):
            raise KvMismatch(
                f"forgotten cells up to position {n_found} in llama.cpp's memory; we count {self._n_forgotten}"
            )
        return counts

    def _n_in_library(self, seq_id: int) -> int:
        """Positions [0, n) that the library has for a seq_id."""
        return 1 + int(capi.llama_memory_seq_pos_max(self._memory, seq_id))

    # ── sharing and forgetting ───────────────────────────────────────────────────────────────────

    def share(self, source: SlotId, target: SlotId, n_tokens: int, checkpoint: Checkpoint | None = None) -> None:
        """Give the empty slot `target` the first `n_tokens` cells of `source`; they take no room."""
        self._check_share(source, 0, n_tokens)
        assert not self.n_cells(target), f"slot {target} has cells already"
        assert self.has_state or checkpoint is None, "this memory has no recurrent state"
        self._add_owner(source, target, 0, n_tokens)
        self._spans.share(source, target, n_tokens)

    def trim(self, slot: SlotId, n_keep: int) -> None:
        """Forget the slot's cells from position `n_keep` on; 0 empties it, which always works. Raises: RuntimeError
        where the model's memory cannot forget a part."""
        self._check_caller()
        assert n_keep >= 0, f"cannot keep {n_keep} cells"
        if n_keep >= self.n_cells(slot):
            return
        if self._n_swa and n_keep and not self.seq_ids.has_twins:
            first = int(capi.llama_memory_seq_pos_min(self._memory, slot))
            if first > max(0, n_keep - self._n_swa + 1):
                raise RuntimeError(f"slot {slot} cannot go on from position {n_keep}: what its window sees is gone")
        if self.seq_ids.forgotten_seq_id is not None:
            self._keep_occupied(slot, n_keep, self.seq_ids.forgotten_seq_id)
        if not self.remove(slot, n_keep):
            raise RuntimeError(f"this model's memory cannot keep the first {n_keep} cells of slot {slot} alone")
        self._spans.cut(slot, n_keep)
        if self.on_emptied is not None and not n_keep:
            self.on_emptied(slot)

    def _keep_occupied(self, slot: SlotId, n_keep: int, forgotten_seq_id: int) -> None:
        """Give what only the slot has from `n_keep` on to the forgotten seq_id, except the last of all cells."""
        begin, end = max(n_keep, self._spans.n_shared(slot)), self._spans.n_held(slot)
        newest, n_newest = self._newest
        n_last = min(n_newest, end - begin) if slot == newest else 0
        if slot == newest:
            self._newest = (slot, n_newest - n_last if begin == n_keep else 0)
        if begin < end - n_last:
            self._add_owner(slot, forgotten_seq_id, begin, end - n_last)
            self._n_forgotten += end - n_last - begin

    # ── room ─────────────────────────────────────────────────────────────────────────────────────

    def make_room(self, n_tokens: int) -> None:
        """Free forgotten cells where they are in the way of `n_tokens` more, or have become many. Each move is paid for
        by the cells forgotten since the last one: half as many as live, at least."""
        if not self._n_forgotten:
            return
        n_living = self.n_cells_used
        if not n_living:
            self.clear()
        elif self._n_forgotten > _SPARE_CELLS + n_living // 2 or n_living + self._n_forgotten + n_tokens > self._n_ctx:
            self._move_together()

    def _move_together(self) -> None:
        """Free the forgotten cells, then write each span anew into the first free ones, beginnings first.

        One span at a time, so that only one is in memory twice. After each, no cell is free before its last: it takes
        the first free ones, and those it had are among them. So what follows it in a sequence stays behind it.
        Raises: RuntimeError: cells are lost.
        """
        assert self.seq_ids.forgotten_seq_id is not None, "only an ordered memory has forgotten cells"
        self.remove(self.seq_ids.forgotten_seq_id)
        self._n_forgotten = 0
        self._newest = (SlotId(-1), 0)
        for span in self._spans.in_order():
            for begin, end in self._window_parts(span.start, span.end):
                state = self._copy(next(iter(span.slots)), begin, end, passing)
                for slot in span.slots:
                    self.remove(slot, begin, end)
                self._write(self._copy_seq_id, state)
                for slot in span.slots:
                    self._add_owner(self._copy_seq_id, slot, begin, end)
                capi.llama_memory_seq_rm(self._memory, self._copy_seq_id, -1, -1)

    # ── copies ───────────────────────────────────────────────────────────────────────────────────

    def save(self, slot: SlotId, start: int, tokens: Seq[TokenId] = (), *, end: int | None = None) -> SavedCells:
        """A copy of the slot's cells [start, end), to its last without `end`. `tokens`: what the cells [0, end) are of;
        with them the keeper gets the copy too, unless they are salted."""
        stop = self.n_cells(slot) if end is None else end
        self._check_share(slot, start, stop)
        if not self.layout.n_caches:
            return NoCells(start, stop)
        parts = list(self._window_parts(start, stop))
        allocate = lasting if len(parts) == 1 else passing
        copies = [self._copy(slot, begin, end, allocate) for begin, end in parts]
        if self.keeper is None or not tokens or salt_of(tokens):
            return SavedCells(copies, self.layout)
        saved = SavedCells(copies, self.layout, tokens, self.keeper.take)
        self.keeper.take(saved)
        return saved

    def checkpoint(self, slot: SlotId, _: Seq[TokenId] = ()) -> Checkpoint:
        raise AssertionError(f"slot {slot} has no recurrent state")

    def load(self, slot: SlotId, parts: Seq[Saved], n_tokens: int, checkpoint: Checkpoint | None = None) -> None:
        """Fill the empty slot with the first `n_tokens` of what the parts hold, which were saved from this memory. They
        go to the first free cells, behind all others in an ordered memory, in one piece. Raises: RuntimeError where the
        library refuses them; the slot is empty then."""
        assert self.can_share, _UNCUT
        assert not self.n_cells(slot), f"slot {slot} has cells already"
        assert self.has_state or checkpoint is None, "this memory has no recurrent state"
        assert 1 <= n_tokens <= self.n_free_cells, f"{n_tokens} saved cells and {self.n_free_cells} free ones"
        self._check_caller()
        if self.layout.n_caches:
            copies = [part for part in parts if isinstance(part, SavedCells)]
            assert len(copies) == len(parts), "`save` makes them all"
            state = chained(copies, n_tokens)
            self.make_room(n_tokens)
            self._mark_in_use(copies)
            self._write(slot, state)
            if self.seq_ids.has_twins:
                capi.llama_memory_seq_cp(self._memory, slot, self.seq_ids.twin(slot), -1, -1)
        self._count(slot, n_tokens)

    def _mark_in_use(self, copies: Seq[Kept]) -> None:
        """Have the keeper know what is about to be loaded, until a decode with it has returned."""
        if self.keeper is not None:
            self.keeper.mark(copies, is_in_use=True)
            self._unproven += copies

    def _window_parts(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """[start, end) in the parts that a saved state can hold: cut at multiples of the window, if there is one,
        because the windows of some models do not slide but jump there."""
        step = self._n_swa or end
        edges = [start, *range((start // step + 1) * step, end, step), end]
        yield from pairwise(edges)

    def _copy(self, slot: int, start: int, end: int, allocate: Allocate) -> Bytes:
        """The state of the slot's cells [start, end), which lie in one window. Raises: RuntimeError."""
        copy_seq_id = self._copy_seq_id
        capi.llama_memory_seq_cp(self._memory, slot, copy_seq_id, start, end)
        try:
            return self._read(copy_seq_id, allocate)
        finally:
            capi.llama_memory_seq_rm(self._memory, copy_seq_id, -1, -1)

    def _read(self, seq_id: int, allocate: Allocate, flags: int = ALL) -> Bytes:
        """Return what the library writes of a seq_id. Raises: RuntimeError."""
        state = allocate(int(capi.llama_state_seq_get_size_ext(self._handle, seq_id, flags)))
        pointer = state.ctypes.data_as(_Uint8s)
        n_read = int(capi.llama_state_seq_get_data_ext(self._handle, pointer, state.nbytes, seq_id, flags))
        if n_read != state.nbytes:
            raise RuntimeError(f"seq_id {seq_id}: {n_read} of {state.nbytes} bytes of its cells could be read")
        return state

    def _write(self, seq_id: int, state: Bytes, flags: int = ALL) -> None:
        """Write into free cells, in the order of the state. Raises: RuntimeError."""
        pointer = state.ctypes.data_as(_Uint8s)
        n_written = int(capi.llama_state_seq_set_data_ext(self._handle, pointer, state.nbytes, seq_id, flags))
        if n_written != state.nbytes:
            raise RuntimeError(f"{n_written} of {state.nbytes} bytes of saved cells could be written")

    # ── seq_ids and their twins ──────────────────────────────────────────────────────────────────

    @property
    def _copy_seq_id(self) -> int:
        assert self.seq_ids.copy_seq_id is not None, "every caller has asked whether cells can be shared"
        return self.seq_ids.copy_seq_id

    def _add_owner(self, source: int, target: int, begin: int, end: int) -> None:
        """Give the target the cells of `source` in [begin, end), too."""
        for seq_id in self.seq_ids.both(target):
            capi.llama_memory_seq_cp(self._memory, source, seq_id, begin, end)

    def remove(self, seq_id: int, begin: int = 0, end: int = -1) -> bool:
        """Take [begin, end) from a seq_id; False where the memory cannot."""
        removed = [bool(capi.llama_memory_seq_rm(self._memory, each, begin, end)) for each in self.seq_ids.both(seq_id)]
        return all(removed)

    def _check_share(self, slot: SlotId, begin: int, end: int) -> None:
        self._check_caller()
        assert self.can_share, _UNCUT
        n_cells = self.n_cells(slot)
        assert 0 <= begin < end <= n_cells, f"slot {slot} has {n_cells} cells, and not all of [{begin}, {end})"


# ── which slots have which positions in common ───────────────────────────────────────────────────


@dataclass(slots=True, eq=False)
class Span:
    """Positions [start, end) whose cells belong to all of `slots`, and to no other."""

    start: int
    end: int
    slots: set[SlotId]


class Spans:
    """Each slot's positions [0, n_held), without gaps: counts only, no cell is touched here.

    Slots only ever share from position 0 on, so the spans of all slots form a tree, and a span stands at the same place
    in the list of each slot that has it:

        slot 0:  [0, 400) of {0, 1, 2} · [400, 408) of {0}
        slot 1:  [0, 400) of {0, 1, 2} · [400, 420) of {1, 2} · [420, 431) of {1}
        slot 2:  [0, 400) of {0, 1, 2} · [400, 420) of {1, 2}
    """

    def __init__(self, n_slots: int) -> None:
        self._of: list[list[Span]] = [[] for _ in range(n_slots)]
        self.n_cells = 0
        """The number of cells of all slots; one that several have counts once."""

    def n_held(self, slot: SlotId) -> int:
        spans = self._of[slot]
        return spans[-1].end if spans else 0

    def grow(self, slot: SlotId, n_tokens: int) -> None:
        """Give the slot alone `n` more cells."""
        self.n_cells += n_tokens
        spans = self._of[slot]
        if spans and len(spans[-1].slots) == 1:
            spans[-1].end += n_tokens
        else:
            start = self.n_held(slot)
            spans.append(Span(start, start + n_tokens, {slot}))

    def share(self, source: SlotId, target: SlotId, n_tokens: int) -> None:
        """Give the empty `target` the first `n_tokens` of `source` too, which has at least as many."""
        n_spans = self._split(source, n_tokens)
        self._of[target] = self._of[source][:n_spans]
        for span in self._of[target]:
            span.slots.add(target)

    def n_shared(self, slot: SlotId) -> int:
        """Positions [0, n_shared) of the slot belong to others too, those behind them to it alone."""
        spans = self._of[slot]
        if not spans:
            return 0
        return spans[-1].start if len(spans[-1].slots) == 1 else spans[-1].end

    def cut(self, slot: SlotId, n_keep: int) -> None:
        """The slot has its first `n_keep` positions left, n_keep <= n_held."""
        n_spans = self._split(slot, n_keep)
        left = self._of[slot][n_spans:]
        del self._of[slot][n_spans:]
        for span in left:
            span.slots.remove(slot)
        self.n_cells -= sum(span.end - span.start for span in left if not span.slots)
        still_held = [span for span in left if span.slots]
        if still_held:
            self._join(still_held[-1])

    def n_cells_of(self, slots: Collection[SlotId]) -> int:
        """The number of cells that only these slots have."""
        asked = frozenset(slots)
        own = {span for slot in asked for span in self._of[slot] if span.slots <= asked}
        return sum(span.end - span.start for span in own)

    def in_order(self) -> Iterator[Span]:
        """Yield each span once, after those that lie before it in its sequences."""
        seen: set[Span] = set()
        for spans in self._of:
            yield from (span for span in spans if span not in seen)
            seen.update(spans)

    def clear(self) -> None:
        self._of = [[] for _ in self._of]
        self.n_cells = 0

    def _split(self, slot: SlotId, at: int) -> int:
        """Return how many spans the slot has before position `at`; one of them ends there from now on."""
        for index, span in enumerate(self._of[slot]):
            if span.start >= at:
                return index
            if span.end > at:
                tail = Span(at, span.end, set(span.slots))
                for sharer in span.slots:
                    self._of[sharer].insert(index + 1, tail)
                span.end = at
                return index + 1
        return len(self._of[slot])

    def _join(self, span: Span) -> None:
        """Make one of the span and the next, where a slot that had only the first has left and now the same have both.
        So a slot has fewer spans than there are slots, however often its prefix was shared."""
        spans = self._of[next(iter(span.slots))]
        index = spans.index(span)
        if index + 1 < len(spans) and spans[index + 1].slots == span.slots:
            span.end = spans[index + 1].end
            for sharer in span.slots:
                del self._of[sharer][index + 1]
