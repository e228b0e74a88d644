"""KV cells copied out of a context into host memory, to be written back into it later: K and V of every layer.

Owns the copy, one array, and its layout, which is that of the library's saved state of one sequence. Pure of calls and
of what the numbers mean; kv.py makes and reads copies. One thread at a time. Little-endian, as all hosts we run on.
Source: llama_context::state_seq_write_data, llama_kv_cache::state_write, state_read, llama_kv_cache_iswa.

    magic u32 · seq_id i32, then each cache of the memory: one; with sliding windows the layers without, and those with
    n_stream u32 · n_cells u32
    n_cells × (pos i32 · n_seq_id u32 · [x i32 · y i32 · token i32] · n_seq_id × seq_id i32)      [ ]: M-RoPE only
    v_trans u32 · n_layer u32
    n_layer × (K type i32 · row bytes u64 · n_cells rows)
    n_layer × (V type i32 · row bytes u64 · n_cells rows)                        rows of cells, or, transposed:
    n_layer × (V type i32 · item bytes u32 · n_rows u32 · n_rows × n_cells items)

A model with recurrent layers has a state for each sequence behind that, or instead. It is copied apart from the cells,
as the library's state of one sequence without them. Source: llama_memory_recurrent::state_write.

    magic u32 · seq_id i32
    n_states u32, 1 or 0 · n_states × (pos i32 · 0 u32)
    0 u32 · n_layer u32
    for each tensor of a recurrent layer: type i32 · row bytes u64 · n_states rows
"""

import mmap
import struct
from array import array
from collections.abc import Callable
from collections.abc import Sequence as Seq
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from worker.models.upstream.numbers import STATE_MAGIC
from worker.server.saved.arena import Bytes, Room

Allocate = Callable[[int], Bytes]
"""A function that returns memory for a copy: `n` bytes of any content."""

HEADER_BYTES, _CACHE_BYTES = 8, 8
"""The lengths of the headers: of the whole state, and of each cache in it before its first cell."""
_POSITION_BYTES, _TENSOR_BYTES = 8, 12
"""The lengths in a recurrent state: of its position, and of the header of each of its tensors, all of type _F32."""
_F32 = 0

_MIN_MAPPED_BYTES, _MIN_HUGE_BYTES = 2**17, 2**22
"""The sizes from which malloc maps memory and numpy asks for huge pages. Linux allows a process 65,530 mappings: 8 GiB
of the least."""


@dataclass(frozen=True, slots=True)
class Layout:
    is_mrope: bool = False
    """A position is several numbers."""
    n_caches: int = 1
    n_state_bytes: int = 0
    """The length of a copy of a sequence's recurrent state; 0 where there is none."""

    @property
    def cell_ints(self) -> int:
        return 6 if self.is_mrope else 3

    @property
    def empty_bytes(self) -> int:
        """The length of the state of a sequence without cells; every kind of memory that we cannot read writes more or
        less.
        """
        return HEADER_BYTES + self.n_caches * _CACHE_BYTES


ORDINARY = Layout()


@dataclass(frozen=True, slots=True)
class Block:
    """The cells of a cache, or K or V of one of its layers."""

    header: Bytes
    """All that stands in the state between the block before and this one."""
    items: Bytes
    """uint8[n_rows, n_cells, item_bytes]; rows are 1 unless V is transposed."""

    @property
    def ggml_type(self) -> int:
        """The type of K or V: all headers of theirs end with it and eight bytes of sizes."""
        return int(self.header[-12:-8].view("<i4")[0])

    def of(self, which: slice | NDArray[np.intp]) -> "Block":
        """Some of its cells, under the header of all."""
        return replace(self, items=self.items[:, which])


@dataclass(frozen=True, slots=True)
class CacheState:
    cells: Block
    k: tuple[Block, ...] = ()
    v: tuple[Block, ...] = ()

    @property
    def blocks(self) -> tuple[Block, ...]:
        return self.cells, *self.k, *self.v

    @property
    def numbers(self) -> NDArray[np.int32]:
        """int32[n_cells, Layout.cell_ints], in the order in which the cells lie."""
        numbers: NDArray[np.int32] = self.cells.items[0].view("<i4")
        return numbers

    @property
    def positions(self) -> NDArray[np.int32]:
        return self.numbers[:, 0]

    def of(self, which: slice | NDArray[np.intp]) -> "CacheState":
        k, v = (tuple(block.of(which) for block in blocks) for blocks in (self.k, self.v))
        return CacheState(self.cells.of(which), k, v)


@dataclass(frozen=True, slots=True)
class SeqState:
    """Views into the bytes it was read from. Every cache has the same positions."""

    caches: tuple[CacheState, ...]

    @property
    def n_cells(self) -> int:
        return len(self.caches[0].positions)

    @property
    def start(self) -> int:
        """The first position; the cells are in order."""
        return int(self.caches[0].positions[0])

    def cut(self, begin: int, end: int) -> "SeqState":
        """The cells [begin, end), views still."""
        return SeqState(tuple(cache.of(slice(begin, end)) for cache in self.caches))

    def in_order(self) -> "SeqState":
        """The cells in the order of their positions; copied where they lie otherwise."""
        if all((cache.positions[1:] > cache.positions[:-1]).all() for cache in self.caches):
            return self
        return SeqState(tuple(cache.of(cache.positions.argsort()) for cache in self.caches))


class _Copy:
    """Bytes that can be moved into the keeper's memory, and the tokens that they are of, if these are known."""

    def __init__(self, items: Bytes, tokens: Seq[int]) -> None:
        self.items = items
        """The state, for this room and the library."""
        self.tokens = array("i", tokens)
        """All from position 0 to the last that the copy knows of."""
        self.room: Room | None = None
        """The keeper's memory for it, which outlives this process."""

    @property
    def n_bytes(self) -> int:
        return self.items.nbytes

    def move_to(self, room: Room, items: Bytes) -> None:
        """Read the same bytes from `items`, in the keeper's memory, from now on. May be called from any thread at any
        time.
        """
        self.items, self.room = items, room


class SavedCells(_Copy):
    """The engine's Saved (backend.py): the cells of positions [start, start + n_tokens)."""

    def __init__(
        self, parts: Seq[Bytes], layout: Layout = ORDINARY, tokens: Seq[int] = (), keep: "Keep | None" = None
    ) -> None:
        """`parts`: states of at least one cell, one behind the other; a single one is the copy's own from now on.
        `keep` gets the parts that this is split into.

        Raises: ValueError if the bytes are no saved state.
        """
        states = [parse_seq_state(part, layout) for part in parts]
        in_order = [state.in_order() for state in states]
        is_own = len(parts) == 1 and in_order[0] is states[0]
        super().__init__(parts[0] if is_own else joined(in_order, lasting), tokens)
        self.state = states[0] if is_own else parse_seq_state(self.items, layout)
        """Views of the copy, for this room only."""
        self._layout, self._keep = layout, keep

    @property
    def start(self) -> int:
        return self.state.start

    @property
    def n_tokens(self) -> int:
        return self.state.n_cells

    def split(self, n_tokens: int) -> tuple[Self, Self]:
        """Split the copy as Saved.split does. Raises: ValueError for a number out of range."""
        if not 0 < n_tokens < self.n_tokens:
            raise ValueError(f"{self.n_tokens} saved cells cannot be split after {n_tokens}")
        halves = self._part(0, n_tokens), self._part(n_tokens, self.n_tokens)
        if self._keep is not None:
            for half in halves:
                self._keep(half)
        return halves

    def _part(self, begin: int, end: int) -> Self:
        tokens = self.tokens[: self.start + end]
        return type(self)([joined([self.state.cut(begin, end)], lasting)], self._layout, tokens, self._keep)

    def move_to(self, room: Room, items: Bytes) -> None:
        self.state = parse_seq_state(items, self._layout)
        super().move_to(room, items)


class SavedCheckpoint(_Copy):
    """The engine's Checkpoint (backend.py): the recurrent state of a sequence after its first n_tokens."""

    def __init__(self, items: Bytes, layout: Layout, tokens: Seq[int] = ()) -> None:
        """`items` is the copy's own from now on.

        Raises: ValueError for what is not the state of one sequence in a memory of that layout.
        """
        self.n_tokens = parse_checkpoint(items, layout)
        super().__init__(items, tokens)


class NoCells(SavedCells):
    """The copy of positions where sequences have no cells: nothing but their number."""

    def __init__(self, start: int, stop: int) -> None:
        _Copy.__init__(self, passing(0), ())
        self._start, self._stop, self._keep = start, stop, None

    @property
    def start(self) -> int:
        return self._start

    @property
    def n_tokens(self) -> int:
        return self._stop - self._start

    @property
    def n_bytes(self) -> int:
        """The bytes of the tokens' ids, which stand for the place of such a copy in the prefix index."""
        return 4 * self.n_tokens

    def _part(self, begin: int, end: int) -> "NoCells":
        return NoCells(self._start + begin, self._start + end)


Kept = SavedCells | SavedCheckpoint
"""A copy that the keeper can keep."""
Keep = Callable[[Kept], None]


def chained(parts: Seq[SavedCells], n_tokens: int) -> Bytes:
    """One state of positions [0, n_tokens), copied from parts that follow each other; n_tokens > 0.

    Raises: ValueError where they do not begin at 0, have gaps, or hold fewer.
    """
    states: list[SeqState] = []
    n_found = 0
    for part in parts:
        if part.start != n_found:
            raise ValueError(f"saved cells from position {part.start} on do not follow {n_found} others")
        states.append(part.state.cut(0, n_tokens - n_found))
        n_found += states[-1].n_cells
        if n_found == n_tokens:
            return joined(states, passing)
    raise ValueError(f"{n_tokens} cells are asked for; the saved ones are {n_found}")


def passing(n_bytes: int) -> Bytes:
    """Room for a copy that is dropped at once."""
    return np.empty(n_bytes, np.uint8)


def lasting(n_bytes: int) -> Bytes:
    """Room for a copy that stays: a mapping of its own, which goes back to the system whole.

    Copies of all sizes that come and go in malloc's heap leave holes between them, a sixth of what they take.
    """
    if n_bytes < _MIN_MAPPED_BYTES:
        return passing(n_bytes)
    try:
        room = mmap.mmap(-1, n_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError:  # no mapping more; the heap may have room
        return passing(n_bytes)
    if n_bytes >= _MIN_HUGE_BYTES and hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel without them
            room.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(room, np.uint8)


# ── the bytes of a state ─────────────────────────────────────────────────────────────────────────


class _Reader:
    def __init__(self, data: Bytes) -> None:
        self._data = data
        self._at = self._header_at = 0

    def numbers(self, codes: str) -> tuple[int, ...]:
        return struct.unpack(f"<{codes}", self._take(struct.calcsize(f"<{codes}")).data)

    def block(self, n_rows: int, n_cells: int, item_bytes: int) -> Block:
        """All that was read since the block before is its header."""
        header = self._data[self._header_at : self._at]
        items = self._take(n_rows * n_cells * item_bytes).reshape(n_rows, n_cells, item_bytes)
        self._header_at = self._at
        return Block(header, items)

    def _take(self, n_bytes: int) -> Bytes:
        """Raises: ValueError when fewer are left."""
        end = self._at + n_bytes
        if end > len(self._data):
            raise ValueError(f"the saved state ends at byte {len(self._data)}; {end} are needed")
        taken = self._data[self._at : end]
        self._at = end
        return taken

    @property
    def n_left(self) -> int:
        return len(self._data) - self._at


def parse_seq_state(data: Bytes, layout: Layout = ORDINARY) -> SeqState:
    """Raises: ValueError for what is not the state of one sequence in a memory of that layout."""
    reader = _Reader(data)
    if reader.numbers("I") != (STATE_MAGIC,):
        raise ValueError("not a saved state of this version of llama.cpp: its magic number is another")
    (seq_id,) = reader.numbers("i")
    caches = tuple(_cache(reader, seq_id, layout) for _ in range(layout.n_caches))
    if reader.n_left:
        raise ValueError(
            f"{reader.n_left} bytes follow the saved state: the model's memory is not of the expected kind"
        )
    first, *others = (cache.positions for cache in caches)
    for other in others:
        if not np.array_equal(np.sort(other), np.sort(first)):
            raise ValueError(f"one cache holds {len(first)} cells of the sequence, another {len(other)}")
    return SeqState(caches)


def _cache(reader: _Reader, seq_id: int, layout: Layout) -> CacheState:
    n_streams, n_cells = reader.numbers("II")
    if n_streams != 1:
        raise ValueError(f"{n_streams} streams are in the saved state; only one can be read")
    cells = CacheState(reader.block(1, n_cells, 4 * layout.cell_ints))
    is_foreign = (cells.numbers[:, 1] != 1) | (cells.numbers[:, -1] != seq_id)
    if is_foreign.any():
        raise ValueError(f"a cell at position {cells.positions[is_foreign.argmax()]} is not of sequence {seq_id} alone")
    if not n_cells:
        return cells
    is_transposed, n_layers = reader.numbers("II")
    k = tuple(_layer(reader, n_cells, is_transposed=False) for _ in range(n_layers))
    # Some attention keeps no V of its own, but none that has sliding windows beside it.
    has_v = layout.n_caches > 1 or reader.n_left
    v = tuple(_layer(reader, n_cells, is_transposed=bool(is_transposed)) for _ in range(n_layers if has_v else 0))
    return replace(cells, k=k, v=v)


def _layer(reader: _Reader, n_cells: int, *, is_transposed: bool) -> Block:
    if is_transposed:
        _, item_bytes, n_rows = reader.numbers("iII")
    else:
        (_, item_bytes), n_rows = reader.numbers("iQ"), 1
    return reader.block(n_rows, n_cells, item_bytes)


def joined(states: Seq[SeqState], allocate: Allocate) -> Bytes:
    """One state of all cells of the given ones, in their order; there are cells, and all are of one memory. Headers are
    the first state's, but for the number of cells before those of each cache.
    """
    n_cells = sum(state.n_cells for state in states)
    firsts = [block for cache in states[0].caches for block in cache.blocks]
    n_bytes = sum(block.header.size + n_cells * block.items[:, 0].size for block in firsts)
    data, at = allocate(n_bytes), 0
    for caches in zip(*(state.caches for state in states), strict=True):
        for number, blocks in enumerate(zip(*(cache.blocks for cache in caches), strict=True)):
            header, (n_rows, _, item_bytes) = blocks[0].header, blocks[0].items.shape
            begin, end = at + header.size, at + header.size + n_rows * n_cells * item_bytes
            data[at:begin] = header
            if number == 0:
                data[begin - 4 : begin].view("<u4")[0] = n_cells
            room = data[begin:end].reshape(n_rows, n_cells, item_bytes)
            np.concatenate([block.items for block in blocks], axis=1, out=room)
            at = end
    return data


def parse_checkpoint(data: Bytes, layout: Layout) -> int:
    """Return how many tokens a copy of a recurrent state has seen. Raises: ValueError for anything else."""
    if not layout.n_state_bytes:
        raise ValueError("this model's memory has no recurrent state")
    if len(data) != layout.n_state_bytes:
        raise ValueError(
            f"the saved recurrent state has {len(data)} bytes, of this model's there are {layout.n_state_bytes}"
        )
    magic, _, n_states, pos, n_seq_ids = _Reader(data).numbers("IiIiI")
    if (magic, n_states, n_seq_ids) != (STATE_MAGIC, 1, 0) or pos < 0:
        raise ValueError("not the saved recurrent state of one sequence")
    return int(pos) + 1


def state_bytes(empty: Bytes) -> int | None:
    """Return the length of a copy of a recurrent state, given that of a sequence that has none; None where its form is
    another than this module's.
    """
    reader = _Reader(empty)
    magic, _, n_states, _, _ = reader.numbers("IiIII")
    if (magic, n_states) != (STATE_MAGIC, 0) or reader.n_left % _TENSOR_BYTES:
        return None
    tensors = [reader.numbers("iQ") for _ in range(reader.n_left // _TENSOR_BYTES)]
    if any(ggml_type != _F32 for ggml_type, _ in tensors):
        return None
    return len(empty) + _POSITION_BYTES + sum(row_bytes for _, row_bytes in tensors)
