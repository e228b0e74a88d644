"""How fast jobs leave, measured, and how long one more would wait: what Retry-After says. Pure."""

import math

MAX_WAIT_S = 600
_WEIGHT = 0.1
"""Of the newest job in the running mean."""


class Throughput:
    def __init__(self) -> None:
        self._mean_service_s = 1.0

    def finished(self, service_s: float) -> None:
        """A job ended by itself, `service_s` after it got its slot."""
        self._mean_service_s += _WEIGHT * (service_s - self._mean_service_s)

    def wait_s(self, *, n_waiting: int, n_slots: int) -> int:
        """Whole seconds until a place should be free for one more; 1..MAX_WAIT_S."""
        return min(max(1, math.ceil(self._mean_service_s * (n_waiting + 1) / n_slots)), MAX_WAIT_S)
