"""The library's own account of a context's memory, past all our bookkeeping."""

import ctypes
import struct

from llama_cpp import llama_cpp as capi

from worker.llama.context import Context

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
