"""The library's buffers: those that a dry run says it would allocate, and those that it has allocated. Pure."""

from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace


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

    @property
    def is_as_in_file(self) -> bool:
        """True for weights in main memory that are not laid out anew there."""
        return self.name in ("CPU", "CPU_Mapped") or self.name.endswith("_Host")


@dataclass(frozen=True, slots=True)
class BufferSizes:
    """The buffers of a load. Those that were measured are known to the hundredth of a MiB that the library prints."""

    buffers: tuple[Buffer, ...] = ()

    def __add__(self, other: "BufferSizes") -> "BufferSizes":
        return BufferSizes(self.buffers + other.buffers)

    def times(self, factor: int) -> "BufferSizes":
        """So many buffers of each of these sizes, as one."""
        return BufferSizes(tuple(replace(one, size_bytes=factor * one.size_bytes) for one in self.buffers))

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
        return sum(buffer.size_bytes for buffer in self.buffers if buffer.is_on(name))
