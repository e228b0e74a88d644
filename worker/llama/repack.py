"""Which weights the CPU's backend lays out anew when they are loaded, and what they take then.

ggml has matrix kernels that want blocks of several rows interleaved, for some types, on some processors. Which is asked
of the library, in the way in which it decides itself when it loads (weight_buft_supported in llama-model-loader.cpp):
the list is different for each instruction set, and grows. Owns nothing; any thread.
"""

import ctypes
import functools
from collections.abc import Iterator
from contextlib import contextmanager

from worker.llama.devices import Device, backend_function, device_handle, devices, has_amx
from worker.llama.library import call_ggml
from worker.model.ggml_types import TENSOR_TYPES
from worker.model.gguf import Tensor

_F32, _I32 = 0, 26
_TYPE_IDS = {kind.name: type_id for type_id, kind in TENSOR_TYPES.items()}
_N_TENSORS = 8
"""How many tensors a trial has: a weight, what it is multiplied with, and their product."""
_N_ROWS = 512
"""How many rows a weight is multiplied with, as when the library tries it."""


class _InitParams(ctypes.Structure):
    """ggml_init_params in ggml.h."""

    _fields_ = (("mem_size", ctypes.c_size_t), ("mem_buffer", ctypes.c_void_p), ("no_alloc", ctypes.c_bool))


class _TensorHead(ctypes.Structure):
    """The beginning of ggml_tensor in ggml.h."""

    _fields_ = (("type", ctypes.c_int), ("buffer", ctypes.c_void_p))


def repacked_bytes(matrix: Tensor) -> int:
    """Bytes that a matrix of the model takes laid out anew in main memory; 0 for one that is computed with as it is."""
    dims = (*matrix.dims, 1, 1, 1)[:4]
    has_experts = "exps." in matrix.name
    if 0 in dims or (has_experts and dims[3] > 1):
        # ggml divides by the one and asserts that there is not the other.
        return 0
    return _repacked_bytes(_TYPE_IDS[matrix.type_name], dims, has_experts=has_experts)


@functools.cache
def _repacked_bytes(type_id: int, dims: tuple[int, int, int, int], *, has_experts: bool) -> int:
    """Layers are alike: a model has a dozen kinds of matrices."""
    cpu = next((device for device in devices() if device.kind == "cpu"), None)
    # With AMX weights are kept in ordinary buffers: see Model.load.
    if cpu is None or has_amx():
        return 0
    with _trial() as context:
        weight = _new_tensor(context, type_id, dims)
        product = _expert_product(context, weight, dims) if has_experts else _product(context, weight, dims)
        for buffer_type in _extra_buffer_types(cpu):
            if _is_computed_in(buffer_type, cpu, weight, product):
                size = call_ggml("ggml_backend_buft_get_alloc_size", ctypes.c_size_t, buffer_type, weight)
                return int(size)
    return 0


@contextmanager
def _trial() -> Iterator[ctypes.c_void_p]:
    """Room for some tensors without data."""
    overhead = call_ggml("ggml_tensor_overhead", ctypes.c_size_t)
    context = ctypes.c_void_p(call_ggml("ggml_init", ctypes.c_void_p, _InitParams(overhead * _N_TENSORS, None, True)))
    try:
        yield context
    finally:
        call_ggml("ggml_free", None, context)


def _new_tensor(context: ctypes.c_void_p, type_id: int, dims: tuple[int, int, int, int]) -> ctypes.c_void_p:
    sizes = map(ctypes.c_int64, dims)
    return ctypes.c_void_p(call_ggml("ggml_new_tensor_4d", ctypes.c_void_p, context, ctypes.c_int(type_id), *sizes))


def _product(context: ctypes.c_void_p, weight: ctypes.c_void_p, dims: tuple[int, int, int, int]) -> ctypes.c_void_p:
    rows = _new_tensor(context, _F32, (dims[0], _N_ROWS, dims[2], dims[3]))
    return ctypes.c_void_p(call_ggml("ggml_mul_mat", ctypes.c_void_p, context, weight, rows))


def _expert_product(
    context: ctypes.c_void_p, weight: ctypes.c_void_p, dims: tuple[int, int, int, int]
) -> ctypes.c_void_p:
    rows = _new_tensor(context, _F32, (dims[0], 1, _N_ROWS, 1))
    ids = _new_tensor(context, _I32, (1, _N_ROWS, 1, 1))
    return ctypes.c_void_p(call_ggml("ggml_mul_mat_id", ctypes.c_void_p, context, weight, rows, ids))


def _extra_buffer_types(cpu: Device) -> Iterator[ctypes.c_void_p]:
    """The buffer types in the order in which the library tries them. Source: ggml_backend_dev_get_extra_bufts_t in
    ggml-backend.h.
    """
    _, address = backend_function(cpu, b"ggml_backend_dev_get_extra_bufts")
    if not address:
        return
    listing = ctypes.CFUNCTYPE(ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p)(address)(device_handle(cpu))
    at = 0
    while listing and listing[at]:
        yield ctypes.c_void_p(listing[at])
        at += 1


def _is_computed_in(
    buffer_type: ctypes.c_void_p, cpu: Device, weight: ctypes.c_void_p, product: ctypes.c_void_p
) -> bool:
    """Whether the CPU's backend computes a product with a weight that lies in buffers of that type."""
    handle = ctypes.c_void_p(device_handle(cpu))
    buffer = call_ggml("ggml_backend_buft_alloc_buffer", ctypes.c_void_p, buffer_type, ctypes.c_size_t(0))
    assert weight.value
    head = _TensorHead.from_address(weight.value)
    head.buffer = buffer
    try:
        return bool(call_ggml("ggml_backend_dev_supports_op", ctypes.c_bool, handle, product))
    finally:
        head.buffer = None
        call_ggml("ggml_backend_buffer_free", None, ctypes.c_void_p(buffer))
