"""Which KV cells each slot has, and in which order they lie.

Owns the counts, the forgetting, and the compaction; context.py owns the decode that fills cells. One thread, the
context's.

llama.cpp's CPU attention adds up a sequence's cells in the order in which they lie, and the last bits of an answer
depend on it. New tokens go to the first free cell behind the newest one; a cell freed among others would be filled out
of order. In an ordered memory, therefore, forgotten cells stay occupied, under a seq_id that no slot has, until the
living are moved together: so every sequence lies in the order of its positions, alone or beside others.

    cells:  A0 A1 B0 †  †  A2 B1 †  B2 | free      † = forgotten      after moving:  A0 A1 B0 A2 B1 B2 | free
"""

import ctypes
from typing import Any

from llama_cpp import llama_cpp as capi

from worker.engine.contract import SlotId

_SPARE_CELLS = 256
"""So many forgotten cells are always tolerated: moving costs time, and so does attention that walks past them."""


class Cells:
    """Made by a Context from its handle and memory; Any: opaque pointers of the library."""

    def __init__(self, handle: Any, *, n_ctx: int, n_slots: int, is_ordered: bool) -> None:
        """An ordered memory needs one seq_id beyond the slots'."""
        self._handle = handle
        self._memory = capi.llama_get_memory(handle)
        self._n_ctx = n_ctx
        self._n_held = [0] * n_slots
        self._graveyard = n_slots if is_ordered else None
        self._n_forgotten = 0
        """Forgotten cells that are still occupied."""

    @property
    def n_held_by_all(self) -> int:
        return sum(self._n_held)

    def n_held(self, slot: SlotId) -> int:
        """Positions [0, n_held) of the slot are computed."""
        return self._n_held[slot]

    def add(self, slot: SlotId, n_tokens: int) -> None:
        """A decode has filled so many more."""
        self._n_held[slot] += n_tokens

    def recount(self, slot: SlotId) -> None:
        """Ask the library what a decode that was stopped has left. Source: llama_memory_seq_pos_max."""
        self._n_held[slot] = int(capi.llama_memory_seq_pos_max(self._memory, slot)) + 1

    def trim(self, slot: SlotId, n_keep: int) -> None:
        """Forget the slot's cells from position `n_keep` on; 0 empties it, which always works.

        Raises: RuntimeError where the model's memory cannot forget a part. Source: llama_memory_seq_rm, _seq_cp.
        """
        if n_keep >= self._n_held[slot]:
            return
        if self._graveyard is not None:
            capi.llama_memory_seq_cp(self._memory, slot, self._graveyard, n_keep, -1)
            self._n_forgotten += self._n_held[slot] - n_keep
        if not capi.llama_memory_seq_rm(self._memory, slot, n_keep, -1):
            raise RuntimeError(f"this model's memory cannot keep the first {n_keep} cells of slot {slot} alone")
        self._n_held[slot] = n_keep

    def clear(self) -> None:
        """Empty all slots: the next decode finds the memory as new. Source: llama_memory_clear."""
        capi.llama_memory_clear(self._memory, False)
        self._n_held = [0] * len(self._n_held)
        self._n_forgotten = 0

    def make_room(self, n_tokens: int) -> None:
        """Free forgotten cells where they are in the way of a decode of `n_tokens`, or have become many.

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
        """Free the forgotten cells, then write each sequence anew into the first free ones.

        One sequence at a time, so that only one is in memory twice. After each, no cell is free before its last: it
        takes the first free ones, and those it had are among them.
        """
        capi.llama_memory_seq_rm(self._memory, self._graveyard, -1, -1)
        self._n_forgotten = 0
        for slot, n_held in enumerate(self._n_held):
            if n_held:
                self._rewrite(slot)

    def _rewrite(self, slot: int) -> None:
        """Raises: RuntimeError: the slot's cells are lost. Source: llama_state_seq_get_data, _set_data."""
        n_bytes = int(capi.llama_state_seq_get_size(self._handle, slot))
        state = (ctypes.c_uint8 * n_bytes)()
        n_read = int(capi.llama_state_seq_get_data(self._handle, state, n_bytes, slot))
        capi.llama_memory_seq_rm(self._memory, slot, -1, -1)
        n_written = int(capi.llama_state_seq_set_data(self._handle, state, n_bytes, slot))
        if not n_read == n_written == n_bytes:
            raise RuntimeError(f"slot {slot}: {n_read} of {n_bytes} bytes of its cells were read, {n_written} written")
