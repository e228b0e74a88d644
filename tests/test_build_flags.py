"""scripts/build_llama.sh: the one place where llama.cpp's build flags are told."""

import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Literal

import pytest

from tests.llama_source import build_files
from tests.scripts import ROOT, program

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


def set_as_named(*found: str) -> dict[str, str]:
    """The values of what CMake is given, by name."""
    return dict(flag.removeprefix("-D").split("=", 1) for flag in found)


@pytest.mark.parametrize(
    ("arguments", "environment", "wanted"),
    [
        (("cuda",), {}, {"GGML_CUDA": "ON", "GGML_CUDA_NCCL": "OFF", "GGML_RPC_RDMA": "OFF", "LLAMA_OPENSSL": "OFF"}),
        (("metal",), {}, {"GGML_METAL": "ON", "GGML_CUDA": None}),
        (("vulkan",), {}, {"GGML_VULKAN": "ON", "GGML_CUDA": None}),
        (("cpu",), {}, {"GGML_CUDA": None, "GGML_METAL": None, "GGML_VULKAN": None, "GGML_NATIVE": None}),
        (
            ("cpu", "--portable"),
            {},
            {"GGML_NATIVE": "OFF", "GGML_CPU_ALL_VARIANTS": "ON", "GGML_BACKEND_DL": "ON"},
        ),
        (
            ("cuda", "--portable"),
            {"LLORCH_CUDA_ARCHITECTURES": "80-real;90-real"},
            {"CMAKE_CUDA_ARCHITECTURES": "80-real;90-real"},
        ),
        (("cuda",), {"LLORCH_CUDA_ARCHITECTURES": ""}, {"CMAKE_CUDA_ARCHITECTURES": "native"}),
        (("cuda", "--portable"), {"LLORCH_CUDA_ARCHITECTURES": ""}, {"CMAKE_CUDA_ARCHITECTURES": None}),
    ],
)
def test_a_build_has_what_its_backend_and_its_machines_need_and_nothing_that_is_picked_up_by_accident(
    arguments: tuple[str, ...], environment: dict[str, str], wanted: dict[str, str | None]
) -> None:
    found = set_as_named(*flags(*arguments, **environment))
    assert {name: found.get(name) for name in wanted} == wanted


def test_the_users_own_flags_come_last_and_so_win() -> None:
    own = ["-DGGML_OPENMP=OFF", "-DCMAKE_C_FLAGS=-O2 -g"]
    assert flags("cpu", CMAKE_ARGS="-DGGML_OPENMP=OFF -DCMAKE_C_FLAGS='-O2 -g'")[-2:] == own


@pytest.mark.model
@pytest.mark.parametrize("backend", ["cpu", "cuda", "metal", "vulkan"])
def test_llama_cpp_has_every_option_that_is_set(backend: str) -> None:
    """CMake passes over one that it does not know."""
    text = "\n".join(path.read_text() for path in build_files())
    known = set(re.findall(r"^ *option\( *(\w+)", text, re.MULTILINE))
    all_flags = flags(backend, "--portable") + flags(backend, "--tools")
    asked = {flag.removeprefix("-D").partition("=")[0] for flag in all_flags}
    assert len(asked) > 4
    assert {name for name in asked if not name.startswith("CMAKE_")} <= known


@pytest.mark.parametrize("backend", ["cpu", "cuda", "metal", "vulkan"])
def test_the_peers_of_a_build_have_its_flags(backend: str) -> None:
    """The flags that only the tools bring change nothing that is compiled for the wheel."""
    alone, beside = flags(backend), flags(backend, "--tools")
    assert set(alone) <= set(beside)
    more = set(beside) - set(alone)
    assert {"-DLLAMA_BUILD_TOOLS=ON", "-DLLAMA_BUILD_SERVER=ON"} <= more
    assert not any(flag.startswith(("-DGGML", "-DCMAKE_C_", "-DCMAKE_CXX_", "-DCMAKE_CUDA_")) for flag in more)


SDIST_NAME = "llama_cpp_python-0.0.0"
SDIST_LINE = "    add_subdirectory(tools)\n"

PYTHON_STAND_IN = """
while [ $# -gt 0 ]; do
    case $1 in
        download | wheel) action=$1 ;;
        --dest | --wheel-dir) folder=$2 ;;
        build-dir=*) tree=${{1#build-dir=}} ;;
        -e) exit 0 ;;
    esac
    last=$1
    shift
done
case $action in
    download) cp "{sdist}" "$folder/" ;;
    wheel)
        cp "$last/CMakeLists.txt" "{folder}/outer.txt"
        cp "$last/vendor/llama.cpp/CMakeLists.txt" "{folder}/inner.txt"
        mkdir -p "$tree/bin"
        echo server >"$tree/bin/llama-server"
        echo >"$folder/a.whl"
        echo >>"{folder}/compiled"
        ;;
esac
"""
"""Downloads a source distribution of two files, and leaves what a build of it leaves."""


def test_one_build_gives_the_wheel_and_the_tools_that_use_its_libraries(tmp_path: Path) -> None:
    source = tmp_path / SDIST_NAME / "vendor" / "llama.cpp"
    source.mkdir(parents=True)
    (source / "CMakeLists.txt").write_text(SDIST_LINE)
    (source.parents[1] / "CMakeLists.txt").write_text("")
    sdist = tmp_path / f"{SDIST_NAME}.tar.gz"
    with tarfile.open(sdist, "w:gz") as archive:
        archive.add(tmp_path / SDIST_NAME, SDIST_NAME)
    python = program(tmp_path / "python", PYTHON_STAND_IN.format(sdist=sdist, folder=tmp_path))
    variables = {"PYTHON": python, "LLORCH_WHEELS": str(tmp_path / "wheels"), "LLORCH_STOCK": "1"}
    printed = [build_llama("cpu", "--tools", **variables) for _ in range(2)]
    assert printed[0].returncode == 0, printed[0].stderr
    assert printed[0].stdout == printed[1].stdout
    wheel, tools = map(Path, printed[0].stdout.splitlines())
    assert wheel.suffix == ".whl"
    assert (tools / "llama-server").read_text() == "server\n"
    assert (tmp_path / "compiled").read_text() == "\n"
    # None of the other tools is compiled, and none is installed into the wheel.
    assert (tmp_path / "inner.txt").read_text() == "    add_subdirectory(tools EXCLUDE_FROM_ALL)\n"
    assert "ALL DEPENDS llama-server llama-bench llama-batched-bench" in (tmp_path / "outer.txt").read_text()
    alone = build_llama("cpu", **variables).stdout.splitlines()
    assert [Path(line).suffix for line in alone] == [".whl"]


@pytest.mark.model
def test_llama_cpp_adds_its_tools_in_the_line_that_is_changed() -> None:
    (top,) = [
        path for path in build_files() if path.name == "CMakeLists.txt" and 'project("llama.cpp"' in path.read_text()
    ]
    assert SDIST_LINE in top.read_text()


@pytest.mark.parametrize(
    "arguments", [(), ("rocm",), ("cpu", "cuda"), ("cpu", "--fast"), ("--flags", "--compiler", "cpu")]
)
def test_what_it_does_not_know_is_a_usage_error(arguments: tuple[str, ...]) -> None:
    run = build_llama(*arguments)
    assert run.returncode == 2
    assert run.stderr.startswith("usage: build_llama.sh")


def test_vulkan_headers_that_are_missing_or_too_old_are_reported_before_anything_is_built(tmp_path: Path) -> None:
    run = build_llama("vulkan", CXX="true", LLORCH_WHEELS=str(tmp_path))
    assert run.returncode == 1
    assert run.stderr.startswith("build_llama: no Vulkan headers, or older than 1.3.272")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_build_that_is_stopped_leaves_only_its_log(tmp_path: Path, sent: signal.Signals, code: int) -> None:
    """The unpacked sources have 290 MB. As a terminal does, the signal goes to all processes of the build."""
    began, scratch, wheels = tmp_path / "began", tmp_path / "scratch", tmp_path / "wheels"
    os.mkfifo(began)
    scratch.mkdir()
    python = program(tmp_path / "python", f'echo >"{began}"\nexec sleep 600')
    variables = {"CC": "true", "CXX": "true", "PYTHON": python, "TMPDIR": str(scratch), "LLORCH_WHEELS": str(wheels)}
    with subprocess.Popen(
        [SCRIPT, "cpu"], env={**os.environ, **variables}, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as build:
        assert began.read_text() == "\n"
        assert [path.name for path in wheels.rglob("building.*")]
        os.killpg(build.pid, sent)
        _, said = build.communicate(timeout=60)
    assert build.returncode == code
    assert list(scratch.iterdir()) == []
    (log,) = [path for path in wheels.rglob("*") if path.is_file() or path.name.startswith("building.")]
    assert log.name == "build.log"
    assert str(log) in said


@pytest.mark.parametrize(
    ("chosen", "installed", "arguments", "built"),
    [
        (None, None, (), "cpu"),
        (None, "cuda", (), None),
        (None, "cuda", ("BACKEND=cpu",), "cpu"),
        ("build_cpu = true", "cuda", (), "cpu"),
        ("build_cpu = true\n# build_cuda = true\nbuild_metal = false", None, (), "cpu"),
        ("build_vulkan=true # llvmpipe", "cuda", (), "vulkan"),
        ("build_cuda = true", None, ("BACKEND=metal",), "metal"),
    ],
)
def test_make_builds_what_is_asked_for_else_what_the_file_chooses_else_keeps_what_is_installed(
    tmp_path: Path, chosen: str | None, installed: str | None, arguments: tuple[str, ...], built: str | None
) -> None:
    for name in ("Makefile", "pyproject.toml", "constraints.txt", "scripts/build_llama.sh"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    if chosen is not None:
        (tmp_path / ".llorch-test.toml").write_text(f"[build]\n{chosen}\n")
    if installed is not None:
        (tmp_path / ".venv").mkdir()
        for stamp in (f"llama-{installed}", "installed"):
            (tmp_path / ".venv" / stamp).touch()
    command = ["make", "--dry-run", ".venv/installed", *arguments]
    said = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True).stdout
    assert re.findall(r"build_llama\.sh (\w+)", said)[:1] == [built][: built is not None]


# ── the compiler ─────────────────────────────────────────────────────────────────────────────────

ON_X86 = pytest.mark.skipif(
    (platform.system(), platform.machine()) != ("Linux", "x86_64"), reason="about Linux on x86-64"
)
AMX = "flags : fpu sse4_2 avx512f avx512_vnni amx_tile amx_int8 avx_vnni"
NO_AMX = "flags : fpu sse4_2 avx512f avx512_vnni"
WITHOUT_AMX = "-mno-amx-tile -mno-amx-int8 -mno-amx-bf16"

Judged = Literal["sound", "unsound", "without OpenMP"]

STAND_IN = """
case "$*" in *"{unknown}"*) exit 1;; esac
output= && while [ $# -gt 0 ]; do [ "$1" != -o ] || output=$2; shift; done
case $output in
    */config.s) printf '\\tldtilecfg\\t-72(%%rsp)\\n' >"$output" ;;
    ?*) printf '#!/bin/sh\\nexit {exit}\\n' >"$output" && chmod +x "$output" ;;
esac
"""
"""A compiler that writes what the check looks at, and no more."""


class Machine:
    """A folder with the script, for a processor that is told, and a PATH with the compilers that are told alone."""

    def __init__(self, folder: Path, cpuinfo: str = NO_AMX) -> None:
        self.folder, self.bin = folder, folder / "bin"
        self.bin.mkdir()
        (folder / "scripts").mkdir()
        (folder / "cpuinfo").write_text(cpuinfo + "\n")
        self.script = folder / "scripts" / SCRIPT.name
        self.script.write_text(SCRIPT.read_text().replace("/proc/cpuinfo", str(folder / "cpuinfo")))
        self.script.chmod(0o755)
        shutil.copy(SCRIPT.parent / "tile_product.c", folder / "scripts")
        for tool in ("uname", "dirname", "mktemp", "rm", "sed", "grep", "sh", "chmod"):
            found = shutil.which(tool)
            assert found is not None
            (self.bin / tool).symlink_to(found)

    def has(self, compiler: str, judged: Judged = "sound", *, unknown: str = "no such flag") -> "Machine":
        """A machine with a C compiler and the C++ compiler next to it."""
        exit_code = 1 if judged == "unsound" else 0
        refused = "-fopenmp" if judged == "without OpenMP" else unknown
        plus = {"cc": "c++"}.get(compiler, compiler.replace("clang", "clang++").replace("gcc", "g++"))
        for name in (compiler, plus):
            program(self.bin / name, STAND_IN.format(unknown=refused, exit=exit_code))
        return self

    def run(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.script, *arguments],
            env={"PATH": str(self.bin), **environment},
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )


@ON_X86
@pytest.mark.parametrize(
    ("here", "chosen"),
    [
        ({"cc": "sound", "clang-19": "sound"}, "cc c++"),
        ({"cc": "unsound", "clang-19": "sound"}, "clang-19 clang++-19"),
        ({"cc": "unsound", "clang-19": "without OpenMP", "gcc-14": "sound"}, "gcc-14 g++-14"),
        ({"cc": "unsound", "clang": "sound", "gcc-13": "sound"}, "clang clang++"),
        ({"cc": "unsound", "clang-18": "unsound", "gcc-13": "unsound"}, "cc c++"),
        ({"clang-17": "sound"}, "clang-17 clang++-17"),
        ({}, "cc c++"),
    ],
)
@pytest.mark.parametrize(("processor", "arguments"), [(AMX, ("cpu",)), (AMX, ()), (NO_AMX, ("cpu", "--portable"))])
def test_the_compiler_is_the_first_that_compiles_amx_soundly(
    tmp_path: Path, here: dict[str, Judged], chosen: str, processor: str, arguments: tuple[str, ...]
) -> None:
    machine = Machine(tmp_path, processor)
    for compiler, judged in here.items():
        machine.has(compiler, judged)
    run = machine.run("--compiler", *arguments)
    assert run.stdout == chosen + "\n"
    # One that is not there is told of before the build, as ever; a way out is told where the best one will not do.
    assert ("install clang-19 and libomp-19-dev" in run.stderr) is ("sound" not in here.values())


@ON_X86
def test_a_clang_without_openmp_is_named(tmp_path: Path) -> None:
    run = Machine(tmp_path, AMX).has("cc", "unsound").has("clang-19", "without OpenMP").run("--compiler")
    assert "without OpenMP, so not used: clang-19" in run.stderr


@ON_X86
def test_a_compiler_that_is_asked_for_is_used_and_no_other(tmp_path: Path) -> None:
    machine = Machine(tmp_path, AMX).has("cc").has("clang-19").has("clang-18", "unsound")
    assert machine.run("--compiler", CC="clang-19").stdout == "clang-19 clang++-19\n"
    assert machine.run("--compiler", CXX="clang++-19").stdout == "cc clang++-19\n"
    run = machine.run("--compiler", CC="clang-18")
    assert run.stdout == "clang-18 clang++-18\n"
    assert "(clang-18 does not)" in run.stderr


@ON_X86
def test_amx_is_left_out_where_no_compiler_is_sound_and_avx_512_fp16_always(tmp_path: Path) -> None:
    """A compiler that does not know one of them must not be asked to leave it out."""

    def left_out(machine: Machine) -> str:
        found = shlex.split(machine.run("--flags", "cpu").stdout)
        c = [flag.partition("=")[2] for flag in found if flag.startswith("-DCMAKE_C_FLAGS=")]
        assert c == [flag.partition("=")[2] for flag in found if flag.startswith("-DCMAKE_CXX_FLAGS=")]
        return " ".join(c)

    sound, unsound, older = (tmp_path / name for name in ("sound", "unsound", "older"))
    for folder in (sound, unsound, older):
        folder.mkdir()
    assert left_out(Machine(sound, AMX).has("cc")) == "-mno-avx512fp16"
    assert left_out(Machine(unsound, AMX).has("cc", "unsound")) == f"{WITHOUT_AMX} -mno-avx512fp16"
    assert left_out(Machine(older, AMX).has("cc", "unsound", unknown="avx512fp16")) == WITHOUT_AMX


SOUND = '__asm__ volatile ("ldtilecfg %X0" :: "m" (*(const char (*)[64])(p)))'
UNSOUND = '__asm__ volatile ("ldtilecfg %X0" :: "m" (*(const char (*)[8])(p)))'
"""GCC bug 114098: of 64 bytes that are read, the compiler is told of 8."""


@ON_X86
@pytest.mark.parametrize(("intrinsic", "is_sound"), [(SOUND, True), (UNSOUND, False)])
def test_a_compiler_that_loses_what_configures_the_tiles_is_found_out(
    tmp_path: Path, intrinsic: str, *, is_sound: bool
) -> None:
    """The machine's own compiler is given the intrinsic in both ways: its version says nothing."""
    machine = Machine(tmp_path, AMX)
    header, real = tmp_path / "tiles.h", shutil.which("cc")
    assert real is not None
    header.write_text(f"#include <immintrin.h>\n#undef _tile_loadconfig\n#define _tile_loadconfig(p) {intrinsic}\n")
    for name, includes in (("cc", f"-include {header}"), ("c++", "")):
        includes_it = f'case "$*" in *.c*) set -- {includes} "$@";; esac'
        program(machine.bin / name, f'PATH={os.environ["PATH"]}\n{includes_it}\nexec {real} "$@"')
    run = machine.run("--compiler")
    assert (run.stderr == "") is is_sound, run.stderr


# ── the C++ runtime ──────────────────────────────────────────────────────────────────────────────


REGEX = '#include <regex>\nbool f(const char* s) { return std::regex_match(s, std::regex("a+")); }\n'
RUNTIME_FIRST = next(
    flag.partition("=")[2] for flag in flags("cuda") if flag.startswith("-DCMAKE_SHARED_LINKER_FLAGS=")
).split()
"""A build for CUDA adds these, because some compilers have -static-libstdc++ in themselves."""


@pytest.mark.skipif(platform.system() != "Linux", reason="about ELF")
def test_a_library_with_a_private_c_plus_plus_runtime_is_refused_and_those_in_c_pass(tmp_path: Path) -> None:
    """Each library is looked at."""
    (tmp_path / "regex.cpp").write_text(REGEX)
    (tmp_path / "plain.c").write_text("int f(void) { return 1; }\n")
    private, *public = (tmp_path / f"lib{name}.so" for name in ("private", "shared", "first", "c"))
    linked = [("-static-libstdc++",), (), ("-static-libstdc++", *RUNTIME_FIRST), ("-static-libstdc++",)]
    sources = ["regex.cpp"] * 3 + ["plain.c"]
    for library, link, source in zip((private, *public), linked, sources, strict=True):
        compiler = shutil.which("gcc" if source == "plain.c" else "g++")
        assert compiler is not None
        made = [compiler, "-shared", "-fPIC", *link, str(tmp_path / source), "-o", str(library)]
        subprocess.run(made, check=True, timeout=60)
    assert build_llama("--check-runtime", *map(str, public)).returncode == 0
    run = build_llama("--check-runtime", *map(str, public), str(private))
    assert run.returncode == 1
    assert f"{private} has a C++ runtime of its own" in run.stderr
    assert "build it with a compiler that links libstdc++ dynamically" in run.stderr


BOTH = sorted(
    str(path.relative_to(ROOT).with_suffix("")).replace("/", ".")
    for room in ("parity", "tools/cuda_check")
    for path in (ROOT / room).rglob("[a-z]*.py")
)


@pytest.mark.long
@pytest.mark.parametrize("module", BOTH)
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
