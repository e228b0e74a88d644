"""How many threads compute: as many as were asked for, fewer while other processes want their processors.

Owns that number and its reasons. Knows nothing of llama.cpp. The step thread's.

The threads of a step meet at some thousand barriers. When one of them waits for a processor, all wait for it: two
threads beside one busy process on two processors need 31 ms a token on average (beside two: 3 s), one thread needs 12.4
(18), and two on an idle machine 8.1. What says so is the time that this process's threads spent ready but not running.
"""

from collections.abc import Callable
from pathlib import Path

WINDOW_S = 0.25
"""Of computing, between two looks."""
MOST_WAITING = 0.4
"""Threads of n_now that may wait for a processor on average, divided by n_now: with many threads it takes little to
hold all of them up, and leaving one out costs little."""
FIRST_RETRY_S, LAST_RETRY_S = 2.0, 32.0
"""Of computing, until one more thread is tried; doubled whenever it was too early."""

TASKS = Path("/proc/self/task")


class Threads:
    """`waited_s`: seconds that this process's threads have waited for a processor so far; None where nobody knows, and
    then the number never changes.
    """

    def __init__(self, n_most: int, waited_s: Callable[[], float | None]) -> None:
        self._n_most = n_most
        self.n_now = n_most
        self._waited_s = waited_s
        self._waited_before_s = waited_s()
        self._window_s = 0.0
        self._calm_s = 0.0
        self._retry_s = FIRST_RETRY_S
        self._is_trying = False

    def computed(self, seconds: float) -> bool:
        """A step took so long; True where `n_now` has changed."""
        self._window_s += seconds
        if self._window_s < WINDOW_S or self._waited_before_s is None:
            return False
        waited_s, window_s = self._waited_s(), self._window_s
        if waited_s is None:  # a thread ended while they were asked
            return False
        # A thread that ended takes its seconds with it.
        n_waiting = max(0.0, waited_s - self._waited_before_s) / window_s
        self._waited_before_s, self._window_s = waited_s, 0.0
        n_before = self.n_now
        if n_waiting > MOST_WAITING / self.n_now:
            self._yield(n_waiting)
        else:
            self._stay_calm(window_s)
        return self.n_now != n_before

    def _yield(self, n_waiting: float) -> None:
        if self._is_trying:
            self._retry_s = min(2 * self._retry_s, LAST_RETRY_S)
        self.n_now = max(1, self.n_now - max(1, round(n_waiting)))
        self._calm_s, self._is_trying = 0.0, False

    def _stay_calm(self, window_s: float) -> None:
        if self.n_now == self._n_most:
            self._is_trying = False
            self._retry_s = max(FIRST_RETRY_S, self._retry_s - window_s)
            return
        self._calm_s += window_s
        if self._calm_s >= self._retry_s:
            self.n_now += 1
            self._calm_s, self._is_trying = 0.0, True


def waited_s() -> float | None:
    """Source: Linux, Documentation/scheduler/sched-stats.rst: nanoseconds spent waiting on a runqueue, by thread."""
    try:
        return sum(int((task / "schedstat").read_bytes().split()[1]) for task in TASKS.iterdir()) / 1e9
    except (OSError, IndexError, ValueError):
        return None
