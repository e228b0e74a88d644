"""A sequence's KV memory: K and V of every layer as numbers, read from the library's saved state.

Owns the meaning of the numbers; worker/server/saved/copies.py owns their places. It calls nothing; the bytes come from
`Scorer.kv`.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from parity.llama.tensor_capture import ITEM_BYTES, Float32s, widened
from worker.server.saved.copies import Block, parse_seq_state


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
