"""How many threads compute: as many as were asked for, fewer while other processes want their processors.

Owns that number and its reasons. Knows nothing of llama.cpp. The step thread's.

The threads of a step meet at some thousand barriers. When one of them waits for a processor, all wait for it: two
threads beside one busy process on two processors need 31 ms a token on average (beside two: 3 s), one thread needs 12.4
(18), and two on an idle machine 8.1. What says so is the time that computing threads spent ready but not running.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

WINDOW_S = 0.25
"""How many seconds of computing lie between two looks."""
N_WINDOWS = 2
"""How many crowded windows in a row leave a thread out: a burst of requests is no other process."""
MOST_WAITING = 0.4
"""Threads of n_now that may wait for a processor on average, divided by n_now: with many threads it takes little to
hold all of them up, and leaving one out costs little."""
FIRST_RETRY_S, LAST_RETRY_S = 2.0, 32.0
"""How many seconds of computing pass until one more thread is tried; doubled whenever it was too early."""

TASKS = Path("/proc/self/task")


@dataclass(frozen=True, slots=True)
class Times:
    """What one thread has used and waited for so far."""

    ran_s: float
    waited_s: float
    """Ready, but without a processor."""


Clocks = Mapping[int, Times]
"""The times of each thread."""


class Threads:
    """`read` gives the times of this process's threads; nothing where nobody knows, and then the number never
    changes.
    """

    def __init__(self, n_most: int, read: Callable[[], Clocks]) -> None:
        self._n_most = n_most
        self.n_now = n_most
        self._read = read
        self._before = read()
        self._window_s = 0.0
        self._n_crowded = 0
        self._calm_s = 0.0
        self._retry_s = FIRST_RETRY_S
        self._is_trying = False

    def computed(self, seconds: float) -> bool:
        """A step took so long; True where `n_now` has changed."""
        self._window_s += seconds
        if self._window_s < WINDOW_S:
            return False
        before, self._before = self._before, self._read()
        n_waiting = _n_waiting(before, self._before, self._window_s)
        window_s, self._window_s = self._window_s, 0.0
        n_before = self.n_now
        if n_waiting <= MOST_WAITING / self.n_now:
            self._stay_calm(window_s)
        else:
            self._n_crowded += 1
            if self._is_trying or self._n_crowded == N_WINDOWS:
                self._yield(n_waiting)
        return self.n_now != n_before

    def _yield(self, n_waiting: float) -> None:
        if self._is_trying:
            self._retry_s = min(2 * self._retry_s, LAST_RETRY_S)
        self.n_now = max(1, self.n_now - max(1, round(n_waiting)))
        self._n_crowded, self._calm_s, self._is_trying = 0, 0.0, False

    def _stay_calm(self, window_s: float) -> None:
        self._n_crowded = 0
        self._is_trying = False
        if self.n_now == self._n_most:
            self._retry_s = max(FIRST_RETRY_S, self._retry_s - window_s)
            return
        self._calm_s += window_s
        if self._calm_s >= self._retry_s:
            self.n_now += 1
            self._calm_s, self._is_trying = 0.0, True


def _n_waiting(before: Clocks, now: Clocks, window_s: float) -> float:
    """How many computing threads waited on average. A thread that wanted a processor for less than half of the time
    does something else."""
    waited_s = 0.0
    for thread, times in now.items():
        was = before.get(thread, times)
        wait_s = times.waited_s - was.waited_s
        if times.ran_s - was.ran_s + wait_s >= window_s / 2:
            waited_s += wait_s
    return waited_s / window_s


def clocks() -> Clocks:
    """Source: Linux, Documentation/scheduler/sched-stats.rst: nanoseconds run, and spent waiting on a runqueue."""
    times: dict[int, Times] = {}
    try:
        for task in TASKS.iterdir():
            ran_ns, waited_ns, _ = (task / "schedstat").read_bytes().split()
            times[int(task.name)] = Times(int(ran_ns) / 1e9, int(waited_ns) / 1e9)
    except (OSError, ValueError):  # another system, or a thread that just ended
        return {}
    return times
