"""The self-contained wheel of scripts/build_wheel.sh: what is in it, and that it serves where no compiler is.

Each Python of this machine from 3.11 on installs it in an empty environment.
"""

import os
import re
import shutil
import subprocess
import sys
import time
import zipfile
from dataclasses import dataclass
from email.message import Message
from email.parser import BytesParser
from pathlib import Path

import psutil
import pytest

from tests.worker_process import WorkerProcess, text_of
from worker.models.upstream.numbers import PINNED_VERSION

pytestmark = [pytest.mark.wheel, pytest.mark.process, pytest.mark.timeout(1800)]

ROOT = Path(__file__).parent.parent
MAX_BYTES = 60 * 1000**2
INSTALL_TIMEOUT_S = 1500
JOB = {"prompt": "The capital of France is", "max_tokens": 8}
VENDORED = "worker/_vendor/llama_cpp"
SYSTEM_LIBRARIES = r"(libc|libm|libstdc\+\+|libgcc_s|ld-linux-[\w-]+|libgomp-\w+)\.so\.[\d.]+"
"""The libraries of every Linux, and the copy of GCC's OpenMP that auditwheel makes."""


def pythons() -> list[str]:
    """The interpreters of this machine that the worker supports, one of each version."""
    names = [f"python3.{minor}" for minor in range(11, 15)]
    found = {path.name: str(path) for path in sorted(Path.home().glob(".pyenv/versions/*/bin/python3.*"))}
    found |= {name: path for name in names if (path := shutil.which(name)) and _answers(path)}
    return [found[name] for name in names if name in found]


def _answers(python: str) -> bool:
    """True unless it is a stand-in for a version that is not chosen, as pyenv makes them."""
    return subprocess.run([python, "-c", "import venv"], capture_output=True, check=False).returncode == 0


@dataclass(frozen=True)
class Installed:
    """An environment with nothing but the wheel and what it requires. Its PATH has no compiler."""

    folder: Path
    seconds: float

    @property
    def variables(self) -> dict[str, str]:
        return {"PATH": str(self.folder / "bin"), "PYTHONPATH": ""}

    def run(self, *command: str) -> str:
        """The output of a command of the environment."""
        ran = subprocess.run(
            [self.folder / "bin" / command[0], *command[1:]],
            cwd=self.folder,
            env={**os.environ, **self.variables},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            timeout=INSTALL_TIMEOUT_S,
        )
        return ran.stdout

    def worker(self, model: Path) -> WorkerProcess:
        command = (str(self.folder / "bin" / "llorch-worker"),)
        return WorkerProcess("--model", str(model), "--port", "0", command=command, environment=self.variables)


def install(python: str, wheel: Path, folder: Path) -> Installed:
    subprocess.run([python, "-m", "venv", folder], check=True)
    began_s = time.monotonic()
    Installed(folder, 0.0).run("python", "-m", "pip", "install", "--quiet", "--no-cache-dir", str(wheel))
    return Installed(folder, time.monotonic() - began_s)


def script(name: str, *arguments: str) -> Path:
    """The file that a script of this tree made and named."""
    made = subprocess.run(
        [ROOT / "scripts" / name, *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHON": sys.executable},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return ROOT / made.stdout.strip()


@pytest.fixture(scope="module")
def llama() -> Path:
    """The binding and llama.cpp, which the wheel brings."""
    return script("build_llama.sh", "cpu", "--portable")


@pytest.fixture(scope="module")
def wheel(llama: Path) -> Path:
    return script("build_wheel.sh", "cpu", str(llama))


@pytest.fixture(scope="module")
def unpacked(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("unpacked")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    return install(sys.executable, wheel, tmp_path_factory.mktemp("installed") / "venv")


@pytest.fixture(scope="module")
def libraries(unpacked: Path) -> list[Path]:
    return sorted((unpacked / VENDORED / "lib").iterdir())


def headers(unpacked: Path, name: str) -> Message:
    (path,) = unpacked.glob(f"*.dist-info/{name}")
    return BytesParser().parsebytes(path.read_bytes())


def dynamic(library: Path, kind: str) -> list[str]:
    """The values of that kind in a library's dynamic section."""
    command = ("readelf", "-d", str(library))
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return re.findall(rf"\({kind}\).*\[(.*)\]", listed)


# ── what is in it ────────────────────────────────────────────────────────────────────────────────


def test_it_is_small_and_for_every_python_3_on_the_linux_that_auditwheel_found(wheel: Path, unpacked: Path) -> None:
    tag = wheel.stem.split("-", 2)[2]
    assert re.fullmatch(r"py3-none-manylinux_2_\d+_\w+", tag)
    assert headers(unpacked, "WHEEL").get_all("Tag") == [tag]
    assert wheel.stat().st_size <= MAX_BYTES
    sys.stdout.write(f"\n{wheel.name}: {wheel.stat().st_size / 1e6:.1f} MB\n")


def test_it_requires_no_package_that_must_be_compiled(installed: Installed, unpacked: Path) -> None:
    """An environment without a compiler has all it requires, and the binding is not among that."""
    required = headers(unpacked, "METADATA").get_all("Requires-Dist", [])
    assert [line for line in required if "llama" in line] == []
    assert installed.run("python", "-m", "pip", "check").strip() == "No broken requirements found."


def test_it_has_the_code_for_every_processor_once(llama: Path, libraries: list[Path]) -> None:
    with zipfile.ZipFile(llama) as archive:
        built = set(re.findall(r"/(libggml-cpu-\w+\.so)\b", "\n".join(archive.namelist())))
    has = [path.name for path in libraries]
    assert built
    assert built - set(has) <= {"libggml-cpu-cannonlake.so"}
    assert len({name.partition(".so")[0] for name in has}) == len(has)


def test_its_libraries_find_each_other_and_nothing_of_the_machine_that_built_them(libraries: list[Path]) -> None:
    names = {path.name for path in libraries}
    for library in libraries:
        needed = set(dynamic(library, "NEEDED")) - names
        assert [name for name in needed if not re.fullmatch(SYSTEM_LIBRARIES, name)] == [], library
        (places,) = dynamic(library, "RUNPATH") or dynamic(library, "RPATH")
        assert all(place.startswith("$ORIGIN") for place in places.split(":")), library


def test_it_has_the_licence_of_all_it_brings(unpacked: Path) -> None:
    (folder,) = unpacked.glob("*.dist-info/licenses")
    named = headers(unpacked, "METADATA").get_all("License-File", [])
    assert all((folder / name).read_text().strip() for name in named)
    brought = {name.partition(".LICENSE")[0].rpartition("/")[2] for name in named}
    assert {"LICENSE", "llama-cpp-python", "llama.cpp"} <= brought
    assert brought & {"libomp.so.5", "libgomp.copyright", "libgomp.COPYING.RUNTIME"}


def test_its_bill_names_the_binding(unpacked: Path) -> None:
    (bill,) = unpacked.glob("*.dist-info/sboms/vendored.cdx.json")
    assert f"pkg:pypi/llama-cpp-python@{PINNED_VERSION}" in bill.read_text()


# ── it serves ────────────────────────────────────────────────────────────────────────────────────


def loaded_from(worker: WorkerProcess) -> set[Path]:
    """The folders of the libraries of llama.cpp and of OpenMP that the engine has open."""
    paths = [Path(found.path) for found in psutil.Process(worker.engine.pid).memory_maps()]
    return {path.parent for path in paths if re.match(r"lib(llama|ggml|omp|gomp)\b", path.name)}


@pytest.mark.parametrize("python", pythons(), ids=lambda python: Path(python).name)
def test_an_empty_environment_serves_without_a_compiler(
    python: str, wheel: Path, default_model: Path, tmp_path: Path
) -> None:
    made = install(python, wheel, tmp_path / "venv")
    began_s = time.monotonic()
    with made.worker(default_model) as worker, worker.ready().stream(**JOB) as stream:
        events = stream.until("token")
        first_s = time.monotonic() - began_s
        events += list(stream)
        (folder,) = loaded_from(worker)
    assert text_of(events).startswith(" Paris")
    assert folder.is_relative_to(made.folder)
    sys.stdout.write(f"\n{Path(python).name}: installed in {made.seconds:.1f} s, first token {first_s:.1f} s later\n")


def test_a_binding_that_is_installed_beside_it_is_neither_loaded_nor_changed(
    installed: Installed, default_model: Path
) -> None:
    (packages,) = installed.folder.glob("lib/python3.*/site-packages")
    (packages / "llama_cpp").mkdir()
    other = packages / "llama_cpp" / "__init__.py"
    other.write_text('raise SystemExit("the other binding was loaded")\n')
    with installed.worker(default_model) as worker:
        assert worker.ready().text(**JOB).startswith(" Paris")
        assert all(folder.is_relative_to(packages / VENDORED) for folder in loaded_from(worker))
        assert f'llama_cpp_python="{PINNED_VERSION}"' in worker.get("/metrics").text
    installed.run("python", "-m", "pip", "uninstall", "--quiet", "--yes", "llorch-worker")
    assert other.exists()
    assert not (packages / VENDORED).exists()
