"""The meaning of `--device` if there are several devices."""

from dataclasses import replace

import pytest

from worker.errors import ModelLoadFailed
from worker.models.plan.devices import Device, Kind, candidates, choose_device


def device(backend: str, index: int = 0, kind: Kind = "gpu", free_bytes: int = 8) -> Device:
    return Device(f"{backend}{index}", f"a {backend}", kind, backend, index, free_bytes, 16, 0)


CPU = device("cpu", kind="cpu")
CUDA0, CUDA1 = device("cuda"), device("cuda", 1, free_bytes=12)
VULKAN = device("vulkan", kind="igpu", free_bytes=99)
BLAS = device("blas", kind="accel")
ALL = [CUDA0, CUDA1, VULKAN, BLAS, CPU]


@pytest.mark.parametrize(
    ("asked", "chosen"),
    [
        ("auto", CUDA1),
        ("cpu", CPU),
        ("cuda", CUDA0),
        ("cuda:1", CUDA1),
        ("vulkan", VULKAN),
        ("vulkan:0", VULKAN),
        ("0", CUDA0),
        ("1", CUDA1),
        ("2", VULKAN),
    ],
)
def test_a_name_means_a_device(asked: str, chosen: Device) -> None:
    assert choose_device(asked, ALL) is chosen


def test_auto_ranks_all_gpus_and_then_the_cpu_the_others_mean_one_device() -> None:
    assert candidates("auto", ALL) == [CUDA1, CUDA0, VULKAN, CPU]
    assert candidates("cuda:0", ALL) == [CUDA0]
    assert candidates("2", ALL) == [VULKAN]


def test_auto_passes_by_a_gpu_of_which_the_driver_reports_no_memory_and_its_name_still_means_it() -> None:
    shell = replace(CUDA0, free_bytes=0, total_bytes=0)
    assert candidates("auto", [shell, CPU]) == [CPU]
    assert candidates("auto", [shell, CUDA1, CPU]) == [CUDA1, CPU]
    assert choose_device("cuda", [shell, CUDA1, CPU]) is shell


@pytest.mark.parametrize("asked", ["cuda:2", "metal", "vulkan:1", "3", "blas"])
def test_what_is_not_there_is_refused(asked: str) -> None:
    with pytest.raises(ModelLoadFailed, match=asked):
        choose_device(asked, ALL)


def test_the_refusal_names_what_there_is() -> None:
    with pytest.raises(ModelLoadFailed, match=r"no such device: --device cuda;.*cpu:0 \(a cpu\)"):
        choose_device("cuda", [CPU])


def test_memory_is_named_for_where_it_lies() -> None:
    architectures = [found.memory_architecture for found in (CPU, CUDA0, VULKAN, device("metal"))]
    assert architectures == ["host", "vram-only", "unified", "unified"]
