"""The weights that the CPU's backend repacks when they are loaded, and the memory that they take then.

ggml has matrix kernels that want blocks of several rows interleaved, for some types, on some processors, and others
that want the tiles of Intel's AMX. Which is asked of the library, in the way in which it decides itself when it loads
(weight_buft_supported in llama-model-loader.cpp): the list is different for each instruction set, and grows. Of a file
it lays out all matrices that it can or none; this module decides which. Any thread.
"""

import ctypes
import functools
import math
from collections.abc import Callable, Collection, Iterator
from collections.abc import Sequence as Seq
from contextlib import contextmanager
from dataclasses import dataclass

from worker.host import has_amx
from worker.llama.devices import backend_function, buffer_type_name, cpu, device_handle
from worker.llama.library import call_ggml
from worker.models.facts.gguf import Tensor
from worker.models.facts.info import ModelInfo
from worker.models.plan.buffers import BufferSizes
from worker.models.upstream.ggml_types import TENSOR_TYPES
from worker.wire.load import Amx

TILES = "AMX"
"""ggml's name of the buffers in which weights lie in tiles."""

SLOWER_IN_TILES = ("F16",)
"""Types whose matrices ggml lays into AMX's buffers without a kernel for tiles: its AVX-512 one takes 1.1 to 2.2 times
as long as llamafile's, which computes with them as they are. docs/decisions.md has the figures of all types."""

TYPE_IDS = {kind.name: type_id for type_id, kind in TENSOR_TYPES.items()}
_F32, _I32 = TYPE_IDS["F32"], TYPE_IDS["I32"]
_N_TENSORS = 8
"""More than the tensors of a trial: a weight, its factor, and their product."""
_N_ROWS = 512
"""The rows of the factor, as when the library tries a weight."""

Dims = tuple[int, int, int, int]
"""Numbers along each dimension, the fastest first."""


class InitParams(ctypes.Structure):
    """ggml_init_params (ggml.h)."""

    _fields_ = (("mem_size", ctypes.c_size_t), ("mem_buffer", ctypes.c_void_p), ("no_alloc", ctypes.c_bool))


class TensorHead(ctypes.Structure):
    """The beginning of ggml_tensor (ggml.h), as the tests compare it with the library's own."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("buffer", ctypes.c_void_p),
        ("ne", ctypes.c_int64 * 4),
        ("nb", ctypes.c_size_t * 4),
    )


@dataclass(frozen=True, slots=True)
class LaidOut:
    """The place of a matrix in main memory when it is laid out anew."""

    buffers: str
    """ggml's name of the buffers that it lies in: AMX, CPU_REPACK."""
    n_bytes: int


LayoutOf = Callable[[Tensor], LaidOut | None]


def multiplied(info: ModelInfo) -> list[Tensor]:
    """The matrices that the layers multiply with; not those whose rows are only looked up."""
    return [tensor for tensor in info.layer_tensors if tensor.name.endswith(".weight") and len(tensor.dims) > 1]


def is_stack(matrix: Tensor) -> bool:
    """True for several matrices in one, as those of experts, which ggml's kernels multiply."""
    return "exps." in matrix.name or math.prod(matrix.dims[2:]) > 1


def forget_layouts() -> None:
    """Ask the library again, which uses other kernels now."""
    _layout_of.cache_clear()


def layout_of(matrix: Tensor) -> LaidOut | None:
    """The layout of a matrix that main memory has anew; None for one that is computed with as it is."""
    dims = (*matrix.dims, 1, 1, 1)[:4]
    has_experts = "exps." in matrix.name
    if 0 in dims or (has_experts and dims[3] > 1):
        # ggml divides by the one and asserts that there is not the other.
        return None
    return _layout_of(TYPE_IDS[matrix.type_name], dims, has_experts=has_experts)


def may_repack(
    models: Seq[ModelInfo], layout: LayoutOf = layout_of, *, keeps_bits: bool = False, own_types: Collection[str] = ()
) -> bool:
    """Return whether the CPU is to repack what it can of these models, which are alike in it, as `layout` says, or
    nothing.

    `keeps_bits`: only what gives a row the same bits next to any others, as tiles do, and our kernels of `own_types`.
    Other kernels of several rows do not for every type, and the library cannot be made to leave out some matrices.
    """
    found = [
        (matrix, laid_out) for info in models for matrix in multiplied(info) if (laid_out := layout(matrix)) is not None
    ]
    if any(laid_out.buffers == TILES and laid_out.n_bytes < matrix.n_bytes for matrix, laid_out in found):
        # Of a stack of matrices, as the heads of MLA are, ggml takes room for the first alone, and multiplies with all.
        return False
    in_tiles = [matrix for matrix, laid_out in found if laid_out.buffers == TILES]
    n_slower = sum(matrix.n_bytes for matrix in in_tiles if matrix.type_name in SLOWER_IN_TILES)
    if 2 * n_slower > sum(matrix.n_bytes for matrix in in_tiles):
        return False
    return not keeps_bits or all(
        laid_out.buffers == TILES or (matrix.type_name in own_types and not is_stack(matrix))
        for matrix, laid_out in found
    )


def amx_of(sizes: BufferSizes) -> Amx:
    """The use of Intel's AMX for a model with these buffers."""
    is_built_in = any(buffer_type_name(buffer_type) == TILES for buffer_type in extra_buffer_types())
    return Amx(processor=has_amx(), build=is_built_in, tile_bytes=sizes.of_kind("model", [TILES]))


@functools.cache
def _layout_of(type_id: int, dims: Dims, *, has_experts: bool) -> LaidOut | None:
    """Layers are alike: a model has a dozen kinds of matrices."""
    with _trial() as context:
        weight = _new_tensor(context, type_id, dims)
        assert weight.value
        head = TensorHead.from_address(weight.value)
        product = _product(context, weight, dims, has_experts=has_experts)
        for buffer_type in extra_buffer_types():
            if _is_computed_in(buffer_type, head, product):
                size = call_ggml("ggml_backend_buft_get_alloc_size", ctypes.c_size_t, buffer_type, weight)
                return LaidOut(buffer_type_name(buffer_type), int(size))
    return None


@contextmanager
def _trial() -> Iterator[ctypes.c_void_p]:
    """Room for some tensors without data."""
    overhead = call_ggml("ggml_tensor_overhead", ctypes.c_size_t)
    context = ctypes.c_void_p(call_ggml("ggml_init", ctypes.c_void_p, InitParams(overhead * _N_TENSORS, None, True)))
    try:
        yield context
    finally:
        call_ggml("ggml_free", None, context)


def _new_tensor(context: ctypes.c_void_p, type_id: int, dims: Dims) -> ctypes.c_void_p:
    sizes = map(ctypes.c_int64, dims)
    return ctypes.c_void_p(call_ggml("ggml_new_tensor_4d", ctypes.c_void_p, context, ctypes.c_int(type_id), *sizes))


def _product(context: ctypes.c_void_p, weight: ctypes.c_void_p, dims: Dims, *, has_experts: bool) -> ctypes.c_void_p:
    pointer = ctypes.c_void_p
    if has_experts:
        rows, ids = (
            _new_tensor(context, *one) for one in ((_F32, (dims[0], 1, _N_ROWS, 1)), (_I32, (1, _N_ROWS, 1, 1)))
        )
        return pointer(call_ggml("ggml_mul_mat_id", pointer, context, weight, rows, ids))
    rows = _new_tensor(context, _F32, (dims[0], _N_ROWS, dims[2], dims[3]))
    return pointer(call_ggml("ggml_mul_mat", pointer, context, weight, rows))


def extra_buffer_types() -> Iterator[ctypes.c_void_p]:
    """The buffer types in the order in which the library tries them. Source: ggml_backend_dev_get_extra_bufts_t in
    ggml-backend.h.
    """
    _, address = backend_function(cpu(), b"ggml_backend_dev_get_extra_bufts")
    if not address:
        return
    listing = ctypes.CFUNCTYPE(ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p)(address)(device_handle(cpu()))
    at = 0
    while listing and listing[at]:
        yield ctypes.c_void_p(listing[at])
        at += 1


def _is_computed_in(buffer_type: ctypes.c_void_p, weight: TensorHead, product: ctypes.c_void_p) -> bool:
    """Return whether the CPU's backend computes a product with a weight that lies in buffers of that type."""
    handle = ctypes.c_void_p(device_handle(cpu()))
    buffer = call_ggml("ggml_backend_buft_alloc_buffer", ctypes.c_void_p, buffer_type, ctypes.c_size_t(0))
    weight.buffer = buffer
    try:
        return bool(call_ggml("ggml_backend_dev_supports_op", ctypes.c_bool, handle, product))
    finally:
        weight.buffer = None
        call_ggml("ggml_backend_buffer_free", None, ctypes.c_void_p(buffer))
