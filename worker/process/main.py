"""The engine process: llama.cpp behind one socket. Composition root of runner, intake, loop and outbox.

It has three threads. The main thread loads the model and then runs steps; the intake thread (intake.py) reads the
socket and answers at once; the outbox's writer thread (outbox.py) works only for a front that reads slowly. The process
lives in its own session, ignores SIGTERM and SIGINT (the front decides), and exits when its socket closes.
"""

import gc
import logging
import queue
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import closing
from typing import Literal

from worker.engine.backend import Found, Load, LoadedModel, SelfTest
from worker.engine.config import EngineConfig
from worker.engine.loop import Engine
from worker.engine.sequence import Queued
from worker.errors import InsufficientMemory, ModelLoadFailed, StartupError
from worker.process.intake import Intake, Leaving, Work
from worker.process.outbox import Outbox, die, leave
from worker.wire.jobs import Cancel
from worker.wire.load import Configure, LoadFailed, Progress, SelfTested, Warned

log = logging.getLogger("worker.process")

CALM_S = 2.0
"""The seconds without a job before the engine tests itself: a worker with frequent requests has better things to
compute, and keeps its last job's cells in their place."""

SETTLED_S = 0.1
"""The seconds without a job before the last one's cells are copied out, if the copy outlives the engine. It takes
milliseconds, and a conversation that continues at once does not wait for them."""


def run_engine(sock: socket.socket, generation: int, load: Load) -> None:
    """Load, report, and run steps until the socket closes. Returns only when loading failed."""
    outbox = Outbox(sock, generation)
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
    intake.take_turns()
    intake.serve(config, model, engine)
    # What is here now stays: the collector would walk all of it every few hundred steps, for milliseconds.
    gc.freeze()
    self_test = model.self_test
    if config.must_be_invariant:
        found = _test(self_test, outbox, _keep_waiting(outbox))
        if isinstance(found, SelfTested) and not found.is_same:
            outbox.send(_load_failed(_indeterminate(_flag(config), found)))
            return
        if self_test is not None and found is None:
            outbox.send(_load_failed(_untestable(_flag(config), model.facts.context_length)))
            return
        self_test = None
    if model.find is not None:
        model.find(intake.inbox.put)
        _drain(intake.inbox, engine)
    outbox.send(model.facts)
    while True:
        if engine.is_idle:
            self_test = _rest(intake.inbox, engine, outbox, self_test, is_kept=model.find is not None)
        _drain(intake.inbox, engine)
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
    found = _test(self_test, outbox, lambda: not inbox.empty())
    return self_test if found == "wanted" else None


class _Warnings(logging.Handler):
    """Sends what the rooms of this process warn of to the front, which logs it."""

    def __init__(self, outbox: Outbox) -> None:
        super().__init__(logging.WARNING)
        self._outbox = outbox

    def emit(self, record: logging.LogRecord) -> None:
        self._outbox.send(Warned(text=record.getMessage()))


def _keep_waiting(outbox: Outbox) -> Callable[[], bool]:
    """The `is_wanted` of an engine that is not ready: no job wants it; the front only has to hear that it is alive."""

    def is_wanted() -> bool:
        outbox.send(Progress(percent=100))
        return False

    return is_wanted


def _test(
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


def _flag(config: Configure) -> str:
    return "--deterministic" if config.is_deterministic else "--batch-invariant on"


def _indeterminate(flag: str, found: SelfTested) -> ModelLoadFailed:
    return ModelLoadFailed(
        f"{flag}: an answer would depend on other jobs: logits differ {', '.join(found.differences)}. "
        "Use --device cpu and the defaults of --cache-type-k, --cache-type-v, --flash-attn, --swa-full and "
        f"--ubatch-size, or another model; or remove {flag}"
    )


def _untestable(flag: str, context_length: int) -> ModelLoadFailed:
    return ModelLoadFailed(
        f"{flag}: a context of {context_length} tokens is too short to test that answers do not depend on "
        f"other jobs. Use --ctx-size 64 or more; or remove {flag}"
    )


def _next(inbox: "queue.SimpleQueue[Work]", *, timeout_s: float | None) -> Work | None:
    """Wait for a message, without end where that is meant; None when there was none in time."""
    try:
        return inbox.get(timeout=timeout_s)
    except queue.Empty:
        return None


def _drain(inbox: "queue.SimpleQueue[Work]", engine: Engine) -> None:
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
    """`python -m worker.process.main FD GENERATION`; FD is the engine's end of the socketpair."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sock = socket.socket(fileno=int(sys.argv[1]))
    try:
        run_engine(sock, int(sys.argv[2]), load)
        leave("")  # the load failed and was reported; nothing may hold the exit up
    except Exception:  # noqa: BLE001 - top of the engine loop (house rule 18): the process ends, the front goes on
        die()


def _load_llama(config: Configure, on_progress: Callable[[int], None]) -> LoadedModel:
    """Load llama.cpp and the model. The import stands here, so that a library that fails is reported as a model is."""
    from worker.loading.load import load_model  # noqa: PLC0415 - this loads llama.cpp

    return load_model(config, on_progress)


if __name__ == "__main__":
    main(_load_llama)
