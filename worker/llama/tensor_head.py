"""The head of ggml's tensors: the one layout that this room writes to, checked before each write.

A release that lays tensors out otherwise would have its memory corrupted in silence. So a head is only given out after
all of its fields say what the tensor was made with.
"""

import ctypes

from worker.errors import ModelLoadFailed
from worker.upstream.ggml_types import TENSOR_TYPES
from worker.upstream.layouts import PINNED_VERSION

N_DIMS = 4
"""GGML_MAX_DIMS (ggml.h)."""

Dims = tuple[int, int, int, int]
"""Numbers along each dimension, the fastest first."""


class InitParams(ctypes.Structure):
    """ggml_init_params (ggml.h)."""

    _fields_ = (("mem_size", ctypes.c_size_t), ("mem_buffer", ctypes.c_void_p), ("no_alloc", ctypes.c_bool))


class TensorHead(ctypes.Structure):
    """The beginning of ggml_tensor (ggml.h)."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("buffer", ctypes.c_void_p),
        ("ne", ctypes.c_int64 * N_DIMS),
        ("nb", ctypes.c_size_t * N_DIMS),
    )


def head_of(address: int, type_id: int, dims: Dims) -> TensorHead:
    """The head of a tensor that was made of that type and size and has no memory yet. It is valid while the tensor is.

    Raises: ModelLoadFailed where the library lays tensors out otherwise.
    """
    head = TensorHead.from_address(address)
    found = (head.type, head.buffer, tuple(head.ne), tuple(head.nb))
    expected = (type_id, None, dims, _strides(type_id, dims))
    if found != expected:
        raise ModelLoadFailed(
            f"llama.cpp lays its tensors out otherwise than in llama-cpp-python {PINNED_VERSION}: expected {expected}, "
            f"found {found}; install that version again"
        )
    return head


def _strides(type_id: int, dims: Dims) -> Dims:
    """Bytes from one number, row, matrix and stack to the next; of a type in blocks, from one block."""
    kind = TENSOR_TYPES[type_id]
    row = kind.n_bytes(dims[0])
    return kind.block_bytes, row, row * dims[1], row * dims[1] * dims[2]
