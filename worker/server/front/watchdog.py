"""Notices an engine that has gone silent while it should be working, and engines that die too often
(docs/protocol.md#life-of-a-job).

Silence counts only while the front's own loop turns: a front that was stopped itself must not blame its engine.
"""

import time
from collections import deque
from collections.abc import Callable

MAX_DEATHS = 5
DEATHS_WINDOW_S = 600.0

LOAD_SILENCE_S = 300.0
SLOW_DISK_BYTES_PER_S = 20e6
"""While loading, the time to read the file at this rate is added: if page-ins cannot be counted, or evict each other,
the first steps read the whole file before the engine says anything."""

STEPS_OF_SILENCE = 10
"""A silent engine is wedged after this many of its longest steps, if that is more than the floor."""


class Watchdog:
    """Calls `kill(cause)` once for each silence. A heartbeat is a frame of the thread that loads and steps.

    The front's event loop calls `tick` every `tick_s`.
    """

    def __init__(
        self,
        kill: Callable[[str], None],
        *,
        floor_s: float,
        model_bytes: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._kill = kill
        self._floor_s = floor_s
        self._load_silence_s = LOAD_SILENCE_S + model_bytes / SLOW_DISK_BYTES_PER_S
        self._clock = clock
        self.tick_s = min(1.0, floor_s / 10)
        self._silence_s = 0.0
        self._heard_at_s = clock()
        self._longest_step_s = 0.0
        self._is_loading = True
        self._is_working = False

    def expect_work(self, n_jobs: int) -> None:
        """Say how many jobs the engine has from now on. If it has any, it owes signs of life, and its silence counts
        from the moment when it got the first."""
        if n_jobs and not self._is_working:
            self._end_silence()
        self._is_working = n_jobs > 0

    @property
    def limit_s(self) -> float:
        if self._is_loading:
            return self._load_silence_s
        return max(self._floor_s, STEPS_OF_SILENCE * self._longest_step_s)

    def expect_load(self) -> None:
        """An engine has been started, and loads its model."""
        self._is_loading = True
        self._end_silence()

    def loaded(self, step_s: float) -> None:
        """End the load. `step_s` is the longest step as far as the engine knows, so that the first one is not
        misjudged."""
        self._is_loading = False
        self._longest_step_s = max(self._longest_step_s, step_s)
        self._end_silence()

    def heartbeat(self) -> None:
        """The engine has said something."""
        if self._is_working and not self._is_loading:
            self._longest_step_s = max(self._longest_step_s, self._silence_s)
        self._end_silence()

    def _end_silence(self) -> None:
        self._silence_s = 0.0
        self._heard_at_s = self._clock()

    def tick(self) -> None:
        """Add the time since the last tick, but never more than the loop can have been awake for."""
        now = self._clock()
        self._silence_s += min(now - self._heard_at_s, 2 * self.tick_s)
        self._heard_at_s = now
        if (self._is_loading or self._is_working) and self._silence_s > self.limit_s:
            silence_s = self._silence_s
            self._end_silence()
            self._kill(f"no sign of life for {silence_s:.1f} s")


class Deaths:
    """The times at which engines died since a job last finished."""

    def __init__(self) -> None:
        self._times_s: deque[float] = deque(maxlen=MAX_DEATHS)

    def add(self, now_s: float) -> None:
        self._times_s.append(now_s)

    def withdraw(self) -> None:
        """Remove the last one, because a request turned out to be its cause."""
        if self._times_s:
            self._times_s.pop()

    def clear(self) -> None:
        """Remove all, because a job has finished: the engine is able to work."""
        self._times_s.clear()

    @property
    def are_too_many(self) -> bool:
        """True if the last MAX_DEATHS lie within the window."""
        return len(self._times_s) == MAX_DEATHS and self._times_s[-1] - self._times_s[0] <= DEATHS_WINDOW_S
