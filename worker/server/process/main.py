"""The engine process: llama.cpp behind one socket.

It has three threads. The main thread loads the model and then runs steps; the intake thread (intake.py) reads the
socket and answers at once; the outbox's writer thread (outbox.py) works only for a front that reads slowly.
The process lives in its own session, ignores SIGTERM and SIGINT (the front decides), and exits when its socket closes.
"""

import gc
import logging
import signal
import socket
import sys
import time
from collections.abc import Callable

from worker.config.engine_settings import Configure
from worker.engine.backend import Load, LoadedModel
from worker.engine.config import EngineConfig
from worker.engine.loop import Engine
from worker.errors import InsufficientMemory, ModelLoadFailed, StartupError
from worker.server.process.intake import Intake, drain, work
from worker.server.process.outbox import Outbox, die, leave
from worker.wire.load import LoadFailed, Progress, Warned

log = logging.getLogger("worker.server.process")


def run_engine(sock: socket.socket, load: Load) -> None:
    """Load, report, and run steps until the socket closes. Returns only when loading failed."""
    outbox = Outbox(sock)
    logging.getLogger("worker").addHandler(_Warnings(outbox))
    intake = Intake(sock, outbox)
    config = intake.inbox.get()
    assert isinstance(config, Configure)
    try:
        model = load(config, lambda percent: outbox.send(Progress(percent=percent)))
    except StartupError as error:
        outbox.send(_load_failed(error))
        return
    except (MemoryError, OSError, ImportError, SystemError) as error:
        # What Python makes of a small address space or too few descriptors, in the middle of an import.
        outbox.send(_load_failed(ModelLoadFailed(f"the engine cannot be loaded: {_root_of(error)}")))
        return
    engine = Engine(
        model.runner,
        EngineConfig.of(config, model),
        emit=outbox.send,
        clock=time.monotonic,
        draft=model.draft,
        marks=model.marks,
        warn=log.warning,
        while_running=intake.while_running,
    )
    intake.serve(config, model, engine)
    # What is here now stays: the collector would walk all of it every few hundred steps, for milliseconds.
    gc.freeze()
    if model.find is not None:
        model.find(intake.inbox.put)
        drain(intake.inbox, engine)
    outbox.send(model.facts)
    work(intake.inbox, engine, at_most_every(GIVE_BACK_EVERY_S, model.give_back), is_kept=model.find is not None)


GIVE_BACK_EVERY_S = 60.0
"""The least seconds between two times that freed memory is returned to the system, while no job is there: glibc keeps
what is freed, and the heap of a busy engine grows for hours. It takes milliseconds."""


def at_most_every(
    period_s: float, act: Callable[[], None], clock: Callable[[], float] = time.monotonic
) -> Callable[[], None]:
    """Return a function that does `act`, unless it was done within the period."""
    due_s = clock()

    def act_if_due() -> None:
        nonlocal due_s
        if clock() >= due_s:
            act()
            due_s = clock() + period_s

    return act_if_due


class _Warnings(logging.Handler):
    """Sends what the rooms of this process warn of to the front, which logs it."""

    def __init__(self, outbox: Outbox) -> None:
        super().__init__(logging.WARNING)
        self._outbox = outbox

    def emit(self, record: logging.LogRecord) -> None:
        self._outbox.send(Warned(text=record.getMessage()))


def _root_of(error: BaseException) -> str:
    """The words of the first cause: numpy puts a page of advice around "failed to map segment"."""
    while error.__cause__ is not None:
        error = error.__cause__
    return " ".join(str(error).split()) or "there is too little memory"


def _load_failed(error: StartupError) -> LoadFailed:
    if isinstance(error, InsufficientMemory):
        return LoadFailed(
            code=error.code,
            message=str(error),
            needed_bytes=error.needed_bytes,
            available_bytes=error.available_bytes,
            device=error.device,
        )
    return LoadFailed(code=error.code, message=str(error))


def main(load: Load) -> None:
    """`python -m worker.server.process.main FD`; FD is the engine's end of the socketpair."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sock = socket.socket(fileno=int(sys.argv[1]))
    try:
        run_engine(sock, load)
        leave("")  # the load failed and was reported; nothing may hold the exit up
    except Exception:  # noqa: BLE001 - top of the process: it ends, and the front goes on
        die()


def _load_llama(config: Configure, on_progress: Callable[[int], None]) -> LoadedModel:
    """Load llama.cpp and the model. The import stands here, so that a library that fails is reported as a model is."""
    from worker.models.loading.load import load_model  # noqa: PLC0415 - this loads llama.cpp

    return load_model(config, on_progress)


if __name__ == "__main__":
    main(_load_llama)
