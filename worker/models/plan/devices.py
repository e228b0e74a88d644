"""Devices in the plan's terms, and the meaning of `--device`.

Owns what is said of a device and the choice among several. Pure: llama/devices.py asks the library for them.
"""

import re
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Literal, get_args

from worker.errors import ModelLoadFailed

Kind = Literal["cpu", "gpu", "igpu", "accel", "meta"]
"""The kinds of ggml_backend_dev_type, in its order."""
Backend = Literal["cpu", "cuda", "metal", "vulkan"]
"""The backends that a worker can run on."""


@dataclass(frozen=True, slots=True)
class Memory:
    """A device's memory, for all processes together; 0 of 0 where the driver does not answer."""

    free_bytes: int
    total_bytes: int

    @property
    def in_use_bytes(self) -> int:
        return max(0, self.total_bytes - self.free_bytes)


@dataclass(frozen=True, slots=True)
class Device:
    name: str
    """ggml's: CPU, CUDA0, MTL0, Vulkan0. Its buffers begin with it."""
    description: str
    kind: Kind
    backend: str
    """cpu | cuda | metal | vulkan | blas | …"""
    index: int
    """Its number among the devices of its backend."""
    free_bytes: int
    total_bytes: int
    ordinal: int
    """Its place in ggml's list, by which the rest of this room finds it again."""
    has_host_buffers: bool = False
    """A GPU that reads a part of main memory by itself, as CUDA reads what is pinned."""

    @property
    def is_gpu(self) -> bool:
        """A GPU that `--device` can name."""
        return self.kind in ("gpu", "igpu") and self.backend in get_args(Backend)

    @property
    def is_shell(self) -> bool:
        """A GPU whose driver reports no memory: either no GPU is behind it, or another process has it to itself."""
        return self.kind in ("gpu", "igpu") and not self.total_bytes

    @property
    def flag(self) -> str | None:
        """The value of `--device` for it; None if a worker cannot run on it."""
        if self.kind == "cpu":
            return "cpu"
        if not self.is_gpu:
            return None
        return self.backend if self.backend == "metal" else f"{self.backend}:{self.index}"

    @property
    def title(self) -> str:
        return f"{self.name} ({self.description})"

    @property
    def memory_architecture(self) -> Literal["vram-only", "unified", "host"]:
        if not self.is_gpu:
            return "host"
        return "unified" if self.kind == "igpu" or self.backend == "metal" else "vram-only"


def choose_device(asked: str, available: Seq[Device]) -> Device:
    """The first of the `candidates`. Raises: as they do."""
    return candidates(asked, available)[0]


def candidates(asked: str, available: Seq[Device]) -> list[Device]:
    """Return the devices that `auto`, `cpu`, `cuda[:N]`, `metal`, `vulkan[:N]` or a bare GPU index means, best first.

    `auto`: the GPUs, integrated ones last, those with most free memory first; then the CPU. All others mean one device.
    Raises: ModelLoadFailed, naming what there is.
    """
    gpus = [device for device in available if device.is_gpu]
    cpus = [device for device in available if device.kind == "cpu"]
    if asked == "auto":
        whole = [gpu for gpu in gpus if not gpu.is_shell]
        found = sorted(whole, key=lambda gpu: (gpu.kind == "gpu", gpu.free_bytes), reverse=True) + cpus[:1]
    elif asked.isdecimal():
        found = gpus[int(asked) :][:1]
    elif match := re.fullmatch(r"(cpu|cuda|metal|vulkan)(?::(\d+))?", asked):
        found = [one for one in gpus + cpus if one.backend == match[1] and one.index == int(match[2] or 0)][:1]
    else:
        raise ModelLoadFailed(f"--device {asked!r} is not one of auto, cpu, cuda[:N], metal, vulkan[:N] or a GPU index")
    if not found:
        there = ", ".join(f"{device.backend}:{device.index} ({device.description})" for device in available)
        raise ModelLoadFailed(
            f"no such device: --device {asked}; this build of llama.cpp finds {there or 'nothing'}; "
            "`llorch-worker devices` explains why"
        )
    return found
