"""A tensor's head is given out only if every field says what the tensor was made with."""

import ctypes
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.errors import ModelLoadFailed
from worker.llama.library import call_ggml, open_library
from worker.llama.tensor_head import Dims, InitParams, TensorHead, head_of
from worker.upstream.ggml_types import TENSOR_TYPES

TYPES = st.sampled_from(sorted(TENSOR_TYPES))
SIZES = st.tuples(*[st.integers(1, 3)] * 4)


@pytest.fixture
def context() -> Iterator[ctypes.c_void_p]:
    open_library()
    made = ctypes.c_void_p(call_ggml("ggml_init", ctypes.c_void_p, InitParams(2**16, None, True)))
    yield made
    call_ggml("ggml_free", None, made)


def tensor(context: ctypes.c_void_p, type_id: int, dims: Dims) -> int:
    sizes = map(ctypes.c_int64, dims)
    return int(call_ggml("ggml_new_tensor_4d", ctypes.c_void_p, context, ctypes.c_int(type_id), *sizes))


@pytest.mark.parametrize("type_id", sorted(TENSOR_TYPES))
def test_the_librarys_own_tensors_are_laid_out_as_expected(context: ctypes.c_void_p, type_id: int) -> None:
    dims = (2 * TENSOR_TYPES[type_id].block, 3, 5, 7)
    head = head_of(tensor(context, type_id, dims), type_id, dims)
    assert (head.type, head.buffer, tuple(head.ne)) == (type_id, None, dims)


@given(type_id=TYPES, sizes=SIZES, field=st.sampled_from(("type", "buffer", "ne", "nb")), at=st.integers(0, 3))
def test_any_field_that_says_something_else_is_refused(
    type_id: int, sizes: tuple[int, ...], field: str, at: int
) -> None:
    dims = (sizes[0] * TENSOR_TYPES[type_id].block, sizes[1], sizes[2], sizes[3])
    row = TENSOR_TYPES[type_id].n_bytes(dims[0])
    strides = (TENSOR_TYPES[type_id].block_bytes, row, row * dims[1], row * dims[1] * dims[2])
    made = TensorHead(type_id, None, dims, strides)
    head_of(ctypes.addressof(made), type_id, dims)
    if field in ("ne", "nb"):
        getattr(made, field)[at] += 1
    else:
        setattr(made, field, (getattr(made, field) or 0) + 1)
    with pytest.raises(ModelLoadFailed, match="lays its tensors out otherwise"):
        head_of(ctypes.addressof(made), type_id, dims)
