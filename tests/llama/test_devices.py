"""The devices that the library has here."""

import sys

from worker.host import has_amx
from worker.llama.devices import can_split_rows, devices, features
from worker.models.plan.devices import choose_device


def test_the_library_has_a_cpu_with_memory() -> None:
    [cpu] = [found for found in devices() if found.kind == "cpu"]
    assert (cpu.backend, cpu.index, cpu.name) == ("cpu", 0, "CPU")
    assert 0 < cpu.free_bytes <= cpu.total_bytes
    assert cpu.description
    assert choose_device("cpu", devices()).ordinal == cpu.ordinal


def test_the_cpu_names_its_features_and_has_amx_only_where_the_processor_has() -> None:
    found = features(choose_device("cpu", devices()))
    assert "OPENMP" in found or sys.platform == "darwin"
    assert "AMX_INT8" not in found or has_amx()


def test_a_cpu_splits_no_rows() -> None:
    assert not can_split_rows(choose_device("cpu", devices()))
