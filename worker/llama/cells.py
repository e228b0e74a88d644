"""Which KV cells each slot has, and in which order they lie.

Owns the counts, the sharing, the forgetting, the compaction, and the copies out and in; context.py owns the decode that
fills cells. One thread, the context's.

llama.cpp's CPU attention adds up a sequence's cells in the order in which they lie, and the last bits of an answer
depend on it. New tokens go to the first free cell; a cell freed among others would be filled out of order. In an
ordered memory, therefore, forgotten cells stay occupied, under a seq_id that no slot has, until the living are moved
together: so no free cell lies before a used one, and every sequence lies in the order of its positions, alone or beside
others.

    cells:  A0 A1 B0 †  †  A2 B1 †  B2 | free      † = forgotten      after moving:  A0 A1 B0 A2 B1 B2 | free
"""

import ctypes
from collections.abc import Sequence as Seq
from typing import Any

from llama_cpp import llama_cpp as capi

from worker.engine.contract import SlotId
from worker.llama.model import Model
from worker.llama.saved import SavedCells, chained, lasting, passing
from worker.llama.seq_state import CELL_INTS, CELL_INTS_MROPE, EMPTY_BYTES, Allocate, Bytes
from worker.llama.spans import Span, Spans
from worker.memory import CELLS_SEQ_IDS

_SPARE_CELLS = 256
"""So many forgotten cells are always tolerated: moving costs time, and so does attention that walks past them."""

_MROPE_TYPES = (8, 40)
"""LLAMA_ROPE_TYPE_MROPE, LLAMA_ROPE_TYPE_IMROPE (llama.h)."""

_Uint8s = ctypes.POINTER(ctypes.c_uint8)


def can_be_cut(model: Model) -> bool:
    """Whether its memory can forget any part: a sliding window reuses its cells, recurrent state has none."""
    return bool(model.can_rewind and capi.llama_model_n_swa(model.handle) == 0)


def spare_seq_ids(model: Model, n_left: int) -> int:
    """How many of the `n_left` seq_ids that the slots leave `Cells` can use.

    None where it cannot be cut; two where the order of a sequence's cells decides its last bits, on a CPU.
    """
    if not can_be_cut(model):
        return 0
    return min(CELLS_SEQ_IDS if model.device.backend == "cpu" else 1, n_left)


class Cells:
    """Made by a Context from its handle; Any: an opaque pointer of the library."""

    def __init__(self, handle: Any, *, n_ctx: int, n_slots: int, n_spare: int) -> None:
        """`n_spare`: seq_ids beyond the slots': one to share and copy cells, two to keep them in order as well."""
        self._handle = handle
        self._memory = capi.llama_get_memory(handle)
        if capi.llama_state_seq_get_size(handle, 0) != EMPTY_BYTES:
            n_spare = 0  # a memory of several parts
        self.can_share = n_spare > 0
        is_mrope = capi.llama_model_rope_type(capi.llama_get_model(handle)) in _MROPE_TYPES
        self._n_cell_ints = CELL_INTS_MROPE if is_mrope else CELL_INTS
        self._n_ctx = n_ctx
        self._spans = Spans(n_slots)
        self._courier = n_slots
        """The seq_id of cells on their way."""
        self._graveyard = n_slots + 1 if n_spare > 1 else None
        self._n_forgotten = 0
        """Forgotten cells that are still occupied."""
        self._newest: tuple[SlotId, int] = (SlotId(-1), 0)
        """Whose cells are the last of all used ones, as far as is known, and how many: the slot's last positions."""

    @property
    def n_held_by_all(self) -> int:
        """A cell that several slots share counts once."""
        return self._spans.n_cells

    @property
    def n_free(self) -> int:
        return self._n_ctx - self._spans.n_cells

    def n_held(self, slot: SlotId) -> int:
        """Positions [0, n_held) of the slot are computed."""
        return self._spans.n_held(slot)

    def add(self, slot: SlotId, n_tokens: int) -> None:
        """A decode has filled so many more; called in the order of its batch."""
        self._spans.grow(slot, n_tokens)
        newest, n_newest = self._newest
        self._newest = (slot, n_tokens + n_newest if slot == newest else n_tokens)

    def recount(self, slot: SlotId) -> None:
        """Ask the library what a decode that was stopped has left. Source: llama_memory_seq_pos_max."""
        n_more = int(capi.llama_memory_seq_pos_max(self._memory, slot)) + 1 - self.n_held(slot)
        if n_more:
            self.add(slot, n_more)

    def clear(self) -> None:
        """Empty all slots: the next decode finds the memory as new. Source: llama_memory_clear."""
        capi.llama_memory_clear(self._memory, False)
        self._spans.clear()
        self._n_forgotten = 0
        self._newest = (SlotId(-1), 0)

    # ── sharing and forgetting ───────────────────────────────────────────────────────────────────

    def share(self, source: SlotId, target: SlotId, n_tokens: int) -> None:
        """Give the empty `target` the first `n_tokens` cells of `source`. Source: llama_memory_seq_cp."""
        capi.llama_memory_seq_cp(self._memory, source, target, 0, n_tokens)
        self._spans.share(source, target, n_tokens)

    def trim(self, slot: SlotId, n_keep: int) -> None:
        """Forget the slot's cells from position `n_keep` on; 0 empties it, which always works.

        Raises: RuntimeError where the model's memory cannot forget a part. Source: llama_memory_seq_rm, _seq_cp.
        """
        if n_keep >= self.n_held(slot):
            return
        if self._graveyard is not None:
            self._bury(slot, n_keep)
        if not capi.llama_memory_seq_rm(self._memory, slot, n_keep, -1):
            raise RuntimeError(f"this model's memory cannot keep the first {n_keep} cells of slot {slot} alone")
        self._spans.cut(slot, n_keep)

    def _bury(self, slot: SlotId, n_keep: int) -> None:
        """Keep what only the slot has from `n_keep` on occupied, but for the cells behind which nothing lies."""
        begin, end = max(n_keep, self._spans.n_shared(slot)), self.n_held(slot)
        newest, n_newest = self._newest
        n_last = min(n_newest, end - begin) if slot == newest else 0
        if slot == newest:
            self._newest = (slot, n_newest - n_last if begin == n_keep else 0)
        if begin < end - n_last:
            capi.llama_memory_seq_cp(self._memory, slot, self._graveyard, begin, end - n_last)
            self._n_forgotten += end - n_last - begin

    # ── room ─────────────────────────────────────────────────────────────────────────────────────

    def make_room(self, n_tokens: int) -> None:
        """Free forgotten cells where they are in the way of `n_tokens` more, or have become many.

        Each move is paid for by the cells forgotten since the last one: half as many as live, at least.
        """
        if not self._n_forgotten:
            return
        n_living = self.n_held_by_all
        if not n_living:
            self.clear()
        elif self._n_forgotten > _SPARE_CELLS + n_living // 2 or n_living + self._n_forgotten + n_tokens > self._n_ctx:
            self._move_together()

    def _move_together(self) -> None:
        """Free the forgotten cells, then write each span anew into the first free ones, beginnings first.

        One span at a time, so that only one is in memory twice. After each, no cell is free before its last: it takes
        the first free ones, and those it had are among them. So what follows it in a sequence stays behind it.
        """
        capi.llama_memory_seq_rm(self._memory, self._graveyard, -1, -1)
        self._n_forgotten = 0
        self._newest = (SlotId(-1), 0)
        for span in self._spans.in_order():
            self._rewrite(span)

    def _rewrite(self, span: Span) -> None:
        """Raises: RuntimeError: the span's cells are lost."""
        state = self._copy(next(iter(span.slots)), span.start, span.end, passing)
        for slot in span.slots:
            capi.llama_memory_seq_rm(self._memory, slot, span.start, span.end)
        self._write(self._courier, state)
        for slot in span.slots:
            capi.llama_memory_seq_cp(self._memory, self._courier, slot, -1, -1)
        capi.llama_memory_seq_rm(self._memory, self._courier, -1, -1)

    # ── copies ───────────────────────────────────────────────────────────────────────────────────

    def save(self, slot: SlotId, start: int) -> SavedCells:
        """A copy of the slot's cells from position `start` on, of which there are some."""
        return SavedCells(self._copy(slot, start, self.n_held(slot), lasting), self._n_cell_ints)

    def load(self, slot: SlotId, parts: Seq[SavedCells], n_tokens: int) -> None:
        """Fill the empty slot with the first `n_tokens` of what the parts hold; there is room.

        They go to the first free cells, behind all others in an ordered memory, in one piece.
        Raises: ValueError where the parts do not hold them. RuntimeError: the slot is empty then.
        """
        state = chained(parts, n_tokens)
        self.make_room(n_tokens)
        self._write(slot, state)
        self.add(slot, n_tokens)

    def _copy(self, slot: int, start: int, end: int, allocate: Allocate) -> Bytes:
        """The state of the slot's cells at [start, end). Source: llama_state_seq_get_data.

        Raises: RuntimeError.
        """
        capi.llama_memory_seq_cp(self._memory, slot, self._courier, start, end)
        try:
            state = allocate(int(capi.llama_state_seq_get_size(self._handle, self._courier)))
            pointer = state.ctypes.data_as(_Uint8s)
            n_read = int(capi.llama_state_seq_get_data(self._handle, pointer, state.nbytes, self._courier))
        finally:
            capi.llama_memory_seq_rm(self._memory, self._courier, -1, -1)
        if n_read != state.nbytes:
            raise RuntimeError(f"slot {slot}: {n_read} of {state.nbytes} bytes of its cells could be read")
        return state

    def _write(self, seq_id: int, state: Bytes) -> None:
        """Into free cells, in the order of the state. Source: llama_state_seq_set_data. Raises: RuntimeError."""
        n_written = int(
            capi.llama_state_seq_set_data(self._handle, state.ctypes.data_as(_Uint8s), state.nbytes, seq_id)
        )
        if n_written != state.nbytes:
            raise RuntimeError(f"{n_written} of {state.nbytes} bytes of saved cells could be written")
