"""The step thread's work once a model is loaded: it takes what the intake has read, runs steps, and rests.

While it rests it does what no job waits for. It knows neither sockets nor llama.cpp.
"""

import queue
from collections.abc import Callable
from contextlib import closing
from typing import Literal, NoReturn

from worker.engine.backend import Found, SelfTest
from worker.engine.loop import Engine
from worker.engine.sequence import Queued
from worker.process.intake import Leaving, Work
from worker.process.outbox import Outbox
from worker.process.returns import Returns
from worker.wire.jobs import Cancel
from worker.wire.load import SelfTested

CALM_S = 2.0
"""The seconds without a job before the engine tests itself: a worker with frequent requests has better things to
compute, and keeps its last job's cells in their place."""

SETTLED_S = 0.1
"""The seconds without a job before the last one's cells are copied out, if the copy outlives the engine. It takes
milliseconds, and a conversation that continues at once does not wait for them."""


def work(
    inbox: "queue.SimpleQueue[Work]",
    engine: Engine,
    outbox: Outbox,
    self_test: SelfTest | None,
    returns: Returns,
    *,
    is_kept: bool,
) -> NoReturn:
    """Run steps until the process ends. `is_kept` says that cells of finished jobs outlive it."""
    while True:
        if engine.is_idle:
            if inbox.empty():
                returns.rest()
            self_test = _rest(inbox, engine, outbox, self_test, is_kept=is_kept)
        drain(inbox, engine)
        engine.step()


def _rest(
    inbox: "queue.SimpleQueue[Work]", engine: Engine, outbox: Outbox, self_test: SelfTest | None, *, is_kept: bool
) -> SelfTest | None:
    """Wait for work, and do meanwhile what no job waits for. Returns the self-test, if it is still to be run."""
    while inbox.empty() and engine.tidy():
        pass
    message = _next(inbox, timeout_s=SETTLED_S) if is_kept else None
    if message is None:
        if is_kept:
            while engine.back_up() and inbox.empty():
                pass
        message = _next(inbox, timeout_s=None if self_test is None else CALM_S)
    if message is not None:
        _apply(message, engine)
        return self_test
    engine.put_away()
    found = run_test(self_test, outbox, lambda: not inbox.empty())
    return self_test if found == "wanted" else None


def run_test(
    self_test: SelfTest | None, outbox: Outbox, is_wanted: Callable[[], bool]
) -> SelfTested | Literal["wanted"] | None:
    """Run the self-test and send its result, unless a job wants the engine; None if there is no result."""
    if self_test is None:
        return None
    if is_wanted():
        return "wanted"
    with closing(self_test()) as parts:
        for result in parts:
            if result is not None:
                outbox.send(result)
                return result
            if is_wanted():
                return "wanted"
    return None


def _next(inbox: "queue.SimpleQueue[Work]", *, timeout_s: float | None) -> Work | None:
    """Wait for a message, without end where that is meant; None when there was none in time."""
    try:
        return inbox.get(timeout=timeout_s)
    except queue.Empty:
        return None


def drain(inbox: "queue.SimpleQueue[Work]", engine: Engine) -> None:
    """Take all messages that are in the inbox."""
    while True:
        try:
            _apply(inbox.get_nowait(), engine)
        except queue.Empty:
            return


def _apply(message: Work, engine: Engine) -> None:
    match message:
        case Queued():
            engine.submit(message)
        case Cancel(job=job):
            engine.cancel(job)
        case Found():
            engine.restore(message)
        case Leaving(is_put_away=is_put_away):
            while engine.back_up():
                pass
            is_put_away.set()
