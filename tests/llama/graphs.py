"""Single operations of ggml's CPU backend, computed from arrays and given back as arrays.

Owns one graph at a time: its tensors, their memory, the backend. Knows nothing of models.
"""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from worker.llama.devices import backend_function, buffer_type_name, cpu, device_handle
from worker.llama.library import call_ggml, open_library
from worker.llama.repack import InitParams, extra_buffer_types
from worker.models.upstream.ggml_types import TENSOR_TYPES

Floats = NDArray[np.float32]
TYPE_IDS = {kind.name: type_id for type_id, kind in TENSOR_TYPES.items()}
_ROOM = 2**20


def quantised(rows: Floats, type_name: str) -> bytes:
    """The rows as weights of that type."""
    n_rows, n_columns = rows.shape
    type_id = ctypes.c_int(TYPE_IDS[type_name])
    row_bytes = call_ggml("ggml_row_size", ctypes.c_size_t, type_id, ctypes.c_int64(n_columns))
    target = ctypes.create_string_buffer(n_rows * row_bytes)
    source = np.ascontiguousarray(rows).ctypes.data
    call_ggml(
        "ggml_quantize_chunk",
        ctypes.c_size_t,
        *(type_id, ctypes.c_void_p(source), ctypes.cast(target, ctypes.c_void_p)),
        *(ctypes.c_int64(0), ctypes.c_int64(n_rows), ctypes.c_int64(n_columns), ctypes.c_void_p(None)),
    )
    return target.raw


def _repacking() -> ctypes.c_void_p:
    """The type of the buffers in which ggml lays matrices out anew."""
    return next(each for each in extra_buffer_types() if buffer_type_name(each) == "CPU_REPACK")


class Graph:
    """Made by `graph`. Shapes are ggml's: the fastest dimension first."""

    def __init__(self, context: ctypes.c_void_p, backend: ctypes.c_void_p) -> None:
        self._context, self._backend = context, backend
        self._data: list[tuple[ctypes.c_void_p, bytes]] = []
        self._buffers: list[ctypes.c_void_p] = []

    def tensor(
        self, dims: tuple[int, ...], data: bytes, type_name: str = "F32", *, is_laid_out: bool = False
    ) -> ctypes.c_void_p:
        """`is_laid_out`: in the buffers in which the CPU's backend lays matrices out anew."""
        sizes = map(ctypes.c_int64, (*dims, 1, 1, 1)[:4])
        type_id = ctypes.c_int(TYPE_IDS[type_name])
        made = ctypes.c_void_p(call_ggml("ggml_new_tensor_4d", ctypes.c_void_p, self._context, type_id, *sizes))
        self._data.append((made, data))
        if is_laid_out:
            size = ctypes.c_size_t(call_ggml("ggml_backend_buft_get_alloc_size", ctypes.c_size_t, _repacking(), made))
            buffer = call_ggml("ggml_backend_buft_alloc_buffer", ctypes.c_void_p, _repacking(), size)
            self._buffers.append(ctypes.c_void_p(buffer))
            base = call_ggml("ggml_backend_buffer_get_base", ctypes.c_void_p, self._buffers[-1])
            where = (self._buffers[-1], made, ctypes.c_void_p(base))
            assert call_ggml("ggml_backend_tensor_alloc", ctypes.c_int, *where) == 0
        return made

    def floats(self, array: Floats) -> ctypes.c_void_p:
        return self.tensor(array.shape[::-1], np.ascontiguousarray(array, np.float32).tobytes())

    def halves(self, array: NDArray[Any]) -> ctypes.c_void_p:
        return self.tensor(array.shape[::-1], np.ascontiguousarray(array, np.float16).tobytes(), "F16")

    def op(self, name: str, *arguments: Any) -> ctypes.c_void_p:
        return ctypes.c_void_p(call_ggml(name, ctypes.c_void_p, self._context, *arguments))

    def computed(self, result: ctypes.c_void_p, shape: tuple[int, ...]) -> Floats:
        """The result as an array of that shape, the slowest dimension first."""
        nodes = ctypes.c_void_p(call_ggml("ggml_new_graph", ctypes.c_void_p, self._context))
        call_ggml("ggml_build_forward_expand", None, nodes, result)
        buffer = ctypes.c_void_p(
            call_ggml("ggml_backend_alloc_ctx_tensors", ctypes.c_void_p, self._context, self._backend)
        )
        try:
            for tensor, data in self._data:
                source, size = ctypes.c_char_p(data), ctypes.c_size_t(len(data))
                call_ggml("ggml_backend_tensor_set", None, tensor, source, ctypes.c_size_t(0), size)
            assert call_ggml("ggml_backend_graph_compute", ctypes.c_int, self._backend, nodes) == 0
            found = np.empty(shape, np.float32)
            target, size = ctypes.c_void_p(found.ctypes.data), ctypes.c_size_t(found.nbytes)
            call_ggml("ggml_backend_tensor_get", None, result, target, ctypes.c_size_t(0), size)
            return found
        finally:
            for each in (buffer, *self._buffers):
                call_ggml("ggml_backend_buffer_free", None, each)

    @classmethod
    @contextmanager
    def on_cpu(cls, n_threads: int = 1) -> Iterator[Self]:
        open_library()
        handle = ctypes.c_void_p(device_handle(cpu()))
        backend = ctypes.c_void_p(call_ggml("ggml_backend_dev_init", ctypes.c_void_p, handle, ctypes.c_char_p(None)))
        _, address = backend_function(cpu(), b"ggml_backend_set_n_threads")
        assert address
        ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int)(address)(backend, n_threads)
        context = ctypes.c_void_p(call_ggml("ggml_init", ctypes.c_void_p, InitParams(_ROOM, None, True)))
        try:
            yield cls(context, backend)
        finally:
            call_ggml("ggml_free", None, context)
            call_ggml("ggml_backend_free", None, backend)
