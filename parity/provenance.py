"""The origin of a result: versions, machine, and the run id made from them.

Names no person, host or folder. Reads installed metadata, so that asking for torch's version does not load it.
"""

import os
import platform
import secrets
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import worker
from worker.host import cpu_quota
from worker.models.upstream.numbers import PINNED_VERSION

GENERATED_BY = f"llorch-worker {worker.__version__}"

_PACKAGES = ("torch", "transformers", "numpy")


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine that computed."""

    cpu: str
    """Model name, else the instruction set."""
    n_cores: int
    """The cores of the machine."""
    n_usable: int
    """The cores that this process may use."""
    n_threads: int
    """The threads that it was configured to use."""
    system: str


def this_machine(n_threads: int) -> Machine:
    """`n_threads` is what the run was given."""
    return Machine(
        cpu=_cpu_model() or platform.machine(),
        n_cores=os.cpu_count() or 1,
        n_usable=cpu_quota(),
        n_threads=n_threads,
        system=f"{platform.system()} {platform.machine()}",
    )


def versions() -> dict[str, str]:
    """The versions of all software that may change a number."""
    return {
        "worker": worker.__version__,
        "python": platform.python_version(),
        # The worker runs with no other version, and its self-contained wheel has no package of this name.
        "llama-cpp-python": PINNED_VERSION,
        **{package: _version(package) for package in _PACKAGES},
    }


def now_rfc3339() -> str:
    """UTC, whole seconds."""
    return f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"


def new_run_id(sha256: str | None = None) -> str:
    """`YYYYMMDD-HHMMSS-<8 hex>`: UTC, and of `sha256`, else by chance."""
    origin = sha256 or secrets.token_hex(4)
    return f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{origin[:8]}"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _cpu_model() -> str | None:
    """The model's name from /proc/cpuinfo, which only Linux has. Hypervisors call many processors `AMD EPYC`, so x86's
    family and number of the model are in it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return None
    found = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in reversed(lines))}
    if "model name" not in found or "cpu family" not in found:
        return found.get("model name")
    return f"{found['model name']}, family {found['cpu family']}, model {found['model']}"
