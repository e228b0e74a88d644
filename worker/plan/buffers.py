"""Measured memory: the buffers that the library has allocated, to be compared with the plan. Pure."""

from collections.abc import Sequence as Seq
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Buffer:
    name: str
    """ggml's buffer type: CPU, CPU_Mapped, CUDA0, CUDA_Host, MTL0_Private, Vulkan0, …"""
    kind: str
    """model | KV | RS | compute | output | …"""
    size_bytes: int

    def is_on(self, device_name: str) -> bool:
        """CUDA0 has CUDA0 and CUDA0_Split, but not CUDA_Host."""
        return self.name == device_name or self.name.startswith(device_name + "_")


@dataclass(frozen=True, slots=True)
class BufferSizes:
    """Measured memory, to the hundredth of a MiB that the library prints."""

    buffers: tuple[Buffer, ...] = ()

    def __add__(self, other: "BufferSizes") -> "BufferSizes":
        return BufferSizes(self.buffers + other.buffers)

    @property
    def total_bytes(self) -> int:
        return sum(buffer.size_bytes for buffer in self.buffers)

    def of_kind(self, kind: str, device_names: Seq[str] | None = None) -> int:
        """Bytes of one kind, on some devices or wherever they lie."""
        found = (buffer for buffer in self.buffers if buffer.kind == kind)
        return sum(
            buffer.size_bytes
            for buffer in found
            if device_names is None or any(buffer.is_on(name) for name in device_names)
        )

    def on_device(self, name: str) -> int:
        """Bytes in the buffers of the device of that name."""
        return sum(buffer.size_bytes for buffer in self.buffers if buffer.is_on(name))
