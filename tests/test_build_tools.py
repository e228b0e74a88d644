"""scripts/build_llama_tool.sh: llama.cpp's own tools, with our flags or with llama.cpp's own, each built once; and
scripts/bench_peers.sh, which measures beside them."""

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "scripts" / "build_llama_tool.sh"
BENCH = SCRIPT.with_name("bench_peers.sh")

CMAKE = """\
printf '%s|' "$CC" "$CXX" "$@" >>"$LOG"; echo >>"$LOG"
[ "$1" = --build ] || exit 0
mkdir -p "$2/bin"
build=$2; shift 3
for tool; do
    case $tool in --*) break ;; esac
    echo >"$build/bin/$tool"; chmod +x "$build/bin/$tool"
done"""
"""Writes down how it was called, and makes what it is asked for."""
NO_AMX = "-mno-amx-tile -mno-amx-int8 -mno-amx-bf16"


class Checkout:
    """A folder with the script beside stand-ins: of what it asks for the flags and the compiler, and of cmake."""

    def __init__(self, folder: Path, flags: str) -> None:
        self.folder, self.log = folder, folder / "log"
        scripts, programs = folder / "scripts", folder / "bin"
        for path in (scripts, programs, folder / "cache" / "llorch-worker" / "llama.cpp-1.2.3" / "source"):
            path.mkdir(parents=True)
        for script in (SCRIPT, BENCH):
            shutil.copy(script, scripts)
        self._program(
            scripts / "build_llama.sh", f'[ "$1" = --compiler ] && echo "clang-1 clang++-1" || echo "{flags}"'
        )
        self._program(programs / "python", '[ "$1" = -c ] && echo 1.2.3 || printf "%s\\n" "$@"')
        self._program(programs / "cmake", CMAKE)

    def build(self, *arguments: str, **environment: str) -> list[Path]:
        return [Path(line) for line in self._run(SCRIPT.name, arguments, environment)]

    def measure(self, *arguments: str) -> list[str]:
        """The arguments of Python."""
        return self._run(BENCH.name, arguments, {})

    def _run(self, script: str, arguments: Sequence[str], environment: Mapping[str, str]) -> list[str]:
        found = subprocess.run(
            [self.folder / "scripts" / script, *arguments],
            env={
                "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
                "PYTHON": "python",
                "XDG_CACHE_HOME": str(self.folder / "cache"),
                "LOG": str(self.log),
                **environment,
            },
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        return found.stdout.splitlines()

    def configured(self) -> list[list[str]]:
        """The calls of cmake to configure, since this was asked last."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        self.log.unlink(missing_ok=True)
        return [line.split("|")[:-1] for line in lines if "--build" not in line]

    @staticmethod
    def _program(path: Path, script: str) -> None:
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path, "-DGGML_RPC=OFF -DCMAKE_C_FLAGS='-mno-avx512fp16'")


def test_tools_are_built_with_our_flags_and_compiler_once(checkout: Checkout) -> None:
    server, bench = checkout.build("llama-server", "llama-bench")
    assert [server.name, bench.name] == ["llama-server", "llama-bench"]
    assert os.access(server, os.X_OK)
    ((cc, cxx, *arguments),) = checkout.configured()
    assert (cc, cxx) == ("clang-1", "clang++-1")
    assert {"-DGGML_RPC=OFF", "-DCMAKE_C_FLAGS=-mno-avx512fp16"} <= set(arguments)
    assert checkout.build("llama-server") == [server]
    assert checkout.configured() == []


def test_a_stock_build_has_the_compiler_and_none_of_our_flags_and_a_place_of_its_own(checkout: Checkout) -> None:
    (ours,) = checkout.build("llama-server")
    checkout.configured()
    (stock,) = checkout.build("--stock", "llama-server")
    ((cc, cxx, *arguments),) = checkout.configured()
    assert (cc, cxx) == ("clang-1", "clang++-1")
    assert not [argument for argument in arguments if "GGML" in argument or "FLAGS" in argument]
    assert stock != ours


def test_where_no_compiler_is_sound_for_amx_a_stock_build_is_without_it_too(tmp_path: Path) -> None:
    checkout = Checkout(tmp_path, f"-DGGML_RPC=OFF -DCMAKE_C_FLAGS='{NO_AMX} -mno-avx512fp16'")
    checkout.build("--stock", "llama-server")
    ((_, _, *arguments),) = checkout.configured()
    assert [argument for argument in arguments if "FLAGS" in argument] == [
        f"-DCMAKE_C_FLAGS={NO_AMX}",
        f"-DCMAKE_CXX_FLAGS={NO_AMX}",
    ]


def test_flags_of_the_environment_come_last_and_make_another_build(checkout: Checkout) -> None:
    (stock,) = checkout.build("--stock", "llama-server")
    checkout.configured()
    (other,) = checkout.build("--stock", "llama-server", CMAKE_ARGS="-DGGML_NATIVE=OFF")
    ((_, _, *arguments),) = checkout.configured()
    assert "-DGGML_NATIVE=OFF" in arguments
    assert other != stock


@pytest.mark.parametrize("arguments", [(), ("--stock",)])
def test_without_a_tool_it_says_how_to_name_one(checkout: Checkout, arguments: tuple[str, ...]) -> None:
    with pytest.raises(subprocess.CalledProcessError) as failed:
        checkout.build(*arguments)
    assert failed.value.returncode == 2
    assert "name a tool" in failed.value.stderr


def test_the_bench_has_stock_tools_and_those_with_our_flags_beside_it(checkout: Checkout) -> None:
    measured = checkout.measure("load", "--rounds", "3")
    (stock,), (ours,) = checkout.build("--stock", "llama-server"), checkout.build("llama-server")
    assert measured[:5] == ["-m", "tools.bench", "load", "--our-flags-binary", str(ours)]
    assert measured[5:9] == ["--peer-binary", str(stock), "--llama-bench", str(stock.with_name("llama-bench"))]
    assert measured[9:] == ["--out", ".bench", "--rounds", "3"]
