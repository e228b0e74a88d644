"""What `devices` says, against the library's own list and for devices this machine need not have."""

import json
from dataclasses import fields

import pytest

from worker.cli import run
from worker.commands.devices import DeviceRow, describe
from worker.host import available_memory_bytes
from worker.llama.devices import Device, Kind, devices


def device(name: str, kind: Kind, backend: str, index: int) -> Device:
    return Device(name, f"the {name}", kind, backend, index, free_bytes=700, total_bytes=1000, ordinal=0)


@pytest.mark.parametrize(
    ("found", "flag"),
    [
        (device("CPU", "cpu", "cpu", 0), "cpu"),
        (device("CUDA1", "gpu", "cuda", 1), "cuda:1"),
        (device("Vulkan0", "igpu", "vulkan", 0), "vulkan:0"),
        (device("MTL0", "gpu", "metal", 0), "metal"),
        (device("BLAS", "accel", "blas", 0), None),
        (device("SYCL0", "gpu", "sycl", 0), None),
    ],
)
def test_the_flag_column_is_what_the_device_flag_accepts(found: Device, flag: str | None) -> None:
    assert describe(found, available_bytes=10**12).flag == flag


def test_free_memory_is_the_hosts_for_a_cpu_and_the_devices_for_a_gpu() -> None:
    assert describe(device("CPU", "cpu", "cpu", 0), available_bytes=300).free_bytes == 300
    assert describe(device("CUDA0", "gpu", "cuda", 0), available_bytes=300).free_bytes == 700


def test_json_lists_every_device_of_the_library(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["devices", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in rows] == [found.name for found in devices()]
    for row in rows:
        assert list(row) == [field.name for field in fields(DeviceRow)]
        assert 0 < row["free_bytes"] <= row["total_bytes"]
    cpu = next(row for row in rows if row["type"] == "cpu")
    assert cpu["free_bytes"] <= 2 * available_memory_bytes()


def test_a_pipe_gets_one_line_per_device(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["devices"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("\t")[0] for line in lines] == [found.name for found in devices()]
    assert all(len(line.split("\t")) == 6 for line in lines)
