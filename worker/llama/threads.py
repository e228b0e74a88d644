"""The number of computing threads: as many as were asked for, fewer while other processes want their processors.

The threads of a step meet at some thousand barriers. When one of them waits for a processor, all wait for it: two
threads beside one busy process on two processors need 31 ms a token on average (beside two: 3 s), one thread needs 12.4
(18), and two on an idle machine 8.1. A thread is left out where computing threads were ready but did not run, and other
processes computed meanwhile: a virtual machine's threads wait, too, for processors that the host has taken away, and
leaving one out is no help then. Nor is it left out for longer than a moment if steps take no less time without it.
"""

import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

WINDOW_S = 0.25
"""The seconds of computing between two looks."""
N_WINDOWS = 2
"""The number of crowded windows in a row that leave a thread out: a burst of requests is no other process."""
MAX_WAITING = 0.4
"""Threads of n_now that may wait for a processor on average, divided by n_now: with many threads it takes little to
hold all of them up, and leaving one out costs little."""
MIN_OTHERS = 0.6
"""The processors that other processes use at least, on average, when we leave one out. A process that never pauses gets
two thirds of a processor next to two threads of ours on two; this worker's own front and its client, at sixteen
streams, use less than half of one together."""
GONE_OTHERS = 0.25
"""Other processes that use fewer processors than this have gone, and all threads compute again at once."""
PAUSE_S = 1.0
"""After a pause of this many seconds, what was seen before it says nothing about now, and all threads compute."""
FIRST_RETRY_S, LAST_RETRY_S = 2.0, 32.0
"""The seconds of computing until one more thread is tried, or one less again if that did not help; doubled whenever it
was too early."""

_STAT = Path("/proc/stat")
_TASKS = Path("/proc/self/task")
_BUSY = (1, 2, 3, 6, 7)
"""The fields of a processor's line in /proc/stat that are its own work: user, nice, system, irq, softirq. What a host
has taken away (steal) is none."""


@dataclass(frozen=True, slots=True)
class Times:
    """The processor time that one thread has used, and the time that it has waited, so far."""

    ran_s: float
    waited_s: float
    """Ready, but without a processor."""


@dataclass(frozen=True, slots=True)
class Clocks:
    """All times at one moment."""

    at_s: float
    threads: Mapping[int, Times]
    """The times of each thread of this process."""
    others_s: float
    """The time that other processes have computed on the processors that this one may use, all of them together."""


class Threads:
    """`read` gives the clocks; if it returns None, the number never changes. `clock` gives monotonic seconds."""

    def __init__(
        self, n_most: int, read: Callable[[], Clocks | None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._n_most = self.n_now = n_most
        self._read, self._clock = read, clock
        self._ended_s = clock()
        """The time at which the last step ended."""
        self._retry_s = self._next_rest_s = FIRST_RETRY_S
        self._rest_s = 0.0
        """The time for which no thread is left out, because it did not help the last time."""
        self._start_anew()

    def _start_anew(self) -> None:
        """Compute with all threads. If others are busy, the first window that shows it leaves one out again."""
        self._before, self._window_s = self._read(), 0.0
        self._steps: list[tuple[int, float]] = []
        """(rows, seconds) of the steps since the last look."""
        self._all_compute()

    def _all_compute(self) -> None:
        self._is_trying = self.n_now < self._n_most
        self.n_now = self._n_most
        self._n_crowded, self._calm_s = 0, 0.0
        self._crowded: list[tuple[int, float]] = []
        """The steps of all crowded windows in a row."""
        self._n_given_up = 0
        """The number of threads that were left out at the last look, which is still to be judged."""

    def computed(self, n_rows: int, seconds: float) -> bool:
        """Count a step of `n_rows` rows that has just ended; True if `n_now` has changed."""
        n_before = self.n_now
        now_s = self._clock()
        pause_s, self._ended_s = now_s - self._ended_s - seconds, now_s
        if pause_s > PAUSE_S:
            self._start_anew()
            return self.n_now != n_before
        self._window_s += seconds
        self._steps.append((n_rows, seconds))
        if self._window_s < WINDOW_S:
            return False
        before, self._before = self._before, self._read()
        if before is not None and self._before is not None:
            self._look(before, self._before)
        self._window_s, self._steps = 0.0, []
        return self.n_now != n_before

    def _look(self, before: Clocks, now: Clocks) -> None:
        n_given_up, self._n_given_up = self._n_given_up, 0
        self._rest_s = max(0.0, self._rest_s - self._window_s)
        if n_given_up and not _is_faster(self._steps, self._crowded):
            self.n_now += n_given_up
            self._rest_s, self._next_rest_s = self._next_rest_s, min(2 * self._next_rest_s, LAST_RETRY_S)
            self._crowded = []
            return
        if n_given_up:
            self._next_rest_s, self._crowded = FIRST_RETRY_S, []
        n_waiting = _n_waiting(before, now, self._window_s)
        # The processors that other processes used on average.
        n_others = (now.others_s - before.others_s) / max(now.at_s - before.at_s, 1e-6)
        if self.n_now < self._n_most and n_others < GONE_OTHERS:
            self._all_compute()
        elif n_waiting <= MAX_WAITING / self.n_now or n_others < MIN_OTHERS:
            self._stay_calm()
        elif self.n_now > 1 and not self._rest_s:
            self._n_crowded += 1
            self._crowded += self._steps
            if self._is_trying or self._n_crowded == N_WINDOWS:
                self._give_up(max(1, round(n_waiting)))

    def _give_up(self, n_threads: int) -> None:
        if self._is_trying:
            self._retry_s = min(2 * self._retry_s, LAST_RETRY_S)
        self._n_given_up = min(n_threads, self.n_now - 1)
        self.n_now -= self._n_given_up
        self._n_crowded, self._calm_s, self._is_trying = 0, 0.0, False

    def _stay_calm(self) -> None:
        self._n_crowded, self._crowded, self._is_trying = 0, [], False
        if self.n_now == self._n_most:
            self._retry_s = max(FIRST_RETRY_S, self._retry_s - self._window_s)
            return
        self._calm_s += self._window_s
        if self._calm_s >= self._retry_s:
            self.n_now += 1
            self._calm_s, self._is_trying = 0.0, True


def _n_waiting(before: Clocks, now: Clocks, window_s: float) -> float:
    """Return how many computing threads waited on average. A thread that wanted a processor for less than half of the
    time does something else."""
    waited_s = 0.0
    for thread, times in now.threads.items():
        was = before.threads.get(thread, times)
        wait_s = times.waited_s - was.waited_s
        if times.ran_s - was.ran_s + wait_s >= window_s / 2:
            waited_s += wait_s
    return waited_s / window_s


def _is_faster(steps: Iterable[tuple[int, float]], crowded: Iterable[tuple[int, float]]) -> bool:
    """Return whether steps take less time than crowded ones with as many rows; True if there are none to compare."""
    took: dict[int, list[float]] = {}
    for n_rows, seconds in crowded:
        took.setdefault(n_rows, []).append(seconds)
    gains = [fmean(took[n_rows]) - seconds for n_rows, seconds in steps if n_rows in took]
    return not gains or sum(gains) > 0.0


def clocks() -> Clocks | None:
    """Source: Linux, Documentation/scheduler/sched-stats.rst: nanoseconds run, and spent waiting on a runqueue; proc(5)
    for /proc/stat, in clock ticks.
    """
    threads: dict[int, Times] = {}
    try:
        for task in _TASKS.iterdir():
            ran_ns, waited_ns, _ = (task / "schedstat").read_bytes().split()
            threads[int(task.name)] = Times(int(ran_ns) / 1e9, int(waited_ns) / 1e9)
        ours = {f"cpu{number}" for number in os.sched_getaffinity(0)}
        fields = (line.split() for line in _STAT.read_text().splitlines())
        n_ticks = sum(int(each[i]) for each in fields if each and each[0] in ours for i in _BUSY)
    except (OSError, ValueError, IndexError):  # another system, or a thread that just ended
        return None
    return Clocks(time.monotonic(), threads, n_ticks / os.sysconf("SC_CLK_TCK") - time.process_time())
