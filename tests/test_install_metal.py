"""scripts/install_metal.sh, with stand-ins for Apple's tools, for make and for the worker: what it checks and in what
order, what it builds, and when it calls the result good."""

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.scripts import SCRIPTS
from tests.scripts import program as write_program

SCRIPT = SCRIPTS / "install_metal.sh"
METAL = '{"devices": [{"name": "MTL0", "flag": "metal"}]}'
CPU_ONLY = '{"devices": [{"name": "CPU", "flag": "cpu"}]}'

Program = Callable[[str, str], str]
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def program(tmp_path: Path) -> Program:
    """Make a program of that name the first on PATH."""
    (tmp_path / "bin").mkdir()

    return lambda name, script: write_program(tmp_path / "bin" / name, script)


def worker(devices: str = METAL, *, on_cpu: str = " Paris.", on_metal: str = " Paris.") -> str:
    """A `make` that installs a worker with these devices and answers."""
    return f"""echo "$@" >>made; mkdir -p .venv/bin; cat >.venv/bin/llorch-worker <<'WORKER'
#!/bin/sh
case "$*" in
    devices*) echo '{devices}' ;;
    *"--device cpu") echo '{on_cpu}' ;;
    *"--device metal") echo '{on_metal}' ;;
esac
WORKER
chmod +x .venv/bin/llorch-worker"""


@pytest.fixture
def run(tmp_path: Path, program: Program) -> Run:
    """Run a copy of the script in a tree of its own, on a Mac where nothing is missing unless the test says so."""
    script = tmp_path / "tree with space" / "scripts" / SCRIPT.name
    script.parent.mkdir(parents=True)
    shutil.copy(SCRIPT, script)
    program("uname", 'case $1 in -s) echo Darwin ;; -m) echo "${MACHINE:-arm64}" ;; esac')
    program("sysctl", "exit 1")
    program("xcode-select", "echo /Library/Developer/CommandLineTools")
    program("c++", "")
    program("python3", "echo arm64 1")
    program("make", worker())

    def run(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
        env = {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", **environ}
        return subprocess.run([script, *arguments], env=env, capture_output=True, text=True, check=False, timeout=60)

    return run


def made(tmp_path: Path) -> list[str]:
    """The calls of make."""
    path = tmp_path / "tree with space" / "made"
    return path.read_text().splitlines() if path.exists() else []


def test_on_a_mac_it_builds_for_metal_and_compares_the_answers(run: Run, tmp_path: Path) -> None:
    done = run()
    assert done.returncode == 0, done.stderr
    assert made(tmp_path) == ["PYTHON=python3 BACKEND=metal .venv/installed"]
    assert "Metal answers as the CPU does: Paris." in done.stdout
    assert "--device metal" in done.stdout.splitlines()[-1]


def test_cpu_only_builds_without_metal_and_asks_the_cpu_alone(run: Run, program: Program, tmp_path: Path) -> None:
    program("make", worker(CPU_ONLY, on_metal="wrong"))
    done = run("--cpu-only", PYTHON="python3")
    assert done.returncode == 0, done.stderr
    assert made(tmp_path) == ["PYTHON=python3 BACKEND=cpu .venv/installed"]
    assert "the CPU answers: Paris." in done.stdout


@pytest.mark.parametrize(
    ("name", "script", "words"),
    [
        ("uname", "echo Linux", "this is for macOS"),
        ("uname", "case $1 in -s) echo Darwin ;; -m) echo x86_64 ;; esac", "has an Intel processor"),
        ("xcode-select", "exit 2", "xcode-select --install"),
        ("python3", "echo x86_64 1", "python3 is for x86_64"),
        ("python3", "echo arm64 0", "older than Python 3.11"),
    ],
)
def test_what_is_missing_is_reported_with_the_remedy_before_anything_is_built(
    run: Run, program: Program, tmp_path: Path, *, name: str, script: str, words: str
) -> None:
    program(name, script)
    done = run()
    assert done.returncode == 1
    assert done.stderr.startswith("install_metal: ")
    assert words in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert made(tmp_path) == []


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"MACHINE": "x86_64"}, "start it again with arch -arm64"),
        ({"PYTHON": "python3.99"}, "there is no python3.99"),
    ],
)
def test_rosetta_is_not_taken_for_an_intel_mac_and_a_python_that_is_not_there_is_named(
    run: Run, program: Program, environ: dict[str, str], words: str
) -> None:
    program("sysctl", "echo 1")
    done = run(**environ)
    assert done.returncode == 1
    assert words in done.stderr


@pytest.mark.parametrize(
    ("installed", "words"),
    [
        (worker(CPU_ONLY), "sees no Metal device"),
        (worker(on_metal=" London."), "Metal answers ' London.' where the CPU answers ' Paris.'"),
        ("exit 1", ""),
    ],
)
def test_what_does_not_work_is_not_called_installed(run: Run, program: Program, installed: str, words: str) -> None:
    program("make", installed)
    done = run()
    assert done.returncode == 1
    assert words in done.stderr
    assert "serve it with" not in done.stdout


@pytest.mark.parametrize("arguments", [("--gpu",), ("--cpu-only", "twice")])
def test_what_it_does_not_know_is_a_usage_error(run: Run, arguments: tuple[str, ...]) -> None:
    done = run(*arguments)
    assert (done.returncode, done.stderr) == (2, "usage: install_metal.sh [--cpu-only]\n")
