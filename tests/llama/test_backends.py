"""A build names its backends. A part with nothing to compute on has a reason: always a sentence with a remedy."""

from pathlib import Path

import pytest

from worker.llama.devices import backends, compiled, complaint_of, devices, features, loaded_modules
from worker.llama.library import LIBRARY_DIR, LogLine, open_library
from worker.llama.reasons import reason, unloadable

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


def test_the_cpu_reports_what_its_code_uses() -> None:
    [cpu] = [backend for backend in backends({}) if backend.name == "cpu"]
    assert cpu.features == features(cpu.devices[0])
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

NO_FILE = "cannot open shared object file: No such file or directory"


@pytest.mark.parametrize(
    ("backend", "said", "environ", "words"),
    [
        (
            "cuda",
            f"load_backend: failed to load /a b/libggml-cuda.so: libcuda.so.1: {NO_FILE}",
            {},
            ["no NVIDIA driver", "--gpus all"],
        ),
        (
            "cuda",
            f"load_backend: failed to load /x/libggml-cuda.so: libcublas.so.13: {NO_FILE}",
            {},
            ["CUDA's own libraries", f"(libcublas.so.13: {NO_FILE})"],
        ),
        (
            "cuda",
            "ggml_cuda_init: failed to initialize CUDA: CUDA driver version is insufficient for CUDA runtime version",
            {},
            ["older than", "update"],
        ),
        (
            "cuda",
            "ggml_cuda_init: failed to initialize CUDA: no CUDA-capable device is detected",
            {},
            ["shows no GPU", "nvidia-smi"],
        ),
        (
            "cuda",
            "ggml_cuda_init: failed to initialize CUDA: no CUDA-capable device is detected",
            {"CUDA_VISIBLE_DEVICES": ""},
            ["CUDA_VISIBLE_DEVICES=''", "unset"],
        ),
        (
            "cuda",
            "ggml_cuda_init: failed to initialize CUDA: forward compatibility was attempted on non supported HW",
            {},
            ["compatibility libraries", "update"],
        ),
        (
            "cuda",
            "ggml_cuda_init: failed to initialize CUDA: unknown error",
            {"CUDA_VISIBLE_DEVICES": "0"},
            ["(unknown error)", "nvidia-smi"],
        ),
        (
            "vulkan",
            f"load_backend: failed to load /x/libggml-vulkan.so: libvulkan.so.1: {NO_FILE}",
            {},
            ["loader", "libvulkan1"],
        ),
        ("vulkan", "", {}, ["no Vulkan driver", "install"]),
        (
            "vulkan",
            "load_backend: failed to initialize backend from /x/libggml-vulkan.so: ggml_backend_init returned NULL",
            {},
            ["no Vulkan driver", "--device /dev/dri"],
        ),
        ("vulkan", "ggml_vulkan: No devices found.", {}, ["no GPU", "GGML_VK_VISIBLE_DEVICES=0"]),
        ("vulkan", "", {"GGML_VK_VISIBLE_DEVICES": "7"}, ["GGML_VK_VISIBLE_DEVICES='7'", "unset"]),
        ("vulkan", "", {"GGML_DISABLE_VULKAN": "1"}, ["GGML_DISABLE_VULKAN", "unset"]),
        ("metal", "", {}, ["virtual machine", "--device cpu"]),
        ("sycl", f"load_backend: failed to load /x/libggml-sycl.so: libsycl.so.8: {NO_FILE}", {}, ["libsycl.so.8"]),
        ("opencl", "ggml_opencl: platform IDs not available.", {}, ["platform IDs not available"]),
        ("rpc", "", {}, ["no reason", "driver"]),
    ],
)
def test_a_reason_says_what_is_wrong_and_what_to_do(
    backend: str, said: str, environ: dict[str, str], words: list[str]
) -> None:
    reported = reason(backend, said, environ)
    assert [word for word in words if word not in reported] == []
    assert "load_backend" not in reported
    assert not reported.endswith(".")
    assert "{" not in reported


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


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (
            f"Failed to load shared library '/x/libllama.so': libcuda.so.1: {NO_FILE}",
            ["built for cuda", "no NVIDIA driver"],
        ),
        (
            f"Failed to load shared library '/x/libllama.so': libvulkan.so.1: {NO_FILE}",
            ["built for vulkan", "libvulkan1"],
        ),
        (
            f"Failed to load shared library '/x/libllama.so': libgomp.so.1: {NO_FILE}",
            ["(libgomp.so.1", "install the-package again"],
        ),
        ("Shared library with base name 'llama' not found", ["not found", "install the-package again"]),
    ],
)
def test_a_library_that_cannot_be_loaded_says_so(error: str, words: list[str]) -> None:
    reported = unloadable(error, "the-package")
    assert reported.startswith("llama.cpp")
    assert [word for word in words if word not in reported] == []
