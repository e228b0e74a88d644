"""The step thread's work once a model is loaded: it takes what the intake has read, runs steps, and rests.

While it rests it does what no job waits for. It knows neither sockets nor llama.cpp.
"""

import queue
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

from worker.engine.backend import Found
from worker.engine.loop import Engine
from worker.engine.sequence import Queued
from worker.server.process.intake import Leaving, Work
from worker.wire.jobs import Cancel

SETTLED_S = 0.1
"""The seconds without a job before the last one's cells are copied out, if the copy outlives the engine. It takes
milliseconds, and a conversation that continues at once does not wait for them."""


def work(inbox: "queue.SimpleQueue[Work]", engine: Engine, rest: Callable[[], None], *, is_kept: bool) -> NoReturn:
    """Run steps until the process ends. `rest` is called while no job is there. `is_kept` says that cells of finished
    jobs outlive it."""
    while True:
        if engine.is_idle:
            if inbox.empty():
                rest()
            _rest(inbox, engine, is_kept=is_kept)
        drain(inbox, engine)
        engine.step()


def _rest(inbox: "queue.SimpleQueue[Work]", engine: Engine, *, is_kept: bool) -> None:
    """Wait for work, and do meanwhile what no job waits for."""
    while inbox.empty() and engine.tidy():
        pass
    message = None
    if is_kept:
        with suppress(queue.Empty):
            message = inbox.get(timeout=SETTLED_S)
        while message is None and inbox.empty() and engine.back_up():
            pass
    _apply(message or inbox.get(), engine)


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
