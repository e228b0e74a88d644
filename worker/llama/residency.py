"""Whether a model is still on the GPUs that it was loaded to, by the devices' own memory figures.

A driver can move or lose memory while the process lives: another process pushed it out, the device was reset or fell
off its bus. Nobody tells us, but fewer bytes are then in use there than we put. Any thread; nothing waits for a step.
"""

from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from functools import partial

from worker.llama.devices import Device, Memory, memory_of
from worker.wire.messages import Residency


@dataclass(frozen=True, slots=True)
class Holding:
    """What we put on one device: weights, KV cells and compute buffers."""

    device: Device
    size_bytes: int


def residency_on(holdings: Seq[Holding], *, is_resident: bool) -> Callable[[], Residency]:
    """A question to be asked again and again. Call it when all is loaded; `is_resident` is what holds then.

    A driver that does not count what we put there, such as one of Vulkan without VK_EXT_memory_budget, which calls all
    of its memory free, cannot tell that it is gone either: such a device is not asked.
    """
    telling = [held for held in holdings if is_there(memory_of(held.device), held.size_bytes)]
    silent_bytes = sum(held.size_bytes for held in holdings if held not in telling)
    return partial(_ask, tuple(telling), silent_bytes, is_resident=is_resident)


def is_there(memory: Memory, size_bytes: int) -> bool:
    """Whether so much can lie there. A device that cannot be asked says 0 of 0: nothing does."""
    return memory.in_use_bytes >= size_bytes


def _ask(telling: Seq[Holding], silent_bytes: int, *, is_resident: bool) -> Residency:
    return judge([(memory_of(held.device), held.size_bytes) for held in telling], silent_bytes, is_resident=is_resident)


def judge(figures: Seq[tuple[Memory, int]], silent_bytes: int, *, is_resident: bool) -> Residency:
    """The answer, from the memory of each device and what we put there."""
    return Residency(
        is_resident=is_resident and all(is_there(memory, size_bytes) for memory, size_bytes in figures),
        memory_bytes=silent_bytes + sum(min(memory.in_use_bytes, size_bytes) for memory, size_bytes in figures),
    )
