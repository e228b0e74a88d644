"""What the kernel tells of processes: their memory, processor time and children.

Refuses to know which processes they are. Runs on whichever thread calls.
"""

from collections.abc import Iterable
from contextlib import suppress

import psutil


def resident_bytes(pid: int) -> int | None:
    """Physical memory of the process, shared pages included; None for one that is gone."""
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).memory_info().rss
    return None


def cpu_s(pids: Iterable[int]) -> float:
    """Processor time of the processes since they began, all threads; a process that is gone has none."""
    seconds = 0.0
    for pid in pids:
        with suppress(psutil.NoSuchProcess):
            times = psutil.Process(pid).cpu_times()
            seconds += times.user + times.system
    return seconds


def children(pid: int) -> list[int]:
    """The processes that it started and that are still there, oldest first."""
    with suppress(psutil.NoSuchProcess):
        return sorted(child.pid for child in psutil.Process(pid).children())
    return []
