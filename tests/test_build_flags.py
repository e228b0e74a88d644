"""scripts/build_llama.sh: the one place where llama.cpp's build flags are told."""

import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.llama_source import build_files

ROOT = Path(__file__).parent.parent
SCRIPT = ROOT / "scripts" / "build_llama.sh"


def build_llama(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [SCRIPT, *arguments],
        env={**os.environ, "CMAKE_ARGS": "", **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def flags(*arguments: str, **environment: str) -> list[str]:
    run = build_llama("--flags", *arguments, **environment)
    assert run.returncode == 0, run.stderr
    return shlex.split(run.stdout)


@pytest.mark.parametrize(
    ("backend", "switch"),
    [("cuda", "-DGGML_CUDA=ON"), ("metal", "-DGGML_METAL=ON"), ("vulkan", "-DGGML_VULKAN=ON")],
)
def test_a_backend_is_switched_on_and_what_would_be_picked_up_by_accident_off(backend: str, switch: str) -> None:
    assert switch in flags(backend)
    assert switch not in flags("cpu")
    assert {"-DGGML_CUDA_NCCL=OFF", "-DGGML_RPC_RDMA=OFF", "-DLLAMA_OPENSSL=OFF"} <= set(flags(backend))


def test_a_portable_build_has_a_module_for_each_generation_and_nothing_of_this_processor() -> None:
    portable = flags("cpu", "--portable")
    assert {"-DGGML_NATIVE=OFF", "-DGGML_CPU_ALL_VARIANTS=ON", "-DGGML_BACKEND_DL=ON"} <= set(portable)
    assert "-DGGML_NATIVE=OFF" not in flags("cpu")


@pytest.mark.skipif(platform.machine() != "x86_64", reason="about x86-64")
def test_what_a_compiler_knows_of_this_processor_but_must_not_use_is_left_out(tmp_path: Path) -> None:
    """AMX and AVX-512 FP16: a compiler that does not know one of them must not be asked to leave it out."""
    older = tmp_path / "cc"
    older.write_text('#!/bin/sh\ncase "$*" in *avx512fp16*) exit 1;; esac\n')
    older.chmod(0o755)
    left_out = "-mno-amx-tile -mno-amx-int8 -mno-amx-bf16"
    assert f"-DCMAKE_CXX_FLAGS={left_out}" in flags("cpu", CC=str(older))
    assert f"-DCMAKE_CXX_FLAGS={left_out} -mno-avx512fp16" in flags("cpu", CC="true")
    assert not any("_FLAGS" in flag for flag in flags("cpu", CC="false"))


def test_cuda_is_compiled_for_the_gpus_that_are_named_else_for_this_machines() -> None:
    named = flags("cuda", "--portable", LLORCH_CUDA_ARCHITECTURES="80-real;90-real")
    assert "-DCMAKE_CUDA_ARCHITECTURES=80-real;90-real" in named
    assert "-DCMAKE_CUDA_ARCHITECTURES=native" in flags("cuda", LLORCH_CUDA_ARCHITECTURES="")
    portable = flags("cuda", "--portable", LLORCH_CUDA_ARCHITECTURES="")
    assert [flag for flag in portable if "ARCHITECTURES" in flag] == []


def test_the_users_own_flags_come_last_and_so_win() -> None:
    assert flags("cpu", CMAKE_ARGS="-DGGML_OPENMP=OFF -DCMAKE_C_FLAGS='-O2 -g'")[-2:] == [
        "-DGGML_OPENMP=OFF",
        "-DCMAKE_C_FLAGS=-O2 -g",
    ]


@pytest.mark.model
@pytest.mark.parametrize("backend", ["cpu", "cuda", "metal", "vulkan"])
def test_llama_cpp_has_every_option_that_is_set(backend: str) -> None:
    """CMake passes over one that it does not know."""
    text = "\n".join(path.read_text() for path in build_files())
    known = set(re.findall(r"^ *option\( *(\w+)", text, re.MULTILINE))
    asked = {flag.removeprefix("-D").partition("=")[0] for flag in flags(backend, "--portable") + flags(backend)}
    assert len(asked) > 4
    assert {name for name in asked if not name.startswith("CMAKE_")} <= known


@pytest.mark.parametrize("arguments", [(), ("rocm",), ("cpu", "cuda"), ("cpu", "--fast")])
def test_what_it_does_not_know_is_a_usage_error(arguments: tuple[str, ...]) -> None:
    run = build_llama(*arguments)
    assert run.returncode == 2
    assert run.stderr.startswith("usage: build_llama.sh")


def test_vulkan_headers_that_are_missing_or_too_old_are_told_before_anything_is_built(tmp_path: Path) -> None:
    run = build_llama("vulkan", CXX="true", LLORCH_WHEELS=str(tmp_path))
    assert run.returncode == 1
    assert run.stderr.startswith("build_llama: no Vulkan headers, or older than 1.3.272")
    assert list(tmp_path.iterdir()) == []


def test_make_keeps_the_installed_backend_until_another_is_asked_for(tmp_path: Path) -> None:
    needed = [ROOT / "Makefile", ROOT / "pyproject.toml", ROOT / "constraints.txt"]
    (tmp_path / "scripts").mkdir()
    (tmp_path / ".venv").mkdir()
    for path in needed:
        shutil.copy(path, tmp_path)
    shutil.copy(SCRIPT, tmp_path / "scripts")
    for stamp in ("llama-cuda", "installed"):
        (tmp_path / ".venv" / stamp).touch()

    def make(*arguments: str) -> str:
        command = ["make", "--dry-run", ".venv/installed", *arguments]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True).stdout

    assert "build_llama.sh" not in make()
    assert "build_llama.sh cpu" in make("BACKEND=cpu")
    (tmp_path / ".llorch-test.toml").write_text("[build]\nbuild_cpu = true\n")
    assert "build_llama.sh cpu" in make()
    (tmp_path / ".llorch-test.toml").write_text("[build]\nbuild_cpu = true\nbuild_vulkan = true\n")
    assert "build_llama.sh vulkan" in make()


# ── the C++ runtime ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.skipif(platform.system() != "Linux", reason="about ELF")
@pytest.mark.parametrize(("link", "is_refused"), [((), False), (("-static-libstdc++",), True)])
def test_a_library_with_a_private_c_plus_plus_runtime_is_refused(
    tmp_path: Path, link: tuple[str, ...], *, is_refused: bool
) -> None:
    source, library = tmp_path / "regex.cpp", tmp_path / "libregex.so"
    source.write_text('#include <regex>\nbool f(const char* s) { return std::regex_match(s, std::regex("a+")); }\n')
    compiler = shutil.which("g++")
    assert compiler is not None
    subprocess.run([compiler, "-shared", "-fPIC", *link, str(source), "-o", str(library)], check=True, timeout=60)
    run = build_llama("--check-runtime", str(library))
    assert (run.returncode == 1) is is_refused
    assert ("build it with a compiler that links libstdc++ dynamically" in run.stderr) is is_refused


BOTH = sorted(
    str(path.relative_to(ROOT).with_suffix("")).replace("/", ".")
    for room in ("worker/parity", "tools/cuda_check")
    for path in (ROOT / room).rglob("[a-z]*.py")
)


@pytest.mark.long
@pytest.mark.parametrize("module", [*BOTH, "worker.commands.parity"])
def test_llama_cpp_is_loaded_before_numpy_wherever_both_are(module: str) -> None:
    """The first library loaded is the one whose objects all use, if each has a private runtime."""
    told = "import sys, importlib; importlib.import_module(sys.argv[1]); print(*sys.modules)"
    run = subprocess.run(
        [sys.executable, "-c", told, module], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    names = run.stdout.split()
    # The module that loads the library; the package's own name moves behind all that it imports.
    if "numpy" in names and "llama_cpp.llama_cpp" in names:
        assert names.index("llama_cpp.llama_cpp") < names.index("numpy")
