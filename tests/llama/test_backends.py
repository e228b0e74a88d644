"""A build names its backends. A part with nothing to compute on has a reason: always a sentence with a remedy."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from worker.host import has_amx
from worker.llama.devices import backends, can_split_rows, compiled, complaint_of, devices, features, loaded_modules
from worker.llama.library import LIBRARY_DIR, LogLine, open_library
from worker.llama.reasons import reason, unloadable
from worker.models.plan.devices import choose_device

# ── this build ───────────────────────────────────────────────────────────────────────────────────


def test_every_device_belongs_to_one_backend_and_in_the_librarys_order() -> None:
    found = backends({})
    assert [device.name for backend in found for device in backend.devices] == [device.name for device in devices()]
    assert len({backend.name for backend in found}) == len(found)


def test_a_backend_has_devices_or_a_reason() -> None:
    for backend in backends({}):
        assert bool(backend.devices) != bool(backend.reason), backend


def test_every_library_file_is_a_backend() -> None:
    assert compiled(LIBRARY_DIR) <= {backend.name for backend in backends({})}
    assert "cpu" in compiled(LIBRARY_DIR)


def test_the_cpu_has_memory_and_reports_what_its_code_uses() -> None:
    [device] = [found for found in devices() if found.kind == "cpu"]
    assert (device.backend, device.index, device.name) == ("cpu", 0, "CPU")
    assert 0 < device.free_bytes <= device.total_bytes
    assert device.description
    assert choose_device("cpu", devices()).ordinal == device.ordinal
    assert not can_split_rows(device)
    [cpu] = [backend for backend in backends({}) if backend.name == "cpu"]
    assert cpu.features == features(device)
    assert "OPENMP" in cpu.features or sys.platform == "darwin"
    assert "AMX_INT8" not in cpu.features or has_amx()
    modules = {path.name for path in LIBRARY_DIR.iterdir() if path.name.startswith("libggml-cpu-")}
    assert (cpu.variant is not None) == bool(modules)
    if cpu.variant is not None:
        assert any(f"libggml-cpu-{cpu.variant}.so" in line.text for line in open_library().first_words)


# ── names of files ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("files", "names"),
    [
        (["libllama.so", "libggml.so", "libggml-base.so", "libggml-cpu.so", "libggml-cpu.so.0.25.3"], {"cpu"}),
        (["libggml-cpu-x64.so", "libggml-cpu-armv8.2_1.so", "libggml-cuda.so"], {"cpu", "cuda"}),
        (["libggml-metal.dylib", "libggml-blas.dylib", "libggml-cpu.0.dylib.txt"], {"metal", "blas"}),
        (["libggml-hip.so"], {"rocm"}),
        ([], set()),
    ],
)
def test_the_files_next_to_the_library_name_its_backends(tmp_path: Path, files: list[str], names: set[str]) -> None:
    for name in files:
        (tmp_path / name).touch()
    assert compiled(tmp_path) == names


@pytest.mark.parametrize("variant", ["zen4", "armv8.2_1", None])
def test_the_module_that_was_loaded_names_the_instruction_set(variant: str | None) -> None:
    file = "libggml-cpu.so" if variant is None else f"libggml-cpu-{variant}.so"
    said = [
        "load_backend: loaded CUDA backend from /opt/a b/libggml-cuda.so",
        f"load_backend: loaded CPU backend from /opt/a b/{file}",
        "something else",
    ]
    assert loaded_modules([LogLine("info", text) for text in said]) == {"cuda": None, "cpu": variant}


# ── reasons ──────────────────────────────────────────────────────────────────────────────────────

CASES = [json.loads(line) for line in (Path(__file__).parent / "reasons.jsonl").read_text().splitlines()]
"""Each has the library's words about a backend, or the loader's about the library, and words of the reason."""


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.get("backend", "library"))
def test_a_reason_says_what_is_wrong_and_what_to_do(case: dict[str, Any]) -> None:
    if "error" in case:
        reported = unloadable(case["error"], "the-package")
        assert reported.startswith("llama.cpp")
    else:
        reported = reason(case["backend"], case["said"], case["environ"])
        assert "load_backend" not in reported
        assert not reported.endswith(".")
        assert "{" not in reported
    assert [word for word in case["words"] if word not in reported] == []


@pytest.mark.parametrize("content", [b"", b"no library", b"\x7fELF" + bytes(200)])
def test_a_module_that_cannot_be_loaded_is_complained_about(tmp_path: Path, content: bytes) -> None:
    """The loader's own words, whatever they are on this system."""
    module = tmp_path / "libggml-opencl.so"
    module.write_bytes(content)
    said = complaint_of(module)
    assert str(module) in said
    assert reason("opencl", said, {}).startswith("it could not be started (")


def test_a_library_that_is_no_module_is_complained_about() -> None:
    said = complaint_of(next(path for path in LIBRARY_DIR.iterdir() if path.name.startswith("libggml-base")))
    assert "ggml_backend_init" in said
