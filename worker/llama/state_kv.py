"""The memory of models with recurrent layers: a state for each slot, beside its cells or, without attention, instead.

It cannot be cut. It goes along whole when a seq_id is given another's
cells, and the library copies it then only once one of the two computes; it is copied out apart from the cells, as a
checkpoint; and a slot that is given only some of another's cells needs the checkpoint of the same tokens. kv.py has the
rest. A seq_id that holds cells alone is given the state of an empty one.

With snapshots the library keeps the state after each of the last tokens of a decode, so that right after it some can be
taken back. What it has of other slots may be lost when it computes the next micro-batch: it moves states to make those
of a micro-batch neighbours, and leaves their snapshots where they were. It computes slices of one length together, in
their order, so only the slices of the last length of a decode can lose tokens. The state that is then a slot's is a
snapshot until the slot computes again; the library forgets that when it gives the state to another seq_id.
"""

from collections.abc import Callable
from collections.abc import Sequence as Seq
from typing import Any

import numpy as np
from llama_cpp import llama_cpp as capi

from worker.engine.backend import Checkpoint, Saved
from worker.engine.step import salt_of
from worker.llama.kv import ALL, Kv
from worker.llama.seq_ids import SeqIds
from worker.server.saved.arena import Bytes
from worker.server.saved.copies import HEADER_BYTES, Allocate, Layout, SavedCheckpoint, lasting, passing, state_bytes
from worker.wire.jobs import SlotId, TokenId

_STATE_ALONE = capi.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY
"""A sequence's recurrent state without its cells."""


class StateKv(Kv):
    """The engine's Kv for a model with recurrent layers."""

    has_state = True

    def __init__(self, handle: Any, *, n_ctx: int, n_slots: int, seq_ids: SeqIds, check: Callable[[], None]) -> None:
        super().__init__(handle, n_ctx=n_ctx, n_slots=n_slots, seq_ids=seq_ids, check=check)
        self._no_state = self._read(0, passing, _STATE_ALONE)
        """The saved state of a sequence that has none, as the empty slot 0 has."""
        self._tail = self._no_state[HEADER_BYTES:]
        """The end of the saved cells of a seq_id that has no state."""
        n_cells_bytes = int(capi.llama_state_seq_get_size(handle, 0)) - len(self._tail)
        n_caches = 0 if n_cells_bytes == HEADER_BYTES else 1
        layout = Layout(self.layout.is_mrope, n_caches, state_bytes(self._no_state) or 0)
        can_copy = not n_caches or seq_ids.copy_seq_id is not None
        self._is_known = layout.n_state_bytes > 0 and n_cells_bytes == layout.empty_bytes and can_copy
        """True if the memory has cells of one kind, or none, and a state, both in the form of
        server/saved/copies.py."""
        if self._is_known:
            self.layout, self.seq_ids, self.n_state_bytes = layout, seq_ids, layout.n_state_bytes
        self.n_snapshots = int(capi.llama_n_rs_seq(handle)) if self._is_known else 0
        """The library's own number: 0 for architectures of which it keeps none."""
        self._newest_slots: set[SlotId] = set()
        """The slots that may lose tokens: those of the last slices of one length."""
        self._n_newest_tokens = 0
        """The tokens of each of these slices."""
        self._in_snapshots: set[SlotId] = set()
        """The slots that have lost tokens and not computed since."""

    @property
    def can_share(self) -> bool:
        return self._is_known

    def share(self, source: SlotId, target: SlotId, n_tokens: int, checkpoint: Checkpoint | None = None) -> None:
        """Give the empty slot `target` the first `n_tokens` cells of `source`, and the state after them: that of the
        checkpoint, or of `source` itself, which must not have more cells then."""
        self._check_share(source, 0, n_tokens)
        if checkpoint is not None or n_tokens != self.n_cells(source):
            _check(checkpoint, n_tokens)
        elif source in self._in_snapshots:
            self._write(source, self._read(source, passing, _STATE_ALONE), _STATE_ALONE)
            self._in_snapshots.discard(source)
        super().share(source, target, n_tokens)
        self._newest_slots.discard(source)
        if checkpoint is not None:
            self._set_state(target, checkpoint)

    def trim(self, slot: SlotId, n_keep: int) -> None:
        """Empty the slot with 0; keep all of it with as many as it has, or more. What the last decode computed for it
        can be taken back, but for the first token, as far as there are snapshots. Raises: RuntimeError for less."""
        n_undone = max(0, self.n_cells(slot) - n_keep)
        n_undoable = min(self.n_snapshots, self._n_newest_tokens - 1) if slot in self._newest_slots else 0
        if n_keep > 0 and n_undone > n_undoable:
            raise RuntimeError(f"this model's memory cannot keep the first {n_keep} cells of slot {slot} alone")
        super().trim(slot, n_keep)
        if n_undone:
            self._newest_slots.discard(slot)
            self._in_snapshots.discard(slot)
        if n_undone and n_keep:
            self._in_snapshots.add(slot)

    def make_room(self, n_tokens: int) -> None:
        self._newest_slots.clear()
        super().make_room(n_tokens)

    def add(self, slot: SlotId, n_tokens: int) -> None:
        super().add(slot, n_tokens)
        if n_tokens != self._n_newest_tokens:
            self._newest_slots.clear()
        self._newest_slots.add(slot)
        self._n_newest_tokens = n_tokens
        self._in_snapshots.discard(slot)

    def clear(self) -> None:
        super().clear()
        self._newest_slots.clear()
        self._in_snapshots.clear()

    def _move_together(self) -> None:
        """Move cells alone: a state would be in the way where the last of a slot's are taken from it."""
        living = [slot for slot in range(self.seq_ids.n_slots) if self._spans.n_held(SlotId(slot))]
        states = {slot: self._read(slot, passing, _STATE_ALONE) for slot in living}
        for slot in living:
            self._write(slot, self._no_state, _STATE_ALONE)
        super()._move_together()
        for slot, state in states.items():
            self._write(slot, state, _STATE_ALONE)
        self._in_snapshots.clear()

    def checkpoint(self, slot: SlotId, tokens: Seq[TokenId] = ()) -> SavedCheckpoint:
        """Copy the slot's state, which is the one after all of its cells. `tokens`: as for `save`."""
        self._check_share(slot, 0, self.n_cells(slot))
        saved = SavedCheckpoint(self._read(slot, lasting, _STATE_ALONE), self.layout, tokens)
        if self.keeper is not None and tokens and not salt_of(tokens):
            self.keeper.take(saved)
        return saved

    def load(self, slot: SlotId, parts: Seq[Saved], n_tokens: int, checkpoint: Checkpoint | None = None) -> None:
        """Fill the empty slot with the first `n_tokens` cells of the parts, and with the state after them."""
        found = _check(checkpoint, n_tokens)
        super().load(slot, parts, n_tokens, found)
        self._set_state(slot, found)

    def _read(self, seq_id: int, allocate: Allocate, flags: int = ALL) -> Bytes:
        """Read cells without a state and what the library says of it, or a state alone."""
        if flags != ALL:
            return super()._read(seq_id, allocate, flags)
        self._write(seq_id, self._no_state, _STATE_ALONE)
        copy = super()._read(seq_id, allocate)
        return copy[: len(copy) - len(self._tail)]

    def _write(self, seq_id: int, state: Bytes, flags: int = ALL) -> None:
        """Write cells without a state, or a state alone."""
        super()._write(seq_id, np.concatenate([state, self._tail]) if flags == ALL else state, flags)

    def _set_state(self, slot: SlotId, checkpoint: Checkpoint) -> None:
        assert isinstance(checkpoint, SavedCheckpoint), "`checkpoint` makes them all"
        self._mark_in_use([checkpoint])
        self._write(slot, checkpoint.items, _STATE_ALONE)


def _check(checkpoint: Checkpoint | None, n_tokens: int) -> Checkpoint:
    assert checkpoint is not None, f"a slot that begins with {n_tokens} tokens needs the state after them"
    assert checkpoint.n_tokens == n_tokens, f"a state after {checkpoint.n_tokens} tokens; {n_tokens} are needed"
    return checkpoint
