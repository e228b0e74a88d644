"""Limits are read from /proc and cgroups of either version; fake trees stand for machines."""

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from worker.host import available_memory_bytes, cpu_quota, has_amx

GIB = 2**30
N_CPUS = len(os.sched_getaffinity(0))
MEMINFO = f"MemTotal: {32 * GIB // 1024} kB\nMemFree: 1 kB\nMemAvailable: {16 * GIB // 1024} kB\n"
V2, V1_CPU, V1_MEMORY = "0::/a/b\n", "3:cpu,cpuacct:/a\n", "9:memory:/a\n"


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


CPU_TREES: list[tuple[str, dict[str, str], int]] = [
    ("", {}, N_CPUS),
    (V2, {"a/b/cpu.max": "max 100000\n"}, N_CPUS),
    (V2, {"a/b/cpu.max": "100000 100000\n"}, 1),
    (V2, {"a/b/cpu.max": "50000 100000\n"}, 1),
    (V2, {"a/b/cpu.max": "190000 100000\n"}, 1),
    (V2, {"a/b/cpu.max": "200000 100000\n"}, min(2, N_CPUS)),
    (V2, {"a/b/cpu.max": "99900000 100000\n"}, N_CPUS),
    (V2, {"a/b/cpu.max": "max 100000\n", "a/cpu.max": "100000 100000\n"}, 1),
    (V2, {"cpu.max": "100000 100000\n"}, 1),
    (V2, {"unified/a/cpu.max": "100000 100000\n"}, 1),
    (V2, {"a/b/cpu.max": "nonsense"}, N_CPUS),
    (V2, {"a/b/cpu.max": "100000 0\n"}, N_CPUS),
    ("0::/../b\n", {"b/cpu.max": "100000 100000\n"}, 1),
    (V1_CPU, {"cpu,cpuacct/a/cpu.cfs_quota_us": "100000\n", "cpu,cpuacct/a/cpu.cfs_period_us": "100000\n"}, 1),
    (V1_CPU, {"cpu/a/cpu.cfs_quota_us": "100000\n", "cpu/a/cpu.cfs_period_us": "100000\n"}, 1),
    (V1_CPU, {"cpu/a/cpu.cfs_quota_us": "-1\n", "cpu/a/cpu.cfs_period_us": "100000\n"}, N_CPUS),
    (V1_CPU, {"cpu/cpu.cfs_quota_us": "100000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 1),
    (V1_MEMORY, {"cpu/a/cpu.cfs_quota_us": "100000\n", "cpu/a/cpu.cfs_period_us": "100000\n"}, N_CPUS),
    (V2 + V1_CPU, {"cpu/a/cpu.cfs_quota_us": "100000\n", "cpu/a/cpu.cfs_period_us": "100000\n"}, 1),
]


@pytest.mark.parametrize(("cgroup", "files", "n_cpus"), CPU_TREES)
def test_the_cpu_quota_is_the_least_of_affinity_and_cgroups(
    tmp_path: Path, cgroup: str, files: dict[str, str], n_cpus: int
) -> None:
    assert cpu_quota(tree(tmp_path, files, cgroup)) == n_cpus


def v2(folder: str, limit: str, used: int, inactive: int = 0) -> dict[str, str]:
    stat = f"anon 5\ninactive_file {inactive}\nactive_file 7\n"
    values = {"memory.max": limit, "memory.current": str(used), "memory.stat": stat}
    return {f"{folder}/{name}": text + "\n" for name, text in values.items()}


def v1(folder: str, limit: int, used: int, inactive: int = 0) -> dict[str, str]:
    stat = f"inactive_file 1\ntotal_inactive_file {inactive}\n"
    values = {"memory.limit_in_bytes": str(limit), "memory.usage_in_bytes": str(used), "memory.stat": stat}
    return {f"memory/{folder}/{name}": text + "\n" for name, text in values.items()}


MEMORY_TREES: list[tuple[str, dict[str, str], int]] = [
    ("", {}, 16 * GIB),
    (V2, v2("a/b", "max", GIB), 16 * GIB),
    (V2, v2("a/b", str(4 * GIB), GIB), 3 * GIB),
    (V2, v2("a/b", str(4 * GIB), 3 * GIB, inactive=2 * GIB), 3 * GIB),
    (V2, v2("a/b", str(GIB), 2 * GIB), 0),
    (V2, v2("a/b", str(64 * GIB), GIB), 16 * GIB),
    (V2, v2("a/b", "max", GIB) | v2("a", str(4 * GIB), 2 * GIB), 2 * GIB),
    (V2, v2("unified/a", str(4 * GIB), 2 * GIB), 2 * GIB),
    (V1_MEMORY, v1("a", 4 * GIB, GIB), 3 * GIB),
    (V1_MEMORY, v1("a", 4 * GIB, 3 * GIB, inactive=2 * GIB), 3 * GIB),
    (V1_MEMORY, v1("a", 9223372036854771712, GIB), 16 * GIB),
    (V1_MEMORY, v1(".", 4 * GIB, GIB), 3 * GIB),
    (V1_CPU, v1("a", 4 * GIB, GIB), 16 * GIB),
    (V2 + V1_MEMORY, v1("a", 4 * GIB, GIB), 3 * GIB),
]


@pytest.mark.parametrize(("cgroup", "files", "n_bytes"), MEMORY_TREES)
def test_available_memory_is_the_least_of_the_machine_and_its_cgroups(
    tmp_path: Path, cgroup: str, files: dict[str, str], n_bytes: int
) -> None:
    assert available_memory_bytes(tree(tmp_path, files, cgroup)) == n_bytes


def test_a_machine_without_proc_is_asked_through_sysconf(tmp_path: Path) -> None:
    assert cpu_quota(tmp_path) == N_CPUS
    assert 0 < available_memory_bytes(tmp_path) <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


VM_STAT = """\
Mach Virtual Memory Statistics: (page size of 16384 bytes)
Pages free:                               100000.
Pages active:                             200000.
Pages inactive:                           150000.
Pages speculative:                         12144.
Pages throttled:                               0.
Pages wired down:                         180000.
Pages purgeable:                            1000.
"Translation faults":                  123456789.
File-backed pages:                        120000.
"""


def program(root: Path, script: str) -> Path:
    path = root / "usr/bin/vm_stat"
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return root


def test_macos_is_asked_how_many_pages_are_free_or_reclaimable(tmp_path: Path) -> None:
    root = program(tmp_path, f"cat <<'END'\n{VM_STAT}END")
    assert available_memory_bytes(root) == (100_000 + 150_000 + 12_144) * 16_384


@pytest.mark.parametrize("script", ["exit 1", "echo Pages free: many", "printf '\\377'"])
def test_a_vm_stat_that_cannot_be_read_leaves_the_answer_to_sysconf(tmp_path: Path, script: str) -> None:
    available_bytes = available_memory_bytes(program(tmp_path, script))
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
