"""Background tasks, and the handling of their failures. This is the only place where the front makes a task.

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
