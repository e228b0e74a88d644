"""Background tasks, and the handling of their failures, and the watch over a silent engine. This is the only place
where the front makes a task.

A task whose exception is not taken ends in silence: the watchdog would stop, or a dead engine would never be replaced,
while the worker still reports that it is ready. So a task here has either a block that takes its result (`running`), or
a `fail` that gets its exception (`supervised`).
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeVar

from worker.errors import InternalFailure, StartupError

T = TypeVar("T")

LOAD_SILENCE_S = 300.0
SLOW_DISK_BYTES_PER_S = 20e6
"""While loading, the time to read the file at this rate is added: if page-ins cannot be counted, or evict each other,
the first steps read the whole file before the engine says anything."""

STEPS_OF_SILENCE = 10
"""A silent engine is wedged after this many of its longest steps, if that is more than the floor."""

Fail = Callable[[StartupError], None]
"""A callback for failures after which the worker cannot go on. It may be called more than once, and must not raise."""


@contextmanager
def failures_to(fail: Fail, what: str) -> Iterator[None]:
    """Enclose a callback of the event loop: `fail` gets the exception that it raised. `what` names it in the log."""
    try:
        yield
    except StartupError as error:
        fail(error)
    except Exception as error:  # noqa: BLE001 - the top of a task or callback: above it is only the event loop
        fail(InternalFailure(what, error))


def supervised(work: Coroutine[Any, Any, None], fail: Fail, what: str) -> asyncio.Task[None]:
    """Run `work` in a task that the caller keeps. Its exception goes to `fail`; the task itself never raises."""
    return asyncio.create_task(_reporting(work, fail, what), name=what)


async def _reporting(work: Coroutine[Any, Any, None], fail: Fail, what: str) -> None:
    with failures_to(fail, what):
        await work


@asynccontextmanager
async def running(work: Coroutine[Any, Any, T]) -> AsyncIterator[asyncio.Task[T]]:
    """Run a task for as long as the block lasts, and cancel it then. Its exception is raised at the block's end, if no
    other exception ends the block."""
    task = asyncio.create_task(work)
    try:
        yield task
    finally:
        await ended(task)
    if not task.cancelled():
        task.result()


async def every(period_s: float, tick: Callable[[], None]) -> None:
    """Call `tick` every `period_s`, the first time after one period, for as long as the event loop turns."""
    while True:
        await asyncio.sleep(period_s)
        tick()


async def ended(task: asyncio.Task[Any]) -> None:
    """Cancel a task and wait until it is over. Idempotent."""
    task.cancel()
    await asyncio.wait({task})
    if not task.cancelled():
        task.exception()  # taken, or asyncio would log it when the task is collected


async def first_of(*waits: asyncio.Future[Any] | asyncio.Event, timeout_s: float | None = None) -> None:
    """Wait for the first of futures and events, or the time-out. The futures go on; they are their owners'."""
    futures = [wait for wait in waits if not isinstance(wait, asyncio.Event)]
    async with asyncio.TaskGroup() as group:
        own = [group.create_task(wait.wait()) for wait in waits if isinstance(wait, asyncio.Event)]
        try:
            await asyncio.wait([*own, *futures], timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in own:
                task.cancel()


class Watchdog:
    """Calls `kill(cause)` once for each silence of an engine that owes signs of life: frames of the thread that loads
    and steps. Silence counts only while the front's own loop turns: a front that was stopped must not blame its engine.

    The front's event loop calls `tick` every `tick_s`.
    """

    def __init__(
        self, kill: Callable[[str], None], *, floor_s: float, model_bytes: int, clock: Callable[[], float]
    ) -> None:
        self._kill = kill
        self._floor_s = floor_s
        self._load_silence_s = LOAD_SILENCE_S + model_bytes / SLOW_DISK_BYTES_PER_S
        self._clock = clock
        self.tick_s = min(1.0, floor_s / 10)
        self._longest_step_s = 0.0
        self._is_working = False
        self.expect_load()

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

    def expect_work(self, n_jobs: int) -> None:
        """Say how many jobs the engine has from now on. If it has any, its silence counts from the moment when it got
        the first."""
        if n_jobs and not self._is_working:
            self._end_silence()
        self._is_working = n_jobs > 0

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
        limit_s = max(self._floor_s, STEPS_OF_SILENCE * self._longest_step_s)
        if self._is_loading:
            limit_s = self._load_silence_s
        if (self._is_loading or self._is_working) and (silence_s := self._silence_s) > limit_s:
            self._end_silence()
            self._kill(f"no sign of life for {silence_s:.1f} s")
