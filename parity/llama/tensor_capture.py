"""The named tensors of a compute graph, copied as they are computed; and the KV memory of a sequence as numbers.

Parity only: every tensor asked for ends a piece of the graph, so that decoding is slow. The callback runs on the thread
that decodes.
"""

import ctypes
import re
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from llama_cpp import llama_cpp as capi
from numpy.typing import NDArray

from worker.llama.library import library_function
from worker.llama.repack import TensorHead
from worker.server.saved.copies import Block, parse_seq_state

F32, F16, BF16 = 0, 1, 30
"""ggml_type (ggml.h)."""
ITEM_BYTES = {F32: 4, F16: 2, BF16: 2}
"""The types whose numbers `widened` reads."""

_LAYER = re.compile(rb"-\d+")

Float32s = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Copy:
    """A tensor's bytes, from its first number to its last, and where in them the numbers lie."""

    ggml_type: int
    ne: tuple[int, ...]
    """Numbers along each dimension, fastest first."""
    nb: tuple[int, ...]
    """Bytes from one to the next along each dimension."""
    data: NDArray[np.uint8]

    def array(self) -> Float32s:
        """float32[ne3, ne2, ne1, ne0], whatever the strides. Raises: ValueError for a type that is not a float's.

        RuntimeError when extent and bytes disagree: the library's struct is not the one this was written against.
        """
        item_bytes = ITEM_BYTES.get(self.ggml_type)
        if item_bytes is None:
            raise ValueError(f"tensors of ggml type {self.ggml_type} cannot be read; f32, f16 and bf16 can")
        n_bytes = item_bytes + sum((n - 1) * step for n, step in zip(self.ne, self.nb, strict=True))
        if n_bytes != self.data.size:
            raise RuntimeError(f"a tensor of {self.ne} numbers, {self.nb} bytes apart, has {self.data.size} bytes")
        items = np.ndarray(self.ne[::-1], f"<u{item_bytes}", self.data, strides=self.nb[::-1])
        return widened(np.ascontiguousarray(items), self.ggml_type)


def widened(items: NDArray[np.unsignedinteger], ggml_type: int) -> Float32s:
    """The bits of float numbers as float32, of the same shape. No number changes."""
    if ggml_type == F32:
        return items.view(np.float32)
    if ggml_type == F16:
        return items.view(np.float16).astype(np.float32)
    assert ggml_type == BF16
    return (items.astype(np.uint32) << 16).view(np.float32)


class TensorCapture:
    """Takes the tensors whose names are among `stems` when the layer (`-7`) is left out: `kq`, `Qcur (view)`, `embd`.

    For one Scorer, which empties it before each computation.
    """

    def __init__(self, stems: Collection[str]) -> None:
        self._stems = frozenset(stem.encode() for stem in stems)
        self._copies: list[tuple[str, Copy]] = []
        self._n_asked = 0
        self._name = library_function("ggml_get_name", ctypes.c_char_p, ctypes.c_void_p)
        self._n_bytes = library_function("ggml_nbytes", ctypes.c_size_t, ctypes.c_void_p)
        size, pointer = ctypes.c_size_t, ctypes.c_void_p
        self._get = library_function("ggml_backend_tensor_get", None, pointer, pointer, size, size)
        self.callback = capi.ggml_backend_sched_eval_callback(self._see)
        """The callback, for this package only; C calls it for as long as the context lives."""

    def clear(self) -> None:
        self._copies.clear()
        self._n_asked = 0

    def taken(self) -> dict[str, list[Float32s]]:
        """The tensors by name; those of one name in the order of computation. Shapes and errors: as `Copy.array`.

        Raises: RuntimeError when a copy failed, after which the library's results are not to be used.
        """
        if self._n_asked != len(self._copies):
            raise RuntimeError(f"{len(self._copies)} of {self._n_asked} tensors could be copied; is there memory?")
        found: dict[str, list[Float32s]] = {}
        for name, copy in self._copies:
            found.setdefault(name, []).append(copy.array())
        return found

    def _see(self, tensor: int, is_asking: bool, _: object) -> bool:  # noqa: FBT001  # C passes it in its place
        """A ggml_backend_sched_eval_callback: first "is it wanted?", then, when it is computed, "go on?"."""
        name = bytes(self._name(tensor))
        if is_asking:
            is_wanted = _LAYER.sub(b"", name, count=1) in self._stems
            self._n_asked += is_wanted
            return is_wanted
        self._copies.append((name.decode("utf-8", "replace"), self._copy(tensor)))
        return True

    def _copy(self, tensor: int) -> Copy:
        """Source: ggml_backend_tensor_get."""
        layout = TensorHead.from_address(tensor)
        data = np.empty(int(self._n_bytes(tensor)), np.uint8)
        self._get(tensor, data.ctypes.data, 0, data.size)
        return Copy(int(layout.type), tuple(layout.ne), tuple(layout.nb), data)


# ── KV memory ────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class KvState:
    """The KV memory of one sequence. `k[layer]` and `v[layer]` are float32[n_cells, features], their numbers as they
    are stored."""

    positions: tuple[int, ...]
    """The positions of the cells, in the order of the cells."""
    k: tuple[Float32s, ...]
    v: tuple[Float32s, ...]


def parse_kv_state(data: bytes) -> KvState:
    """Raises: ValueError for what is not the state of one sequence in an ordinary memory of f32, f16 or bf16."""
    [state] = parse_seq_state(np.frombuffer(data, np.uint8)).caches
    k, v = (tuple(_numbers(block) for block in blocks) for blocks in (state.k, state.v))
    return KvState(tuple(state.positions.tolist()), k, v)


def _numbers(block: Block) -> Float32s:
    if block.ggml_type not in ITEM_BYTES:
        raise ValueError(f"KV memory of ggml type {block.ggml_type} cannot be read; f32, f16 and bf16 can")
    items: NDArray[np.unsignedinteger] = block.items.reshape(-1).view(f"<u{ITEM_BYTES[block.ggml_type]}")
    n_rows, n_cells, _ = block.items.shape
    numbers = widened(items, block.ggml_type).reshape(n_rows, n_cells, -1)
    return np.ascontiguousarray(numbers.transpose(1, 0, 2)).reshape(n_cells, -1)
