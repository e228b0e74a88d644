"""The devices ggml can compute on, and the choice of one.

Owns ggml's device list and the meaning of `--device`. Knows nothing of models. Any thread; memory figures are those of
the moment.
"""

import ctypes
import functools
import itertools
import re
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any, Literal, get_args

from worker.errors import ModelLoadFailed
from worker.host import available_memory_bytes
from worker.llama.library import ggml_function, open_library

Kind = Literal["cpu", "gpu", "igpu", "accel", "meta"]
"""In the order of ggml_backend_dev_type."""
Backend = Literal["cpu", "cuda", "metal", "vulkan"]
"""Those a worker can be told to run on."""

_BACKENDS = {"MTL": "metal", "Metal": "metal"}
"""Registry names of ggml that are not ours in lower case."""


class _Feature(ctypes.Structure):
    """ggml_backend_feature in ggml-backend.h; a name of NULL ends a list."""

    _fields_ = (("name", ctypes.c_char_p), ("value", ctypes.c_char_p))


@dataclass(frozen=True, slots=True)
class Device:
    name: str
    """ggml's: CPU, CUDA0, MTL0, Vulkan0. Its buffers begin with it."""
    description: str
    kind: Kind
    backend: str
    """cpu | cuda | metal | vulkan | blas | …"""
    index: int
    """Among the devices of its backend."""
    free_bytes: int
    total_bytes: int
    ordinal: int
    """Place in ggml's list; how the rest of this room finds it again."""

    @property
    def is_gpu(self) -> bool:
        """A GPU that `--device` can name."""
        return self.kind in ("gpu", "igpu") and self.backend in get_args(Backend)

    @property
    def memory_architecture(self) -> Literal["vram-only", "unified", "host"]:
        if not self.is_gpu:
            return "host"
        return "unified" if self.kind == "igpu" or self.backend == "metal" else "vram-only"


def devices() -> list[Device]:
    """Every device of every backend in this build, in ggml's order. Source: ggml-backend.h."""
    open_library()
    found: list[Device] = []
    for ordinal in range(_call("ggml_backend_dev_count", ctypes.c_size_t)):
        found.append(_describe(ordinal, found))
    return found


def device_handle(device: Device) -> int:
    """ggml's own pointer to the device; for this room only."""
    return int(_call("ggml_backend_dev_get", ctypes.c_void_p, ctypes.c_size_t(device.ordinal)))


def features(device: Device) -> tuple[str, ...]:
    """What the device's backend computes with, in ggml's words: AVX2, LLAMAFILE; empty where it does not tell.

    Source: ggml_backend_get_features in ggml-backend.h.
    """
    handle = ctypes.c_void_p(device_handle(device))
    registry = ctypes.c_void_p(_call("ggml_backend_dev_backend_reg", ctypes.c_void_p, handle))
    name = ctypes.c_char_p(b"ggml_backend_get_features")
    address = _call("ggml_backend_reg_get_proc_address", ctypes.c_void_p, registry, name)
    if not address:
        return ()
    listed = ctypes.CFUNCTYPE(ctypes.POINTER(_Feature), ctypes.c_void_p)(address)(registry)
    found = itertools.takewhile(lambda feature: feature.name, (listed[at] for at in itertools.count()))
    return tuple(feature.name.decode() for feature in found if feature.value == b"1")


@functools.cache
def has_amx() -> bool:
    """Whether the CPU code in use was compiled for Intel's AMX, and would lay the weights out for it."""
    return any("AMX_INT8" in features(device) for device in devices() if device.kind == "cpu")


def choose_device(asked: str, available: Seq[Device]) -> Device:
    """The device that `auto`, `cpu`, `cuda[:N]`, `metal`, `vulkan[:N]` or a bare GPU index means.

    `auto`: the GPU with the most free memory (integrated ones last), else the CPU.
    Raises: ModelLoadFailed, naming what there is.
    """
    gpus = [device for device in available if device.is_gpu]
    if asked == "auto":
        cpus = [device for device in available if device.kind == "cpu"]
        return max(gpus, key=lambda gpu: (gpu.kind == "gpu", gpu.free_bytes)) if gpus else _only(asked, cpus, available)
    if asked.isdecimal():
        return _only(asked, gpus[int(asked) :][:1], available)
    match = re.fullmatch(r"(cpu|cuda|metal|vulkan)(?::(\d+))?", asked)
    if match is None:
        raise ModelLoadFailed(f"--device {asked!r} is not one of auto, cpu, cuda[:N], metal, vulkan[:N] or a GPU index")
    usable = [device for device in available if device.is_gpu or device.kind == "cpu"]
    wanted = [d for d in usable if d.backend == match[1] and d.index == int(match[2] or 0)]
    return _only(asked, wanted, available)


def _only(asked: str, candidates: Seq[Device], available: Seq[Device]) -> Device:
    if candidates:
        return candidates[0]
    there = ", ".join(f"{device.backend}:{device.index} ({device.description})" for device in available) or "nothing"
    raise ModelLoadFailed(f"--device {asked} is not there; this build of llama.cpp sees {there}")


def _describe(ordinal: int, before: Seq[Device]) -> Device:
    handle = ctypes.c_void_p(_call("ggml_backend_dev_get", ctypes.c_void_p, ctypes.c_size_t(ordinal)))
    registry = ctypes.c_void_p(_call("ggml_backend_dev_backend_reg", ctypes.c_void_p, handle))
    backend = _backend_name(_text("ggml_backend_reg_name", registry))
    kind = get_args(Kind)[_call("ggml_backend_dev_type", ctypes.c_int, handle)]
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    _call("ggml_backend_dev_memory", None, handle, ctypes.pointer(free), ctypes.pointer(total))
    return Device(
        name=_text("ggml_backend_dev_name", handle),
        description=_text("ggml_backend_dev_description", handle).strip(),
        kind=kind,
        backend=backend,
        index=sum(device.backend == backend for device in before),
        # ggml calls all of a CPU's memory free.
        free_bytes=min(free.value, available_memory_bytes()) if kind == "cpu" else free.value,
        total_bytes=total.value,
        ordinal=ordinal,
    )


def _backend_name(registry: str) -> str:
    return _BACKENDS.get(registry, registry.lower())


def _text(name: str, handle: ctypes.c_void_p) -> str:
    return bytes(_call(name, ctypes.c_char_p, handle)).decode("utf-8", "replace")


def _call(name: str, result: Any, *arguments: Any) -> Any:
    """One call of ggml; the arguments' own ctypes types are its prototype. Any: as for `ggml_function`."""
    function: Callable[..., Any] = ggml_function(name, result, *map(type, arguments))
    return function(*arguments)
