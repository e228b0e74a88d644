"""Main memory that a GPU's driver has pinned: copies of KV cells pass through it.

A driver copies to and from other memory through a small buffer of its own, piece after piece. From pinned memory the
GPU reads by itself, at the full speed of the bus; between it and the prefix cache a processor copies. Used while the
model loads; the engine's only thread that copies cells is the step thread, so one buffer is enough.
"""

import ctypes
import weakref

import numpy as np

from worker.llama.devices import device_handle
from worker.llama.library import call_ggml
from worker.plan.devices import Device
from worker.saved.arena import Bytes

MAX_BYTES = 640 * 2**20
"""Room for the 1,024 cells of Llama-2-7B by which the warm-up judges copies, or for 5,000 of a model of its size with
grouped attention. A larger copy is made as without this memory."""
SHARE = 8
"""One part in this many of the prefix cache's memory."""


def staging_for(device: Device, cache_bytes: int) -> Bytes | None:
    """Return pinned memory for a prefix cache of `cache_bytes`; None if the device has none, or none can be pinned.

    Source: ggml_backend_dev_host_buffer_type in ggml-backend.h. A CPU has none.
    """
    n_bytes = min(MAX_BYTES, cache_bytes // SHARE)
    handle = ctypes.c_void_p(device_handle(device))
    buffer_type = call_ggml("ggml_backend_dev_host_buffer_type", ctypes.c_void_p, handle)
    return allocated(buffer_type, n_bytes) if buffer_type and n_bytes else None


def allocated(buffer_type: int, n_bytes: int) -> Bytes | None:
    """Return memory of a ggml_backend_buffer_type_t, uint8[n_bytes], freed with the last view of it; None if there is
    none.
    """
    handle = ctypes.c_void_p(buffer_type)
    buffer = call_ggml("ggml_backend_buft_alloc_buffer", ctypes.c_void_p, handle, ctypes.c_size_t(n_bytes))
    if not buffer:
        return None
    # If memory cannot be pinned, CUDA and Vulkan give a buffer of the CPU's type: a second copy for nothing.
    if call_ggml("ggml_backend_buffer_get_type", ctypes.c_void_p, ctypes.c_void_p(buffer)) != buffer_type:
        call_ggml("ggml_backend_buffer_free", None, ctypes.c_void_p(buffer))
        return None
    base = call_ggml("ggml_backend_buffer_get_base", ctypes.c_void_p, ctypes.c_void_p(buffer))
    memory = (ctypes.c_uint8 * n_bytes).from_address(base)
    weakref.finalize(memory, call_ggml, "ggml_backend_buffer_free", None, ctypes.c_void_p(buffer)).atexit = False
    return np.ctypeslib.as_array(memory)
