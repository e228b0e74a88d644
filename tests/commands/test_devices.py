"""The output of `devices`, against the library's own list and for devices this machine need not have."""

import json
from dataclasses import fields, replace

import pytest

from worker.cli import run
from worker.commands.devices import (
    BackendRow,
    DeviceRow,
    Inventory,
    backend_cells,
    describe,
    device_cells,
    take_inventory,
)
from worker.host import available_memory_bytes
from worker.llama.devices import CompiledBackend, devices
from worker.models.plan.devices import Device, Kind


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


def test_free_memory_is_the_hosts_for_a_cpu_and_the_devices_for_a_gpu_and_an_accelerator_has_none() -> None:
    blas = replace(device("BLAS", "accel", "blas", 0), free_bytes=0, total_bytes=0)
    found = [device("CPU", "cpu", "cpu", 0), device("CUDA0", "gpu", "cuda", 0), blas]
    cells = [device_cells(describe(each, available_bytes=300))[3:5] for each in found]
    assert cells == [("0.3 KiB", "1.0 KiB"), ("0.7 KiB", "1.0 KiB"), ("-", "-")]


def test_json_lists_every_device_and_backend_of_the_library(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["devices", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert list(told) == [field.name for field in fields(Inventory)]
    assert [row["name"] for row in told["devices"]] == [found.name for found in devices()]
    for row in told["devices"]:
        assert list(row) == [field.name for field in fields(DeviceRow)]
        assert (0 < row["free_bytes"] <= row["total_bytes"]) or row["type"] == "accel"
    cpu = next(row for row in told["devices"] if row["type"] == "cpu")
    assert cpu["free_bytes"] <= 2 * available_memory_bytes()
    for backend in told["backends"]:
        assert list(backend) == [field.name for field in fields(BackendRow)]
        assert backend["devices"] == [row["name"] for row in told["devices"] if row["backend"] == backend["name"]]


def test_a_pipe_gets_one_line_per_device_and_then_one_per_backend(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["devices"]) == 0
    lines = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    n_devices = len(devices())
    assert [cells[0] for cells in lines[:n_devices]] == [found.name for found in devices()]
    assert [len(cells) for cells in lines[:n_devices]] == [6] * n_devices
    assert "cpu" in [cells[0] for cells in lines[n_devices:]]
    assert {len(cells) for cells in lines[n_devices:]} == {3}


CUDA0, CUDA1, BLAS, CPU = (
    replace(found, ordinal=ordinal)
    for ordinal, found in enumerate(
        [
            device("CUDA0", "gpu", "cuda", 0),
            device("CUDA1", "gpu", "cuda", 1),
            device("BLAS", "accel", "blas", 0),
            device("CPU", "cpu", "cpu", 0),
        ]
    )
)


def test_devices_are_in_the_librarys_order_and_each_under_its_backend() -> None:
    found = [
        CompiledBackend("cpu", (CPU,), "zen4", ("AVX2",), None),
        CompiledBackend("cuda", (CUDA0, CUDA1), None, (), None),
        CompiledBackend("blas", (BLAS,), None, (), None),
        CompiledBackend("vulkan", (), None, (), "no Vulkan driver: install one"),
    ]
    inventory = take_inventory(found, available_bytes=10**12)
    assert [(row.name, row.backend, row.flag) for row in inventory.devices] == [
        ("CUDA0", "cuda", "cuda:0"),
        ("CUDA1", "cuda", "cuda:1"),
        ("BLAS", "blas", None),
        ("CPU", "cpu", "cpu"),
    ]
    assert [backend_cells(row) for row in inventory.backends] == [
        ("cpu", "CPU", "zen4: AVX2"),
        ("cuda", "CUDA0 CUDA1", "-"),
        ("blas", "BLAS", "-"),
        ("vulkan", "none", "no Vulkan driver: install one"),
    ]
