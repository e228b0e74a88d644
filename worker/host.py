"""The machine as this process sees it: the CPUs and memory that it may use, limits of containers included, and files.

Cgroups are of version 1, version 2 or both at once; a limit set on any ancestor counts. macOS, which has neither them
nor /proc, is asked by vm_stat.
"""

import hashlib
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/")

_VM_STAT, _MAX_S = "usr/bin/vm_stat", 10.0
"""macOS's own program; one that does not answer in this time is taken for absent."""
_PAGE_SIZE = re.compile(r"page size of (\d+) bytes")
_FREE_PAGES = re.compile(r"^Pages (?:free|speculative|inactive): +(\d+)\.$", re.MULTILINE)
"""Pages that hold nothing, those that were read ahead, and those that were not used recently."""


def cpu_quota(root: Path = ROOT) -> int:
    """CPUs this process may use at once, at least 1: its affinity, or its cgroups' quota where that is less.

    A quota of 2.5 CPUs gives 2: threads that meet at barriers stall when one of them is throttled.
    """
    pairs = [_text(at / "cpu.max").partition(" ")[::2] for at in _cgroups(root, "")]
    v1 = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
    pairs += [(_text(at / v1[0]), _text(at / v1[1])) for at in _cgroups(root, "cpu")]
    numbers = [(_integer(quota), _integer(period)) for quota, period in pairs]
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min([affinity, *(quota // period for quota, period in numbers if quota and period)]))


def available_memory_bytes(root: Path = ROOT) -> int:
    """Memory this process can still take without swapping or being killed; page cache counts as free."""
    v1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
    rooms = [_cgroup_room(at, "memory.max", "memory.current", "inactive_file") for at in _cgroups(root, "")]
    rooms += [_cgroup_room(at, *v1) for at in _cgroups(root, "memory")]
    return min([_system_room(root), *(room for room in rooms if room is not None)])


def has_amx(root: Path = ROOT) -> bool:
    """True if this processor has Intel's AMX for bytes, as Linux reports; elsewhere nothing computes with it."""
    flags = next((line for line in _text(root / "proc/cpuinfo").splitlines() if line.startswith("flags")), "")
    return "amx_int8" in flags.split()


def processor(root: Path = ROOT) -> str:
    """The processor's family, model and name, as Linux reports them; elsewhere its instruction set."""
    lines = _text(root / "proc/cpuinfo").partition("\n\n")[0].splitlines()
    return "; ".join(line for line in lines if line.startswith(("vendor", "cpu family", "model"))) or os.uname().machine


def sha256_of(path: Path) -> str:
    """The file's SHA-256 in lower-case hex, read in pieces. Raises: OSError."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _cgroups(root: Path, controller: str) -> Iterator[Path]:
    """Folders of this process's cgroup and its ancestors for a version 1 controller; "" stands for version 2.

    In a container the path may be the host's and not exist here; its top is then the container's own cgroup.
    """
    mounts = root / "sys/fs/cgroup"
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, _, names_and_path = line.partition(":")
        names, _, path = names_and_path.partition(":")
        if controller not in names.split(","):
            continue
        steps = [step for step in path.split("/") if step not in ("", "..")]
        for top in (mounts / names, mounts / (controller or "unified")):
            yield from (top.joinpath(*steps[:depth]) for depth in range(len(steps) + 1))


def _cgroup_room(folder: Path, limit_file: str, usage_file: str, reclaimable: str) -> int | None:
    limit, usage = _integer(_text(folder / limit_file)), _integer(_text(folder / usage_file))
    if limit is None or usage is None:
        return None
    return max(0, limit - usage + (_field(folder / "memory.stat", reclaimable) or 0))


def _system_room(root: Path) -> int:
    available_kib = _field(root / "proc/meminfo", "MemAvailable:")
    if available_kib is not None:
        return available_kib * 1024
    available_bytes = _macos_room(root / _VM_STAT)
    if available_bytes is not None:
        return available_bytes
    pages = "SC_AVPHYS_PAGES" if "SC_AVPHYS_PAGES" in os.sysconf_names else "SC_PHYS_PAGES"
    return os.sysconf(pages) * os.sysconf("SC_PAGE_SIZE")


def _macos_room(program: Path) -> int | None:
    """Return the bytes that vm_stat counts as free or reclaimable; None if there is no such program. Source:
    vm_stat(1).
    """
    try:
        output = subprocess.run([program], capture_output=True, timeout=_MAX_S, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    report = output.decode("ascii", "replace")
    page_size, n_pages = _PAGE_SIZE.search(report), _FREE_PAGES.findall(report)
    return int(page_size[1]) * sum(map(int, n_pages)) if page_size and n_pages else None


def _field(path: Path, name: str) -> int | None:
    """The number after `name` at the beginning of a line."""
    found = re.search(rf"^{re.escape(name)}\s+(\d+)", _text(path), re.MULTILINE)
    return int(found[1]) if found else None


def _integer(text: str) -> int | None:
    """None where there is no number: nothing, `max`, or -1 for "no limit"."""
    word = text.strip()
    return int(word) if word.isdecimal() else None


def _text(path: Path) -> str:
    """Empty where the file is missing or unreadable: what cannot be read limits nothing."""
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return ""
