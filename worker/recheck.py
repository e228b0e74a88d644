"""Asks again and again, as long as the front's event loop turns. Knows nothing of what is asked."""

import asyncio
from collections.abc import Callable

RESIDENCY_PERIOD_S = 60.0
"""Between two questions to the engine whether its model is still on the GPU."""


class Recheck:
    """`ask` is called every `period_s`, the first time after one period; it must not wait."""

    def __init__(self, ask: Callable[[], None], *, period_s: float) -> None:
        self._ask = ask
        self._period_s = period_s
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._repeat())

    def stop(self) -> None:
        """Idempotent."""
        if self._task is not None:
            self._task.cancel()

    async def _repeat(self) -> None:
        while True:
            await asyncio.sleep(self._period_s)
            self._ask()
