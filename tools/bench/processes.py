"""The data of the kernel about processes: their memory and processor time.

Runs on whichever thread calls.
"""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

import psutil


@dataclass(frozen=True, slots=True)
class Memory:
    """Physical memory of a process."""

    resident_bytes: int
    """Shared pages included."""
    anonymous_bytes: int
    """The resident bytes without the pages of mapped files, which the kernel can drop; all of them if the kernel does
    not say."""


def memory_of(pid: int) -> Memory | None:
    """None for a process that is gone."""
    with suppress(psutil.NoSuchProcess):
        info = psutil.Process(pid).memory_info()
        return Memory(info.rss, info.rss - getattr(info, "shared", 0))
    return None


def cpu_s(pids: Iterable[int]) -> float:
    """Processor time of the processes since they began, all threads; a process that is gone has none."""
    seconds = 0.0
    for pid in pids:
        with suppress(psutil.NoSuchProcess):
            times = psutil.Process(pid).cpu_times()
            seconds += times.user + times.system
    return seconds
