"""What a sequence has in the KV memory: K and V of every layer, read out of the library's saved state.

Owns the layout of that state. Pure of calls; the bytes come from `Scorer.kv`. Source: llama_kv_cache::state_write.

    magic u32 · seq_id i32 · n_stream u32 · n_cells u32
    n_cells × (pos i32 · n_seq_id u32 · n_seq_id × seq_id i32)
    v_trans u32 · n_layer u32
    n_layer × (K type i32 · row bytes u64 · n_cells rows)
    n_layer × (V type i32 · row bytes u64 · n_cells rows)                        rows of cells, or, transposed:
    n_layer × (V type i32 · item bytes u32 · n_rows u32 · n_rows × n_cells items)
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from worker.llama.tap import ITEM_BYTES, Float32s, widened

_MAGIC = 0xAF143CD8


@dataclass(frozen=True, slots=True)
class KvState:
    """Of one sequence. `k[layer]` and `v[layer]` are float32[n_cells, features], their numbers as they are stored."""

    positions: tuple[int, ...]
    """Of the cells, in the order in which they lie."""
    k: tuple[Float32s, ...]
    v: tuple[Float32s, ...]


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def number(self, code: str) -> int:
        (value,) = struct.unpack(f"<{code}", self.take(struct.calcsize(f"<{code}")))
        return int(value)

    def take(self, n_bytes: int) -> bytes:
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


def parse_kv_state(data: bytes) -> KvState:
    """Raises: ValueError for what is not the state of one sequence in an ordinary memory of f32, f16 or bf16."""
    reader = _Reader(data)
    if reader.number("I") != _MAGIC:
        raise ValueError("not a saved state of this version of llama.cpp: its magic number is another")
    seq_id = reader.number("i")
    n_streams = reader.number("I")
    if n_streams != 1:
        raise ValueError(f"{n_streams} streams are in the saved state; only one can be read")
    positions = tuple(_position(reader, seq_id) for _ in range(reader.number("I")))
    if not positions:
        return KvState((), (), ())
    is_transposed, n_layers = bool(reader.number("I")), reader.number("I")
    read_v: Callable[[_Reader, int], Float32s] = _transposed if is_transposed else _rows
    k = tuple(_rows(reader, len(positions)) for _ in range(n_layers))
    v = tuple(read_v(reader, len(positions)) for _ in range(n_layers))
    if reader.n_left:
        raise ValueError(
            f"{reader.n_left} bytes follow the saved state: the model's memory is not of the ordinary kind"
        )
    return KvState(positions, k, v)


def _position(reader: _Reader, seq_id: int) -> int:
    position, n_seq_ids = reader.number("i"), reader.number("I")
    if n_seq_ids != 1 or reader.number("i") != seq_id:
        raise ValueError(f"a cell at position {position} is not of sequence {seq_id} alone")
    return position


def _rows(reader: _Reader, n_cells: int) -> Float32s:
    ggml_type, row_bytes = reader.number("i"), reader.number("Q")
    return _numbers(reader.take(n_cells * row_bytes), ggml_type).reshape(n_cells, -1)


def _transposed(reader: _Reader, n_cells: int) -> Float32s:
    ggml_type, item_bytes, n_rows = reader.number("i"), reader.number("I"), reader.number("I")
    items = _numbers(reader.take(n_rows * n_cells * item_bytes), ggml_type)
    return np.ascontiguousarray(items.reshape(n_rows, n_cells).T)


def _numbers(data: bytes, ggml_type: int) -> Float32s:
    if ggml_type not in ITEM_BYTES:
        raise ValueError(f"KV memory of ggml type {ggml_type} cannot be read; f32, f16 and bf16 can")
    items: NDArray[np.unsignedinteger] = np.frombuffer(data, f"<u{ITEM_BYTES[ggml_type]}")
    return widened(items, ggml_type)
