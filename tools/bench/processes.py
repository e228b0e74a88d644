"""What the kernel tells of processes: their memory, processor time and children. From /proc; elsewhere nothing.

Refuses to know which processes they are. Reads a few small files, on whichever thread calls.
"""

import os
from collections.abc import Iterable
from pathlib import Path

_PROC = Path("/proc")
_PARENT, _USER_TICKS, _SYSTEM_TICKS = 1, 11, 12
"""Places in /proc/PID/stat after the name in brackets (proc_pid_stat(5), from 0)."""


def resident_bytes(pid: int) -> int | None:
    """Physical memory of the process, shared pages included; None where it cannot be told."""
    for line in _text(_PROC / str(pid) / "status").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    return None


def cpu_s(pids: Iterable[int]) -> float:
    """Processor time of the processes since they began, all threads; a process that is gone has none."""
    ticks = sum(int(stat[_USER_TICKS]) + int(stat[_SYSTEM_TICKS]) for pid in pids if (stat := _stat(pid)))
    return ticks / os.sysconf("SC_CLK_TCK")


def children(pid: int) -> list[int]:
    """The processes that it started and that are still there, oldest first."""
    pids = sorted(int(entry.name) for entry in _PROC.glob("[0-9]*"))
    return [other for other in pids if (stat := _stat(other)) and int(stat[_PARENT]) == pid]


def _stat(pid: int) -> list[str]:
    """Its fields after the name, which may hold anything; empty for a process that is gone."""
    return _text(_PROC / str(pid) / "stat").rpartition(")")[2].split()


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
