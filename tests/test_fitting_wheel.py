"""scripts/fitting_wheel.py: `make run` installs a wheel in dist/ only if it is this checkout's and for this machine."""

import platform
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="manylinux is for Linux with glibc")
GLIBC = int((platform.libc_ver()[1] or "2.0").split(".")[1])
SOURCES = {
    "worker/a.py": b"a",
    "worker/server/web/b.py": b"b",
    "client/c.py": b"c",
    "worker/server/web/page/d.js": b"d",
}
VENDORED = {"worker/_vendor/llama_cpp/llama_cpp.py": b"binding", "llorch_worker-1.0.dist-info/METADATA": b""}


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    (tmp_path / "scripts").mkdir()
    (tmp_path / "dist").mkdir()
    shutil.copy(ROOT / "scripts" / "fitting_wheel.py", tmp_path / "scripts")
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    for name, content in SOURCES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    return tmp_path


def pack(checkout: Path, files: dict[str, bytes], version: str = "1.0", platform_tag: str = "") -> str:
    name = f"llorch_worker-{version}-py3-none-{platform_tag or f'manylinux_2_{GLIBC}_{platform.machine()}'}.whl"
    with zipfile.ZipFile(checkout / "dist" / name, "w") as wheel:
        for path, content in files.items():
            wheel.writestr(path, content)
    return f"dist/{name}"


def fitting(checkout: Path, backend: str = "cpu") -> str:
    command = (sys.executable, str(checkout / "scripts" / "fitting_wheel.py"), backend)
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


def test_a_wheel_of_this_checkout_fits_its_backend(checkout: Path) -> None:
    cpu = pack(checkout, SOURCES | VENDORED)
    cuda = pack(checkout, SOURCES | VENDORED, version="1.0+cuda")
    assert (fitting(checkout), fitting(checkout, "cuda"), fitting(checkout, "vulkan")) == (cpu, cuda, "")


@pytest.mark.parametrize(
    "files",
    [
        SOURCES | {"worker/a.py": b"older"},
        SOURCES | {"worker/server/web/page/d.js": b"older"},
        SOURCES | {"worker/models.toml": b"older"},
        {"worker/a.py": b"a"},
        SOURCES | {"worker/gone.py": b""},
    ],
    ids=["module", "page", "catalogue", "added", "removed"],
)
def test_a_wheel_of_another_checkout_does_not_fit(files: dict[str, bytes], checkout: Path) -> None:
    pack(checkout, files | VENDORED)
    assert fitting(checkout) == ""


@pytest.mark.parametrize(
    "platform_tag",
    [f"manylinux_2_{GLIBC + 1}_{platform.machine()}", f"manylinux_2_{GLIBC}_riscv64", f"linux_{platform.machine()}"],
)
def test_a_wheel_for_another_machine_does_not_fit(platform_tag: str, checkout: Path) -> None:
    """Nor does a file that is no wheel."""
    pack(checkout, SOURCES | VENDORED, platform_tag=platform_tag)
    assert fitting(checkout) == ""
    (checkout / pack(checkout, SOURCES)).write_bytes(b"half of a wheel")
    assert fitting(checkout) == ""


def test_make_run_builds_unless_a_wheel_fits_and_keeps_what_is_built(checkout: Path) -> None:
    def make_run() -> str:
        command = ["make", "--dry-run", "run", f"PYTHON={sys.executable}", "BACKEND=cpu"]
        return subprocess.run(command, cwd=checkout, capture_output=True, text=True, timeout=60, check=True).stdout

    shutil.copy(ROOT / "scripts" / "build_llama.sh", checkout / "scripts")
    assert "build_llama.sh cpu" in make_run()
    wheel = pack(checkout, SOURCES | VENDORED)
    assert "build_llama.sh" not in make_run()
    assert f"pip install --quiet --disable-pip-version-check --constraint constraints.txt {wheel}" in make_run()
    (checkout / ".venv").mkdir()
    for stamp in ("llama-cpu", "installed"):
        (checkout / ".venv" / stamp).touch()
    assert wheel not in make_run()
