"""The memory that devices hold: after a load against the plan, and later against what was loaded.

A driver can move or lose memory while the process lives: another process pushed it out, the device was reset or fell
off its bus. No call reports it, but fewer bytes are then in use there than we put. Nothing here waits for a step.
"""

from collections.abc import Callable
from collections.abc import Sequence as Seq

from worker.models.facts.info import ModelInfo
from worker.models.plan.buffers import BufferSizes
from worker.models.plan.devices import Device, Memory
from worker.models.plan.placement import Placement
from worker.wire.load import OffPlan, Residency

TOLERANCE, MIN_BYTES = 0.1, 16 * 2**20
"""The share of what was planned for a device by which it may differ; more is worth a line in the log, unless it is so
little that no one would act."""

DRIVERS_OWN_BYTES = 2**30
"""The memory that a driver takes for itself when the first model comes: kernels, workspaces, staging buffers."""

_ROUNDED_BYTES = 2**20 // 100
"""The library prints each buffer's size in hundredths of a MiB."""


def is_resident(info: ModelInfo, placement: Placement, n_offloaded: int, sizes: BufferSizes) -> bool:
    """True if every layer's weights and cells are on the chosen devices.

    Weights that a backend cannot compute with stay in main memory although their layer is counted as offloaded; the dry
    run puts them there too.
    """
    if not placement.group.is_gpu:
        return True
    names = [device.name for device in placement.group.devices]
    min_bytes = sum(tensor.n_bytes for tensor in info.layer_tensors) - _ROUNDED_BYTES * len(names)
    return (
        placement.is_complete
        and n_offloaded == placement.n_layers
        and sizes.of_kind("model", names) >= min_bytes
        and sum(map(sizes.of_kind, ("KV", "RS"))) == sum(sizes.of_kind(kind, names) for kind in ("KV", "RS"))
    )


def off_plan(placement: Placement, sizes: BufferSizes, free_after: Seq[int]) -> tuple[OffPlan, ...]:
    """The devices where allocated and planned bytes differ by more than a tenth, or where the driver's own account of
    free memory contradicts both. `free_after`: of the placement's devices, in bytes.
    """
    if not placement.group.is_gpu:
        return _compared(placement.device, placement.host.total_bytes, sizes.total_bytes, None)
    found: list[OffPlan] = []
    for device, part, free_bytes in zip(placement.group.devices, placement.gpus, free_after, strict=True):
        # Memory that is shared with everything else says nothing, nor does a driver that reports all as free.
        taken = device.free_bytes - free_bytes if device.memory_architecture == "vram-only" else 0
        found += _compared(device, part.total_bytes, sizes.on_device(device.name), taken or None)
    return tuple(found)


def _compared(device: Device, planned: int, allocated: int, taken: int | None) -> tuple[OffPlan, ...]:
    is_as_planned = abs(allocated - planned) <= max(TOLERANCE * planned, MIN_BYTES)
    least, most = (1 - TOLERANCE) * allocated - MIN_BYTES, (1 + TOLERANCE) * allocated + DRIVERS_OWN_BYTES
    if is_as_planned and (taken is None or least <= taken <= most):
        return ()
    return (OffPlan(device=device.title, planned_bytes=planned, allocated_bytes=allocated, taken_bytes=taken),)


# ── later ────────────────────────────────────────────────────────────────────────────────────────


def residency_on(
    holdings: Seq[tuple[Device, int]], memory_of: Callable[[Device], Memory], *, is_resident: bool
) -> Callable[[], Residency]:
    """Return a function that checks where the model is; call this after the load. `holdings`: the bytes that we put on
    each device. `is_resident` is what holds then, and `memory_of` asks a device's driver.

    A driver that does not count what we put there, such as one of Vulkan without VK_EXT_memory_budget, which calls all
    of its memory free, cannot show that it is gone either: such a device is not asked.
    """
    telling = [(device, n_bytes) for device, n_bytes in holdings if memory_of(device).in_use_bytes >= n_bytes]
    silent_bytes = sum(n_bytes for _, n_bytes in holdings) - sum(n_bytes for _, n_bytes in telling)

    def ask() -> Residency:
        figures = [(memory_of(device), n_bytes) for device, n_bytes in telling]
        return judge(figures, silent_bytes, is_resident=is_resident)

    return ask


def judge(figures: Seq[tuple[Memory, int]], silent_bytes: int, *, is_resident: bool) -> Residency:
    """The answer, from the memory of each device and what we put there. One that does not answer reports 0 of 0."""
    return Residency(
        is_resident=is_resident and all(memory.in_use_bytes >= n_bytes for memory, n_bytes in figures),
        memory_bytes=silent_bytes + sum(min(memory.in_use_bytes, n_bytes) for memory, n_bytes in figures),
    )
