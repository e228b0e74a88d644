"""Limits are read from /proc and cgroups of either version; fake trees stand for machines."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.scripts import program
from worker.host import available_memory_bytes, cpu_quota, has_amx

GIB = 2**30
N_CPUS = len(os.sched_getaffinity(0))
MEMINFO = f"MemTotal: {32 * GIB // 1024} kB\nMemFree: 1 kB\nMemAvailable: {16 * GIB // 1024} kB\n"


def tree(root: Path, files: Mapping[str, str], cgroup: str = "") -> Path:
    """A root folder with these files below sys/fs/cgroup."""
    for name, text in {"proc/self/cgroup": cgroup, "proc/meminfo": MEMINFO}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    for name, text in files.items():
        path = root / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


HOSTS = [json.loads(line) for line in Path(__file__).with_name("hosts.jsonl").read_text().splitlines()]
"""/proc/self/cgroup, files below sys/fs/cgroup, and what is read: `n_cpus`, null without a limit, or `gib` of memory"""


@pytest.mark.parametrize("host", [host for host in HOSTS if "n_cpus" in host])
def test_the_cpu_quota_is_the_least_of_affinity_and_cgroups(tmp_path: Path, host: dict[str, Any]) -> None:
    assert cpu_quota(tree(tmp_path, host["files"], host["cgroup"])) == min(host["n_cpus"] or N_CPUS, N_CPUS)


@pytest.mark.parametrize("host", [host for host in HOSTS if "gib" in host])
def test_available_memory_is_the_least_of_the_machine_and_its_cgroups(tmp_path: Path, host: dict[str, Any]) -> None:
    assert available_memory_bytes(tree(tmp_path, host["files"], host["cgroup"])) == host["gib"] * GIB


def test_a_machine_without_proc_is_asked_through_sysconf(tmp_path: Path) -> None:
    assert cpu_quota(tmp_path) == N_CPUS
    assert 0 < available_memory_bytes(tmp_path) <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


VM_STAT = """\
Mach Virtual Memory Statistics: (page size of 16384 bytes)
Pages free:                               100000.
Pages active:                             200000.
Pages inactive:                           150000.
Pages speculative:                         12144.
"Translation faults":                  123456789.
"""


def with_vm_stat(root: Path, script: str) -> Path:
    (root / "usr/bin").mkdir(parents=True)
    program(root / "usr/bin/vm_stat", script)
    return root


def test_macos_is_asked_how_many_pages_are_free_or_reclaimable(tmp_path: Path) -> None:
    root = with_vm_stat(tmp_path, f"cat <<'END'\n{VM_STAT}END")
    assert available_memory_bytes(root) == (100_000 + 150_000 + 12_144) * 16_384


@pytest.mark.parametrize("script", ["exit 1", "echo Pages free: many", "printf '\\377'"])
def test_a_vm_stat_that_cannot_be_read_leaves_the_answer_to_sysconf(tmp_path: Path, script: str) -> None:
    available_bytes = available_memory_bytes(with_vm_stat(tmp_path, script))
    assert 0 < available_bytes <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def test_this_machine_has_a_cpu_and_memory() -> None:
    assert 1 <= cpu_quota() <= N_CPUS
    assert available_memory_bytes() > 0


@pytest.mark.parametrize(
    ("cpuinfo", "has"),
    [
        ("processor\t: 0\nflags\t\t: fpu avx512_vnni amx_bf16 amx_tile amx_int8\nprocessor\t: 1\n", True),
        ("processor\t: 0\nflags\t\t: fpu avx512_vnni amx_int80 amx_tile\nbugs\t: amx_int8\n", False),
        ("Features\t: fp asimd amx_int8\n", False),
        (None, False),
    ],
)
def test_amx_is_one_of_the_processors_flags(tmp_path: Path, cpuinfo: str | None, *, has: bool) -> None:
    if cpuinfo is not None:
        (tmp_path / "proc").mkdir()
        (tmp_path / "proc/cpuinfo").write_text(cpuinfo)
    assert has_amx(tmp_path) is has
