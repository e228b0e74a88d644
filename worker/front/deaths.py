"""The deaths of engines, and how many are too many (docs/protocol.md#life-of-a-job). Pure."""

from collections import deque

MAX_DEATHS = 5
DEATHS_WINDOW_S = 600.0


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
