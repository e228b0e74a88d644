"""`llorch-worker devices`: every device ggml can compute on, with its memory.

Owns: what is said about a device. Refuses to know: how devices are found (llama/devices.py).
Runs in a short-lived process of its own, which may load llama.cpp.
"""

from dataclasses import dataclass

import rich_click as click
from rich.filesize import decimal

from worker.commands.tables import print_json, print_table
from worker.host import available_memory_bytes
from worker.llama.devices import Device
from worker.llama.devices import devices as find_devices


@dataclass(frozen=True, slots=True)
class DeviceRow:
    """One device, in the words and the order of the output."""

    name: str
    type: str
    flag: str | None
    """What `--device` says for it; None where a worker cannot be told to run on it."""
    free_bytes: int
    total_bytes: int
    description: str


@click.command
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list instead of a table.")
def devices(*, as_json: bool) -> None:
    """Show the devices llama.cpp can use, with their memory.

    `flag` is what --device says for one; `free` is of this moment.
    """
    rows = [describe(device, available_memory_bytes()) for device in find_devices()]
    if as_json:
        print_json(rows)
        return
    print_table(
        ["device", "type", "flag", ">free", ">total", "description"],
        [
            (row.name, row.type, row.flag or "-", decimal(row.free_bytes), decimal(row.total_bytes), row.description)
            for row in rows
        ],
    )


def describe(device: Device, available_bytes: int) -> DeviceRow:
    """The device's row. ggml calls all of a CPU's memory free, so there `available_bytes` is the host's own figure."""
    is_cpu = device.kind == "cpu"
    return DeviceRow(
        name=device.name,
        type=device.kind,
        flag=_flag(device),
        free_bytes=min(device.free_bytes, available_bytes) if is_cpu else device.free_bytes,
        total_bytes=device.total_bytes,
        description=device.description,
    )


def _flag(device: Device) -> str | None:
    if device.kind == "cpu":
        return "cpu"
    if not device.is_gpu:
        return None
    return device.backend if device.backend == "metal" else f"{device.backend}:{device.index}"
