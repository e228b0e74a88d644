"""Print the self-contained wheel in dist/ that fits this checkout and this machine; nothing if there is none.

    python fitting_wheel.py cpu|cuda

A wheel fits if it has the backend, runs on this machine, and its worker is the checkout's, byte for byte. `make run`
installs it then, and compiles nothing.
"""

import platform
import re
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("worker", "parity", "client")
_NAME = re.compile(r"llorch_worker-[^-+]+(\+(?P<variant>\w+))?-py3-none-manylinux_2_(?P<glibc>\d+)_(?P<machine>\w+)")


def main(backend: str) -> None:
    fitting = (
        wheel for wheel in sorted(ROOT.glob("dist/*.whl")) if _runs_here(wheel, backend) and _is_of_checkout(wheel)
    )
    sys.stdout.write(f"{next((wheel.relative_to(ROOT) for wheel in fitting), '')}\n")


def _runs_here(wheel: Path, backend: str) -> bool:
    name = _NAME.fullmatch(wheel.stem)
    library, version = platform.libc_ver()
    if name is None or library != "glibc" or name["machine"] != platform.machine():
        return False
    return (name["variant"] or "cpu") == backend and int(name["glibc"]) <= int(version.split(".")[1])


def _is_of_checkout(wheel: Path) -> bool:
    try:
        with zipfile.ZipFile(wheel) as archive:
            packed = {name: archive.read(name) for name in archive.namelist() if _is_ours(name)}
    except (OSError, zipfile.BadZipFile):
        return False
    modules = {path.relative_to(ROOT).as_posix() for package in PACKAGES for path in (ROOT / package).rglob("*.py")}
    return modules <= packed.keys() and all(_has(name, content) for name, content in packed.items())


def _is_ours(name: str) -> bool:
    """True for a file of the worker's packages; the names of folders end in a slash."""
    is_inside = name.partition("/")[0] in PACKAGES and "/_vendor/" not in name
    return is_inside and not name.endswith("/")


def _has(name: str, content: bytes) -> bool:
    """True if the checkout has that file. Its catalogue lies beside the packages (pyproject.toml)."""
    path = ROOT / ("models.toml" if name == "worker/models.toml" else name)
    return path.is_file() and path.read_bytes() == content


if __name__ == "__main__":
    main(sys.argv[1])
