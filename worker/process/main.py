"""The engine process: llama.cpp behind one socket. Composition root of runner, intake and loop.

Three threads. Main loads the model and then runs steps; the intake thread reads the socket, tokenises and answers
at once, also while a step runs; the outbox's writer thread works only for a front that reads slowly.
The process lives in its own session, ignores SIGTERM and SIGINT (the front decides), and exits when its socket closes.
"""

import gc
import os
import queue
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import Literal

from worker.engine.backend import Constraint, Load, LoadedModel, SelfTest
from worker.engine.config import EngineConfig
from worker.engine.loop import Engine
from worker.errors import InsufficientMemory, ModelLoadFailed, StartupError
from worker.process.intake import prompt_violation
from worker.process.outbox import Outbox, leave
from worker.wire.frames import FrameBuffer, inbound_decoder
from worker.wire.messages import (
    Accepted,
    AskResidency,
    Cancel,
    Configure,
    Inbound,
    JobKey,
    LoadFailed,
    Progress,
    Refused,
    SelfTested,
    Submit,
    TokenId,
    Violation,
)

_READ_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True)
class Queued:
    """An accepted job on its way from the intake thread to the step thread."""

    submit: Submit
    prompt: list[TokenId]
    constraint: Constraint | None


class Intake:
    """Reads the socket on its own thread; the first frame configures, the others are jobs and cancels."""

    def __init__(self, sock: socket.socket, outbox: Outbox) -> None:
        self._sock = sock
        self._outbox = outbox
        self._model: LoadedModel | None = None
        self._max_tokens_in = 0
        self._engine: Engine | None = None
        self._cancelled: set[JobKey] = set()
        self.inbox: queue.SimpleQueue[Inbound | Queued] = queue.SimpleQueue()
        threading.Thread(target=self._read, name="intake", daemon=True).start()

    def serve(self, config: Configure, model: LoadedModel, engine: Engine) -> None:
        """From now on jobs are taken; called before Loaded is sent, and the front submits nothing earlier."""
        self._max_tokens_in = config.max_tokens_in
        self._engine = engine
        self._model = model

    def _read(self) -> None:
        buffer = FrameBuffer()
        try:
            while data := self._sock.recv(_READ_BYTES):
                for _, body in buffer.feed(data):
                    self._take(inbound_decoder.decode(body))
        except OSError:
            pass
        except Exception:  # noqa: BLE001 - top of a thread: whatever it is, it ends the process, once, with its story
            die()
        leave("")

    def _take(self, message: Inbound) -> None:
        match message:
            case Submit():
                self._examine(message)
            case Cancel():
                self.inbox.put(message)
                self._abort_if_nobody_waits(message.job)
            case Configure():
                self.inbox.put(message)
            case AskResidency():
                self._tell_residency()

    def _tell_residency(self) -> None:
        """Here and not between steps: a step may be long, and the device answers from any thread."""
        assert self._model is not None
        if self._model.residency is not None:
            self._outbox.send(self._model.residency())

    def _examine(self, submit: Submit) -> None:
        """Tokens and a constraint, or a 400 with all that is wrong."""
        assert self._model is not None
        prompt = self._model.tokenize(submit.prompt)
        too_long = prompt_violation(
            len(prompt), context_length=self._model.facts.context_length, max_tokens_in=self._max_tokens_in
        )
        constraint = self._model.constrain(submit)
        if isinstance(constraint, Violation):
            broken = (too_long, constraint) if too_long is not None else (constraint,)
            self._outbox.send(Refused(job=submit.job, violations=broken))
        elif too_long is not None:
            if constraint is not None:
                constraint.close()
            self._outbox.send(Refused(job=submit.job, violations=(too_long,)))
        else:
            self._outbox.send(Accepted(job=submit.job, prompt_tokens=len(prompt)))
            self.inbox.put(Queued(submit, prompt, constraint))

    def _abort_if_nobody_waits(self, job: JobKey) -> None:
        """Stop the running step when each of its jobs is cancelled; a mistake costs one repeated step (loop.py)."""
        assert self._engine is not None
        assert self._model is not None
        running = self._engine.step_jobs
        self._cancelled = (self._cancelled | {job}) & running
        if running and self._cancelled == running:
            self._model.runner.request_abort()


def run_engine(sock: socket.socket, generation: int, load: Load) -> None:
    """Load, report, and run steps until the socket closes. Returns only when loading failed."""
    outbox = Outbox(sock, generation)
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
    engine = Engine(model.runner, EngineConfig.of(config, model), emit=outbox.send, clock=time.monotonic)
    intake.serve(config, model, engine)
    # What is here now stays: the collector would walk all of it every few hundred steps, for milliseconds.
    gc.freeze()
    self_test = model.self_test
    if config.is_deterministic:
        found = _test(self_test, outbox, _keep_waiting(outbox))
        if isinstance(found, SelfTested) and not found.is_same:
            outbox.send(_load_failed(_indeterminate(found)))
            return
        if self_test is not None and found is None:
            outbox.send(_load_failed(_untestable(model.facts.context_length)))
            return
        self_test = None
    outbox.send(model.facts)
    while True:
        if engine.is_idle and self_test is not None:
            engine.put_away()
            found = _test(self_test, outbox, lambda: not intake.inbox.empty())
            self_test = self_test if found == "wanted" else None
        _drain(intake.inbox, engine)
        engine.step()


def _keep_waiting(outbox: Outbox) -> Callable[[], bool]:
    """Nobody wants an engine that is not ready; the front only has to hear that it is alive."""

    def is_wanted() -> bool:
        outbox.send(Progress(percent=100))
        return False

    return is_wanted


def _test(
    self_test: SelfTest | None, outbox: Outbox, is_wanted: Callable[[], bool]
) -> SelfTested | Literal["wanted"] | None:
    """Run the self-test and tell what it found, unless somebody wants the engine; None where it has nothing to say."""
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


def _indeterminate(found: SelfTested) -> ModelLoadFailed:
    return ModelLoadFailed(
        f"--deterministic: an answer would depend on the jobs beside it: logits differ {', '.join(found.differences)}. "
        "Use --device cpu and the defaults of --cache-type-k, --cache-type-v, --flash-attn, --swa-full and "
        "--ubatch-size, or another model; or leave --deterministic out"
    )


def _untestable(context_length: int) -> ModelLoadFailed:
    return ModelLoadFailed(
        f"--deterministic: a context of {context_length} tokens is too short to test that answers do not depend on the "
        "jobs beside them. Use --ctx-size 64 or more; or leave --deterministic out"
    )


def _drain(inbox: "queue.SimpleQueue[Inbound | Queued]", engine: Engine) -> None:
    """Take all messages that are there; wait for one when there is nothing to compute."""
    if engine.is_idle:
        _apply(inbox.get(), engine)
    while True:
        try:
            _apply(inbox.get_nowait(), engine)
        except queue.Empty:
            return


def _apply(message: Inbound | Queued, engine: Engine) -> None:
    match message:
        case Queued(submit, prompt, constraint):
            engine.submit(submit.job, prompt, submit.max_tokens, submit.sampling, submit.stop, constraint=constraint)
        case Cancel(job=job):
            engine.cancel(job)


def _root_of(error: BaseException) -> str:
    """The first cause's own words: numpy puts a page of advice around "failed to map segment"."""
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


def die() -> None:
    """End the process after an exception nothing can recover from; the front reads the last words."""
    try:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(1)


def main(load: Load) -> None:
    """`python -m worker.engine_process FD GENERATION`; FD is the engine's end of the socketpair."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sock = socket.socket(fileno=int(sys.argv[1]))
    try:
        run_engine(sock, int(sys.argv[2]), load)
        leave("")  # the load failed and was reported; nothing may hold the exit up
    except Exception:  # noqa: BLE001 - top of the engine loop (house rule 18): the process ends, the front goes on
        die()


def _load_llama(config: Configure, on_progress: Callable[[int], None]) -> LoadedModel:
    """A library that cannot be loaded is reported as a model is that cannot."""
    from worker.llama.load import load_model  # noqa: PLC0415 - this loads llama.cpp

    return load_model(config, on_progress)


if __name__ == "__main__":
    main(_load_llama)
