"""`llorch-worker devices`: what llama.cpp can compute on here, with its memory, and why it cannot use the rest."""

from dataclasses import dataclass

import rich_click as click

from worker.commands.tables import mib, print_json, print_table
from worker.config.environment import environment
from worker.host import available_memory_bytes
from worker.llama.devices import CompiledBackend, backends
from worker.models.plan.devices import Device, Kind


@dataclass(frozen=True, slots=True)
class DeviceRow:
    """One device, in the words and the order of the output."""

    name: str
    """ggml's: CPU, CUDA0, MTL0, Vulkan0, BLAS."""
    backend: str
    """cpu | cuda | metal | vulkan | blas | …"""
    type: Kind
    """cpu | gpu | igpu (shares main memory) | accel (helps the CPU, as BLAS does; never chosen by --device)"""
    flag: str | None
    """The value of --device for it, as Device.flag has it."""
    free_bytes: int
    total_bytes: int
    """0 for an accel device, which has no memory of its own."""
    description: str


@dataclass(frozen=True, slots=True)
class BackendRow:
    """One backend that llama.cpp was compiled with: it has devices, or a reason why not."""

    name: str
    devices: tuple[str, ...]
    """The names of its devices, as in DeviceRow."""
    variant: str | None
    """The processor its code was compiled for, where the build has a module for each: haswell, zen4, armv8.2_1."""
    features: tuple[str, ...]
    """The processor features that its code uses, in ggml's words: AVX2, AVX512, NEON, LLAMAFILE, …"""
    reason: str | None
    """The reason why there is no device, and what to do; None if there is one."""


@dataclass(frozen=True, slots=True)
class Inventory:
    """The output of --json. Fields may be added; these keep their names and meaning. Devices are in ggml's order."""

    devices: tuple[DeviceRow, ...]
    backends: tuple[BackendRow, ...]


@click.command
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object instead: `devices` and `backends`.")
def devices(*, as_json: bool) -> None:
    """Show the devices that llama.cpp can use here.

    The first table has the devices: `flag` is the value of --device, `free` the memory that is free now. The second
    has the backends of this build: the processor features that they use, or why a backend has no device and what to do.
    """
    inventory = take_inventory(backends(environment()), available_memory_bytes())
    if as_json:
        print_json(inventory)
        return
    columns = ["device", "type", "flag", ">free", ">total", "description"]
    print_table(columns, [device_cells(row) for row in inventory.devices])
    print_table(["backend", "devices", "uses"], [backend_cells(row) for row in inventory.backends])


def take_inventory(compiled: list[CompiledBackend], available_bytes: int) -> Inventory:
    """The rows of all backends and their devices; `available_bytes` is the host's own figure of its memory."""
    found = sorted((device for each in compiled for device in each.devices), key=lambda device: device.ordinal)
    return Inventory(
        devices=tuple(describe(device, available_bytes) for device in found),
        backends=tuple(
            BackendRow(each.name, tuple(one.name for one in each.devices), each.variant, each.features, each.reason)
            for each in compiled
        ),
    )


def describe(device: Device, available_bytes: int) -> DeviceRow:
    """The device's row. ggml calls all of a CPU's memory free, so there `available_bytes` is the host's own figure."""
    free = min(device.free_bytes, available_bytes) if device.kind == "cpu" else device.free_bytes
    memory = (free, device.total_bytes)
    return DeviceRow(device.name, device.backend, device.kind, device.flag, *memory, device.description)


def device_cells(row: DeviceRow) -> tuple[str, ...]:
    """One line of the first table. What helps the CPU has no memory of its own."""
    sizes = (mib(row.free_bytes), mib(row.total_bytes)) if row.total_bytes else ("-", "-")
    return row.name, row.type, row.flag or "-", *sizes, row.description


def backend_cells(row: BackendRow) -> tuple[str, str, str]:
    """One line of the second table."""
    if row.reason is not None:
        return row.name, "none", row.reason
    uses = [f"{row.variant}:"] if row.variant else []
    return row.name, " ".join(row.devices), " ".join([*uses, *row.features]) or "-"
