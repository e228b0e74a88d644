"""Slots that do at random what an engine can ask of a context, and a record of what each must hold."""

import ctypes
import struct
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from random import Random

import numpy as np
import pytest
from llama_cpp import llama_cpp as capi

from tests.llama.conftest import GREEDY
from worker.engine.step import Aborted, NoRoom, Slice
from worker.llama.context import Context
from worker.server.saved.copies import ORDINARY, Layout, SavedCells
from worker.wire.jobs import SlotId, TokenId

N_SLOTS = 4
"""The slots that do something; the context may have more."""

Tokens = list[TokenId]


# ── the library's own account of a context's memory, past all our bookkeeping ────────────────────────

_EVERY_SEQUENCE = -1


def positions(context: Context, slot: int, n_cell_ints: int = 3) -> list[int]:
    """The positions of the slot's cells, in the order in which they lie."""
    data = _state(context, slot)
    cell_bytes = 4 * n_cell_ints
    return [struct.unpack_from("<i", data, 16 + i * cell_bytes)[0] for i in range(_n_cells(data))]


def n_used(context: Context) -> int:
    """Cells that are occupied, by whatever sequence."""
    return _n_cells(_state(context, _EVERY_SEQUENCE))


def _state(context: Context, seq_id: int) -> bytes:
    n_bytes = int(capi.llama_state_seq_get_size(context.handle, seq_id))
    state = (ctypes.c_uint8 * n_bytes)()
    assert capi.llama_state_seq_get_data(context.handle, state, n_bytes, seq_id) == n_bytes
    return bytes(state)


def _n_cells(state: bytes) -> int:
    (n_cells,) = struct.unpack_from("<I", state, 12)
    return int(n_cells)


# ── cells and their owners, one by one ───────────────────────────────────────────────────────────────


class PlainCells:
    """`of[slot]`: the slot's cells in the order of their positions, each a number of its own."""

    def __init__(self, n_slots: int) -> None:
        self.of: list[list[int]] = [[] for _ in range(n_slots)]
        self._fresh = count()

    @property
    def n_cells(self) -> int:
        return len({cell for cells in self.of for cell in cells})

    def grow(self, slot: SlotId, n: int) -> None:
        self.of[slot] += [next(self._fresh) for _ in range(n)]

    def share(self, source: SlotId, target: SlotId, n: int) -> None:
        self.of[target] = self.of[source][:n]

    def cut(self, slot: SlotId, n: int) -> None:
        del self.of[slot][n:]

    def n_shared(self, slot: SlotId) -> int:
        """Cells of the slot that others have too."""
        others = {cell for other, cells in enumerate(self.of) if other != slot for cell in cells}
        return sum(cell in others for cell in self.of[slot])


# ── the company ─────────────────────────────────────────────────────────────────────────────────────


@dataclass
class Company:
    """The slots of a context, and what each must hold."""

    context: Context
    alone: Context
    """The memory of one sequence, computed in one go, with whose logits the others are compared."""
    chance: Random
    n_vocab: int
    is_ordered: bool = True
    tolerance: float = 0.0
    """The tolerance of logits that need not be the same bits."""
    layout: Layout = ORDINARY
    tokens: list[Tokens] = field(default_factory=lambda: [[] for _ in range(N_SLOTS)])
    cells: PlainCells = field(default_factory=lambda: PlainCells(N_SLOTS))
    kept: list[tuple[Tokens, list[SavedCells]]] = field(default_factory=list)
    longest: int = 70
    """Tokens of a slice."""
    n_compared: int = 0
    n_aborted_in_part: int = 0

    def __post_init__(self) -> None:
        """The context's own way to stop can only stop a decode before it begins, from this thread."""
        self._n_nodes_left: int | None = None
        self._stop = capi.ggml_abort_callback(self._is_to_stop)
        capi.llama_set_abort_callback(self.context.handle, self._stop, None)

    def live(self, n_deeds: int) -> None:
        deeds = [
            *[self.decode] * 6,
            *[self.decode_and_take_back, self.share, self.load] * 2,
            *[self.trim] * 3,
            *[self.abort] * 2,
            *[self.save, self.decode_too_much],
        ]
        for _ in range(n_deeds):
            self.chance.choice(deeds)()
            self.check()
        self.compare_all()

    # ── what can be asked for ────────────────────────────────────────────────────────────────────

    def decode(self) -> None:
        if not (slices := self._slices(self.context.kv.n_free_cells)):
            return
        self.context.decode(slices)
        for slice_, row in zip(slices, self.context.rows(), strict=True):
            self._took(slice_)
            self._compare(self.tokens[slice_.slot], row)

    def decode_and_take_back(self) -> None:
        """They are taken back like wrong draft tokens."""
        if not (slices := self._slices(self.context.kv.n_free_cells)):
            return
        self.context.decode(slices)
        for slice_ in slices:
            self._took(slice_)
            self._trim(slice_.slot, slice_.start + self.chance.randint(0, len(slice_.tokens)))

    def decode_too_much(self) -> None:
        slot = self._a_slot()
        more = self._random_tokens(self.context.kv.n_free_cells + 1)
        if len(more) > self.context.n_batch:
            return
        with pytest.raises(NoRoom):
            self.context.decode([Slice(slot, len(self.tokens[slot]), more)])
        assert n_used(self.context) == self.cells.n_cells, "all forgotten cells were freed before"

    def abort(self) -> None:
        """Before a decode, or somewhere in it: what was computed stays."""
        if not (slices := self._slices(self.context.kv.n_free_cells)):
            return
        self._n_nodes_left = self.chance.choice([0, self.chance.randint(0, 200)])
        with suppress(Aborted):
            self.context.decode(slices)
        self._n_nodes_left = None
        for slice_ in slices:
            n_taken = self.context.kv.n_cells(slice_.slot) - slice_.start
            self._took(Slice(slice_.slot, slice_.start, slice_.tokens[:n_taken]))
            self.n_aborted_in_part += 0 < n_taken < len(slice_.tokens)

    def _is_to_stop(self, _: object) -> bool:
        """The library asks at every node of a graph."""
        if self._n_nodes_left is None:
            return False
        self._n_nodes_left -= 1
        return self._n_nodes_left < 0

    def trim(self) -> None:
        slot = self._a_slot()
        self._trim(slot, self.chance.choice([0, self.chance.randint(0, len(self.tokens[slot]))]))

    def share(self) -> None:
        source = self._a_slot()
        target = self._an_empty_slot(source)
        if target is None or not self.tokens[source]:
            return
        n = self.chance.randint(1, len(self.tokens[source]))
        self.context.kv.share(source, target, n)
        self.cells.share(source, target, n)
        self.tokens[target] = self.tokens[source][:n]

    def save(self) -> None:
        slot = self._a_slot()
        tokens = list(self.tokens[slot])
        if not tokens:
            return
        parts = [self.context.kv.save(slot, 0)]
        if len(tokens) > 1:
            at = self.chance.randint(1, len(tokens) - 1)
            parts = [parts[0].split(at)[0], self.context.kv.save(slot, at)]
        self.kept = [*self.kept[-5:], (tokens, parts)]

    def load(self) -> None:
        slot = self._an_empty_slot(None)
        if slot is None or not self.kept:
            return
        tokens, parts = self.chance.choice(self.kept)
        n = min(self.chance.randint(1, len(tokens)), self.context.kv.n_free_cells)
        if n:
            self.context.kv.load(slot, parts, n)
            self.cells.grow(slot, n)
            self.tokens[slot] = tokens[:n]

    # ── what must hold ───────────────────────────────────────────────────────────────────────────

    def check(self) -> None:
        memory = capi.llama_get_memory(self.context.handle)
        assert self.context.kv.n_cells_used == self.cells.n_cells
        assert self.context.kv.n_free_cells == self.context.n_ctx - self.cells.n_cells
        assert self.context.kv.count_tokens() == [*map(len, self.tokens), *[0] * (self.context.n_slots - N_SLOTS)]
        for slot in map(SlotId, range(N_SLOTS)):
            n_held = len(self.tokens[slot])
            assert self.context.kv.n_cells(slot) == n_held
            assert capi.llama_memory_seq_pos_max(memory, slot) == n_held - 1
            found = positions(self.context, slot, self.layout.cell_ints)
            assert sorted(found) == list(range(n_held))
            assert found == sorted(found) or not self.is_ordered
        assert self.cells.n_cells <= n_used(self.context) <= self.context.n_ctx

    def compare_all(self) -> None:
        for slot, tokens in enumerate(self.tokens):
            if tokens and self.context.kv.n_free_cells:
                slice_ = Slice(SlotId(slot), len(tokens), self._random_tokens(1), GREEDY)
                self.context.decode([slice_])
                self._compare([*tokens, *slice_.tokens], self.context.rows()[0])
                self.context.kv.trim(SlotId(slot), len(tokens))

    def _compare(self, tokens: Tokens, logits: np.ndarray[tuple[int], np.dtype[np.float32]]) -> None:
        self.alone.kv.clear()
        self.alone.decode([Slice(SlotId(0), 0, tokens, GREEDY)])
        (expected,) = self.alone.rows()
        if logits.tobytes() != expected.tobytes():
            farthest = float(np.abs(logits - expected).max())
            assert farthest < self.tolerance, (
                f"a logit after {len(tokens)} tokens is {farthest} from where it should be"
            )
        self.n_compared += 1

    # ── small things ─────────────────────────────────────────────────────────────────────────────

    def _slices(self, n_room: int) -> list[Slice]:
        slices = []
        for slot in map(SlotId, self.chance.sample(range(N_SLOTS), self.chance.randint(1, N_SLOTS))):
            n = min(self.chance.choice([1, 1, 1, 5, 20, self.longest]), n_room)
            if n:
                slices.append(Slice(slot, len(self.tokens[slot]), self._random_tokens(n), GREEDY))
                n_room -= n
        return slices

    def _random_tokens(self, n: int) -> Tokens:
        return [TokenId(self.chance.randrange(self.n_vocab)) for _ in range(n)]

    def _took(self, slice_: Slice) -> None:
        self.tokens[slice_.slot] += slice_.tokens
        self.cells.grow(slice_.slot, len(slice_.tokens))

    def _trim(self, slot: SlotId, n_keep: int) -> None:
        self.context.kv.trim(slot, n_keep)
        self.cells.cut(slot, n_keep)
        del self.tokens[slot][n_keep:]

    def _a_slot(self) -> SlotId:
        return SlotId(self.chance.randrange(N_SLOTS))

    def _an_empty_slot(self, but: SlotId | None) -> SlotId | None:
        """One that another job leaves for it, every other time; None where there is none."""
        slot = self._a_slot()
        if slot != but and self.chance.random() < 0.5:
            self._trim(slot, 0)
        return next((SlotId(slot) for slot, tokens in enumerate(self.tokens) if not tokens), None)
