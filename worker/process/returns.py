"""Freed memory goes back to the system while no job is there.

glibc keeps what is freed, and the heap of a busy engine grows for hours. Owns when it is returned. Used by the step
thread.
"""

import time
from collections.abc import Callable

GIVE_BACK_EVERY_S = 60.0
"""The least seconds between two times that freed memory is returned to the system. It takes milliseconds, and a heap
needs hours to grow."""


class Returns:
    """The return of freed memory to the system, now and then while no job is there."""

    def __init__(self, give_back: Callable[[], None], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._give_back = give_back
        self._clock = clock
        self._due_s = clock()

    def rest(self) -> None:
        """Return what was freed, unless that was done just now."""
        if self._clock() >= self._due_s:
            self._give_back()
            self._due_s = self._clock() + GIVE_BACK_EVERY_S
