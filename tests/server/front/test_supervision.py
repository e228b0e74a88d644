"""No task of the front fails in silence: what it raises reaches who waits for it, or somebody who acts on it."""

import ast
import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.altered_worker import FAILURES
from tests.imports import Source, reachable, source, sources
from tests.loops import on_a_loop
from tests.test_architecture import FRONT
from tests.worker_process import toy_worker
from worker.errors import CallbackFailed, InternalFailure, StartupError
from worker.server.front.supervision import ended, every, failures_to, first_of, running, supervised


async def failing(error: Exception) -> None:
    await asyncio.sleep(0)
    raise error


async def endless() -> None:
    await asyncio.Event().wait()


@on_a_loop
async def test_what_a_supervised_task_raises_is_reported_while_the_task_is_still_held() -> None:
    """asyncio itself would say so only when the task is collected, and one that is held never is."""
    told: list[StartupError] = []
    cause = ZeroDivisionError("by nought")
    task = supervised(failing(cause), told.append, "the abacus")
    await asyncio.wait({task})
    (error,) = told
    assert isinstance(error, InternalFailure)
    assert error.__cause__ is cause
    assert (str(error), error.code) == ("the abacus failed: ZeroDivisionError: by nought", "INTERNAL")
    assert task.exception() is None
    with_code = CallbackFailed("no answer")
    await asyncio.wait({supervised(failing(with_code), told.append, "the ready callback")})
    assert told[1:] == [with_code], "an error with a code of its own is told as it is"


@on_a_loop
async def test_a_task_that_ends_or_is_ended_has_not_failed() -> None:
    told: list[StartupError] = []
    await supervised(asyncio.sleep(0), told.append, "a nap")
    waiting = supervised(endless(), told.append, "a wait")
    await asyncio.sleep(0)
    await ended(waiting)
    await ended(waiting)
    assert waiting.cancelled()
    assert told == []


@on_a_loop
async def test_a_tick_that_raises_ends_the_ticking_and_is_reported() -> None:
    told: asyncio.Future[StartupError] = asyncio.get_running_loop().create_future()
    ticks = iter([None, None])
    ticking = supervised(every(0.0, lambda: next(ticks)), told.set_result, "the clock")
    assert "the clock failed: RuntimeError" in str(await told)
    await ended(ticking)


def test_what_a_callback_raises_is_reported_and_goes_no_further() -> None:
    told: list[StartupError] = []
    with failures_to(told.append, "a callback"):
        raise KeyError("job-1")
    assert [str(error) for error in told] == ["a callback failed: KeyError: 'job-1'"]


@on_a_loop
async def test_a_running_task_ends_with_its_block() -> None:
    async with running(endless()) as task:
        await asyncio.sleep(0)
        assert not task.done()
    assert task.cancelled()


@pytest.mark.parametrize("reason", [None, LookupError])
@on_a_loop
async def test_what_a_running_task_raised_leaves_its_block_unless_that_ends_for_a_reason_of_its_own(
    reason: type[Exception] | None,
) -> None:
    async def play() -> None:
        async with running(failing(ZeroDivisionError())) as task:
            await first_of(task)
            if reason is not None:
                raise reason

    with pytest.raises(reason or ZeroDivisionError):
        await play()


@on_a_loop
async def test_the_first_of_events_and_futures_ends_the_wait_and_the_others_go_on() -> None:
    never, soon = asyncio.Event(), asyncio.Event()
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_soon(soon.set)
    await first_of(never, future, soon)
    assert not future.done()
    await first_of(never, future, timeout_s=0.0)
    future.set_result(None)
    await first_of(never, future)
    assert len(asyncio.all_tasks()) == 1, "no wait is left behind"


@pytest.mark.process
@pytest.mark.parametrize("part", FAILURES)
def test_a_worker_that_loses_a_part_says_which_and_exits_with_1(part: str, tmp_path: Path) -> None:
    calls = ["--callback-url", "http://127.0.0.1:1/ready"] if part == "the ready callback" else []
    with toy_worker(tmp_path, *calls, failing=part) as worker:
        worker.ready()
        if part == "the watch over the engine process":
            worker.engine.kill()
        failure = worker.failure()
    assert (failure["event"], failure["code"]) == ("error", "INTERNAL")
    assert failure["message"].startswith(f"{part} failed: ")
    assert failure["traceback"]
    assert worker.log[-1]["event"] == "shutdown"


SPAWNS = {"create_task", "ensure_future", "run_coroutine_threadsafe", "TaskGroup", "run_in_executor"}
"""Makes something that runs beside its caller."""

WAITS = {"gather", "to_thread", "wait_for", "shield"}
"""asyncio's; each makes something that may run beside its caller, unless it is awaited at once."""

CALLBACKS = {
    "call_soon": 0,
    "call_soon_threadsafe": 0,
    "call_later": 1,
    "call_at": 1,
    "add_done_callback": 0,
    "add_reader": 1,
    "add_writer": 1,
    "add_signal_handler": 1,
}
"""Has the event loop call its n-th argument; what that raises is lost in a line of asyncio's log."""

WEB = "worker.server.web"
CALLED_BY_THE_LOOP = {
    ("worker.server.front.admission", "self._time_is_up"),
    ("worker.serve", "self._arrived"),
    *((f"{WEB}.connection", f"self.{name}") for name in ("_look_at_body", "_look_at_taking", "_look_for_reset")),
    *((f"{WEB}.connection", f"self.{name}") for name in ("timeout_keep_alive_handler", "transport.abort")),
    (f"{WEB}.streaming", "self._look"),
    ("worker.commands.session", "ask"),
}
"""Each tells what it raises (`failures_to`), or does nothing that can fail: sets an event, aborts a transport, puts a
comment into an empty buffer, settles a future that is not settled, cancels a task."""


def front() -> list[Source]:
    names = reachable(*FRONT)
    return [module for module in sources() if module.name in names]


def named(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else ast.unparse(call.func)


def calls_to(names: set[str], module: Source) -> Iterator[ast.Call]:
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Call) and named(node) in names:
            yield node


def is_of_asyncio(call: ast.Call) -> bool:
    """A threading.Condition has a wait_for too."""
    return ast.unparse(call.func) in {named(call), f"asyncio.{named(call)}"}


def awaited(module: Source) -> set[ast.expr]:
    return {node.value for node in ast.walk(module.tree) if isinstance(node, ast.Await)}


def test_only_the_supervision_makes_tasks() -> None:
    spawning = {module.name for module in front() if any(calls_to(SPAWNS, module))}
    assert spawning == {"worker.server.front.supervision"}


def test_what_could_run_next_to_its_caller_is_awaited_at_once() -> None:
    left = [
        f"{module.name}: {ast.unparse(call)}"
        for module in front()
        for call in calls_to(WAITS, module)
        if call not in awaited(module) and is_of_asyncio(call)
    ]
    assert left == []


def test_what_the_event_loop_calls_cannot_fail_in_silence() -> None:
    found = {
        (module.name, ast.unparse(call.args[CALLBACKS[named(call)]]))
        for module in front()
        for call in calls_to(set(CALLBACKS), module)
    }
    assert found == CALLED_BY_THE_LOOP


def test_the_walk_finds_a_task_however_it_is_made_and_knows_what_is_awaited_from_what_is_left() -> None:
    loops = ("asyncio.get_running_loop().create_task(f())", "loop.run_in_executor(None, f)")
    assert all([*calls_to(SPAWNS, source(text))] for text in ("asyncio.create_task(f())", "create_task(f())", *loops))
    module = source("async def f():\n    await gather(a())\n    gather(b())\n")
    left = [ast.unparse(call) for call in calls_to(WAITS, module) if call not in awaited(module)]
    assert left == ["gather(b())"]
