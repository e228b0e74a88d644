"""Work that nobody awaits, and who is told when it fails. The one place where the front makes a task.

A task whose exception nobody takes ends in silence: the watchdog would no longer look, or a dead engine would never be
replaced, while the worker still says that it is ready. So a task here has either a block that takes its result
(`running`), or a `fail` that is told what it raised (`supervised`). Runs on the front's event loop; knows nothing of
what the tasks do.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeVar

from worker.errors import InternalFailure, StartupError

T = TypeVar("T")

Fail = Callable[[StartupError], None]
"""Called when the worker cannot go on. It may be called more than once, and must not raise."""


@contextmanager
def failures_to(fail: Fail, what: str) -> Iterator[None]:
    """Encloses what the event loop calls and nobody awaits: `fail` gets what it raised. `what` names it in the log."""
    try:
        yield
    except StartupError as error:
        fail(error)
    except Exception as error:  # noqa: BLE001 - the top of a task or callback: above it is only the event loop
        fail(InternalFailure(what, error))


def supervised(work: Coroutine[Any, Any, None], fail: Fail, what: str) -> asyncio.Task[None]:
    """Run `work` beside its caller, who keeps the task. What it raises goes to `fail`; the task itself never raises."""
    return asyncio.create_task(_reporting(work, fail, what), name=what)


async def _reporting(work: Coroutine[Any, Any, None], fail: Fail, what: str) -> None:
    with failures_to(fail, what):
        await work


@asynccontextmanager
async def running(work: Coroutine[Any, Any, T]) -> AsyncIterator[asyncio.Task[T]]:
    """A task for as long as the block lasts, cancelled then. What it raised is raised at the block's end, if no other
    exception ends the block."""
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
