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
    """The properties in which one memory differs from another."""

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
        """Return the length of the state of a sequence without cells; every kind of memory that we cannot read writes
        more or less.
        """
        return HEADER_BYTES + self.n_caches * _CACHE_BYTES


ORDINARY = Layout()


@dataclass(frozen=True, slots=True)
class Block:
    """K or V of one layer. `items`: uint8[n_rows, n_cells, item_bytes]; rows are 1 unless V is transposed."""

    ggml_type: int
    items: Bytes


@dataclass(frozen=True, slots=True)
class CacheState:
    """A sequence's part of one cache."""

    cells: NDArray[np.int32]
    """[n_cells, Layout.cell_ints] in the order in which they lie; the first column has their positions."""
    is_transposed: bool
    k: tuple[Block, ...]
    v: tuple[Block, ...]

    @property
    def positions(self) -> NDArray[np.int32]:
        return self.cells[:, 0]

    @property
    def cell_bytes(self) -> int:
        """The bytes that one cell takes in the state."""
        items = [block.items for block in self.k + self.v]
        return 4 * int(self.cells.shape[1]) + sum(int(item.shape[0] * item.shape[2]) for item in items)

    @property
    def header_bytes(self) -> int:
        """The bytes of the state that are not its cells. Each block of K or V has a header of 12 bytes, transposed or
        not.
        """
        return _CACHE_BYTES + 8 + 12 * len(self.k + self.v)

    def of(self, which: slice | NDArray[np.intp]) -> Self:
        """Some of its cells."""
        k, v = (tuple(replace(block, items=block.items[:, which]) for block in blocks) for blocks in (self.k, self.v))
        return replace(self, cells=self.cells[which], k=k, v=v)


@dataclass(frozen=True, slots=True)
class SeqState:
    """Views into the bytes it was read from. Every cache has the same positions."""

    caches: tuple[CacheState, ...]

    @property
    def n_cells(self) -> int:
        return len(self.caches[0].cells)

    @property
    def start(self) -> int:
        """The first position; the cells are in order."""
        return int(self.caches[0].positions[0])

    @property
    def seq_id(self) -> int:
        return int(self.caches[0].cells[0, -1])

    def cut(self, begin: int, end: int) -> Self:
        """The cells [begin, end), views still."""
        return replace(self, caches=tuple(cache.of(slice(begin, end)) for cache in self.caches))

    def in_order(self) -> Self:
        """The cells in the order of their positions; copied where they lie otherwise."""
        if all((cache.positions[1:] > cache.positions[:-1]).all() for cache in self.caches):
            return self
        return replace(self, caches=tuple(cache.of(cache.positions.argsort()) for cache in self.caches))


class SavedCells:
    """The engine's Saved (backend.py): the cells of positions [start, start + n_tokens)."""

    def __init__(
        self, parts: Seq[Bytes], layout: Layout = ORDINARY, tokens: Seq[int] = (), keep: "Keep | None" = None
    ) -> None:
        """`parts`: states of at least one cell, one behind the other; a single one is the copy's own from now on.
        `tokens`: all from position 0 to the last cell, if they are known. `keep` gets the parts that this is split
        into.

        Raises: ValueError if the bytes are no saved state.
        """
        states = [parse_seq_state(part, layout) for part in parts]
        in_order = [state.in_order() for state in states]
        if len(parts) == 1 and in_order[0] is states[0]:
            self._data, self.state = parts[0], states[0]
        else:
            self._data = joined(in_order, lasting)
            self.state = parse_seq_state(self._data, layout)
        self._layout = layout
        self._keep = keep
        self.tokens = array("i", tokens)
        self.room: Room | None = None

    state: SeqState
    """Views of the copy, for this room only."""
    room: "Room | None"
    """The keeper's memory for it, which outlives this process."""

    @property
    def start(self) -> int:
        return self.state.start

    @property
    def n_tokens(self) -> int:
        return self.state.n_cells

    @property
    def n_bytes(self) -> int:
        return self._data.nbytes

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

    @property
    def data(self) -> memoryview:
        """The state."""
        return self._data.data

    def move_to(self, room: "Room", data: Bytes) -> None:
        """Read the same bytes from `data`, in the keeper's memory, from now on. May be called from any thread at any
        time.
        """
        state = parse_seq_state(data, self._layout)
        self._data, self.state, self.room = data, state, room


class SavedCheckpoint:
    """The engine's Checkpoint (backend.py): the recurrent state of a sequence after its first n_tokens."""

    def __init__(self, data: Bytes, layout: Layout, tokens: Seq[int] = ()) -> None:
        """`data` is the copy's own from now on. `tokens`: all that came before, if they are known.

        Raises: ValueError for what is not the state of one sequence in a memory of that layout.
        """
        self.n_tokens = parse_checkpoint(data, layout)
        self.tokens = array("i", tokens)
        self.room: Room | None = None
        self._data = data

    room: "Room | None"
    """The keeper's memory for it, which outlives this process."""

    @property
    def n_bytes(self) -> int:
        return self._data.nbytes

    @property
    def data(self) -> memoryview:
        """The state."""
        return self._data.data

    @property
    def items(self) -> Bytes:
        """The state, for this room and the library."""
        return self._data

    def move_to(self, room: "Room", data: Bytes) -> None:
        """Read the same bytes from `data`, in the keeper's memory, from now on. May be called from any thread at any
        time.
        """
        self._data, self.room = data, room


class NoCells(SavedCells):
    """The copy of positions where sequences have no cells: nothing but their number."""

    def __init__(self, start: int, stop: int) -> None:
        self._start, self._stop, self._keep = start, stop, None
        self.tokens = array("i")
        self.room = None

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


# ── where copies lie ──────────────────────────────────────────────────────────────────────────────


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


# ── reading ──────────────────────────────────────────────────────────────────────────────────────


class _Reader:
    def __init__(self, data: Bytes) -> None:
        self._data = data
        self._at = 0

    def numbers(self, codes: str) -> tuple[int, ...]:
        return struct.unpack(f"<{codes}", self.take(struct.calcsize(f"<{codes}")).data)

    def take(self, n_bytes: int) -> Bytes:
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
    for cache in caches[1:]:
        if not np.array_equal(np.sort(cache.positions), np.sort(caches[0].positions)):
            raise ValueError(
                f"one cache holds {len(caches[0].cells)} cells of the sequence, another {len(cache.cells)}"
            )
    return SeqState(caches)


def _cache(reader: _Reader, seq_id: int, layout: Layout) -> CacheState:
    n_streams, n_cells = reader.numbers("II")
    if n_streams != 1:
        raise ValueError(f"{n_streams} streams are in the saved state; only one can be read")
    cells = reader.take(4 * layout.cell_ints * n_cells).view("<i4").reshape(n_cells, layout.cell_ints)
    _check_owner(cells, seq_id)
    if not n_cells:
        return CacheState(cells, False, (), ())
    is_transposed, n_layers = reader.numbers("II")
    k = tuple(_block(reader, n_cells, is_transposed=False) for _ in range(n_layers))
    # Some attention keeps no V of its own, but none that has sliding windows beside it.
    has_v = layout.n_caches > 1 or reader.n_left
    v = tuple(_block(reader, n_cells, is_transposed=bool(is_transposed)) for _ in range(n_layers if has_v else 0))
    return CacheState(cells, bool(is_transposed), k, v)


def _check_owner(cells: NDArray[np.int32], seq_id: int) -> None:
    is_foreign = (cells[:, 1] != 1) | (cells[:, -1] != seq_id)
    if is_foreign.any():
        raise ValueError(f"a cell at position {cells[is_foreign.argmax(), 0]} is not of sequence {seq_id} alone")


def _block(reader: _Reader, n_cells: int, *, is_transposed: bool) -> Block:
    if is_transposed:
        ggml_type, item_bytes, n_rows = reader.numbers("iII")
    else:
        (ggml_type, item_bytes), n_rows = reader.numbers("iQ"), 1
    return Block(ggml_type, reader.take(n_rows * n_cells * item_bytes).reshape(n_rows, n_cells, item_bytes))


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


# ── writing ──────────────────────────────────────────────────────────────────────────────────────


class _Writer:
    def __init__(self, room: Bytes) -> None:
        self._room = room
        self._at = 0

    def numbers(self, codes: str, *values: int) -> None:
        struct.pack_into(f"<{codes}", self._next(struct.calcsize(f"<{codes}")).data, 0, *values)

    def items(self, parts: Seq[Bytes]) -> None:
        """Arrays of [n_rows, some cells, item_bytes], one behind the other."""
        n_rows, _, item_bytes = parts[0].shape
        n_cells = sum(part.shape[1] for part in parts)
        room = self._next(n_rows * n_cells * item_bytes).reshape(n_rows, n_cells, item_bytes)
        np.concatenate(parts, axis=1, out=room)

    def _next(self, n_bytes: int) -> Bytes:
        room = self._room[self._at : self._at + n_bytes]
        self._at += n_bytes
        return room


def joined(states: Seq[SeqState], allocate: Allocate) -> Bytes:
    """One state of all cells of the given ones, in their order; there are cells, and all are of one memory."""
    of_caches = list(zip(*(state.caches for state in states), strict=True))
    n_cells = sum(state.n_cells for state in states)
    n_bytes = sum(n_cells * caches[0].cell_bytes + caches[0].header_bytes for caches in of_caches)
    data = allocate(HEADER_BYTES + n_bytes)
    writer = _Writer(data)
    writer.numbers("Ii", STATE_MAGIC, states[0].seq_id)
    for caches in of_caches:
        _write_cache(writer, caches, n_cells)
    return data


def _write_cache(writer: _Writer, states: Seq[CacheState], n_cells: int) -> None:
    first = states[0]
    writer.numbers("II", 1, n_cells)
    writer.items([np.ascontiguousarray(state.cells).view(np.uint8)[np.newaxis] for state in states])
    writer.numbers("II", first.is_transposed, len(first.k))
    for blocks in zip(*(state.k for state in states), strict=True):
        _write_blocks(writer, blocks, is_transposed=False)
    for blocks in zip(*(state.v for state in states), strict=True):
        _write_blocks(writer, blocks, is_transposed=first.is_transposed)


def _write_blocks(writer: _Writer, blocks: Seq[Block], *, is_transposed: bool) -> None:
    n_rows, _, item_bytes = blocks[0].items.shape
    if is_transposed:
        writer.numbers("iII", blocks[0].ggml_type, item_bytes, n_rows)
    else:
        writer.numbers("iQ", blocks[0].ggml_type, item_bytes)
    writer.items([block.items for block in blocks])
