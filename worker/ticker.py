"""Calls again and again, as long as the front's event loop turns. Knows nothing of what is called."""

import asyncio
from collections.abc import Callable


class Ticker:
    """`tick` is called every `period_s`, the first time after one period; it must not wait."""

    def __init__(self, tick: Callable[[], None], *, period_s: float) -> None:
        self._tick = tick
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
            self._tick()
