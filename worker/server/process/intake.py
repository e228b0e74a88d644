"""The inbox of the engine process: the intake thread fills it, and the step thread takes from it between steps.

The intake reads the socket at once, also while a step runs: it has prompts read, compiles constraints, refuses what
does not fit, and answers questions about tokens. It asks a step to stop if all its jobs are cancelled, or if it is in
the way of a new job.
"""

import queue
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import NoReturn

from worker.config.engine_settings import Configure, inbound_decoder
from worker.engine.backend import Found, LoadedModel
from worker.engine.loop import Engine
from worker.engine.sequence import Queued
from worker.engine.step import salted
from worker.server.process.outbox import Outbox, die, leave
from worker.wire.encoding import FrameBuffer
from worker.wire.jobs import Accepted, Cancel, JobKey, Submit, TokenId
from worker.wire.load import AskResidency
from worker.wire.messages import (
    Inbound,
    Overflow,
    Refused,
    Tokenize,
    Tokenized,
    Untokenized,
    Violation,
)

_READ_BYTES = 256 * 1024

_GLANCE_S = 0.1
"""The longest that a new job is kept from later ones until a step runs. Between two steps there are milliseconds; if it
takes longer, the engine has something else to do and looks into the inbox next."""

FAREWELL_S = 1.5
"""The longest that the process waits for a step to end, and again as long for files to be written; the front waits for
5 s."""

SETTLED_S = 0.1
"""The seconds without a job before the last one's cells are copied out, if the copy outlives the engine. It takes
milliseconds, and a conversation that continues at once does not wait for them."""


Work = Configure | Cancel | Queued | Found | threading.Event
"""The work that the step thread takes between steps. It sets an event when all that jobs computed is copied out."""


class Intake:
    """Reads the socket on its own thread. The first frame is Configure, the others are jobs, cancels and questions."""

    _model: LoadedModel
    _engine: Engine
    _max_tokens_in: int
    """All three are there once `serve` was called: the front sends nothing but Configure before."""

    def __init__(self, sock: socket.socket, outbox: Outbox) -> None:
        self._sock = sock
        self._outbox = outbox
        self._is_serving = False
        self._cancelled: set[JobKey] = set()
        self._between_steps = threading.Lock()
        """The step thread has it, except while a step runs: who takes it meanwhile finds the engine at rest."""
        self.inbox: queue.SimpleQueue[Work] = queue.SimpleQueue()
        threading.Thread(target=self._read, name="intake", daemon=True).start()

    def serve(self, config: Configure, model: LoadedModel, engine: Engine) -> None:
        """Take jobs from now on, before Loaded is sent. The step thread calls it, and has the engine for itself then,
        except `while_running`."""
        self._between_steps.acquire()
        self._max_tokens_in, self._engine, self._model = config.max_tokens_in, engine, model
        self._is_serving = True

    @contextmanager
    def while_running(self) -> Iterator[None]:
        """The Engine's `while_running`."""
        self._between_steps.release()
        try:
            yield
        finally:
            self._between_steps.acquire()

    def _read(self) -> None:
        buffer = FrameBuffer()
        try:
            while data := self._sock.recv(_READ_BYTES):
                for body in buffer.feed(data):
                    self._take(inbound_decoder.decode(body))
        except OSError:
            pass
        except Exception:  # noqa: BLE001 - top of a thread: whatever it is, it ends the process, once, with its story
            die()
        if self._is_serving and self._model.flush is not None:
            self._keep_all(self._model.flush)
        leave("")

    def _keep_all(self, flush: Callable[[float], None]) -> None:
        """Flush the prefix cache to disk, for at most `FAREWELL_S`."""
        is_put_away = threading.Event()
        self.inbox.put(is_put_away)
        # No reader is left for the result of a step.
        self._model.runner.request_abort()
        is_put_away.wait(FAREWELL_S)
        flush(FAREWELL_S)

    def _take(self, message: Inbound | Configure) -> None:
        match message:
            case Submit():
                self._examine(message)
            case Cancel():
                self.inbox.put(message)
                self._abort_if_no_job_waits(message.job)
            case Configure():
                self.inbox.put(message)
            case AskResidency():
                # Not between steps: a step may be long, and the device answers from any thread.
                if self._model.residency is not None:
                    self._outbox.send(self._model.residency())
            case Tokenize():
                self._outbox.send(self._answer(message))

    def _answer(self, asked: Tokenize) -> Tokenized | Untokenized:
        prompts, key = self._model.prompts, asked.question
        read = prompts.read(asked.prompt, add_special=asked.add_special, parse_special=asked.parse_special)
        if isinstance(read, Violation):
            return Untokenized(question=key, violations=(read,))
        text = prompts.detokenize(read.tokens) if read.text is None else read.text
        assert not isinstance(text, Violation), "these tokens were read"
        return Tokenized(question=key, tokens=tuple(read.tokens), text=text)

    def _examine(self, submit: Submit) -> None:
        """Queue a job with its tokens and its constraint, or refuse it with all that is wrong."""
        prompt = self._tokens_of(submit)
        constraint = self._model.constrain(submit) if submit.is_constrained else None
        prediction = self._predicted(submit.prediction)
        broken = tuple(found for found in (prompt, constraint, prediction) if isinstance(found, Violation))
        if isinstance(prompt, Violation) or isinstance(constraint, Violation) or isinstance(prediction, Violation):
            if constraint is not None and not isinstance(constraint, Violation):
                constraint.close()
            self._outbox.send(Refused(job=submit.job, violations=broken))
        else:
            unenforced_tools = () if constraint is None else constraint.unenforced_tools
            self._outbox.send(Accepted(job=submit.job, prompt_tokens=len(prompt), unenforced_tools=unenforced_tools))
            self.inbox.put(Queued(submit, prompt, constraint, prediction))
            self._abort_if_in_the_way(salted(prompt, submit.salt))

    def _tokens_of(self, submit: Submit) -> list[TokenId] | Violation:
        read = self._model.prompts.read(submit.prompt)
        if isinstance(read, Violation):
            return read
        too_long = prompt_violation(
            len(read.tokens),
            context_length=self._model.facts.context_length,
            max_tokens_in=self._max_tokens_in,
            is_answered=submit.sampling.max_tokens > 0,
        )
        return too_long or read.tokens

    def _predicted(self, text: str) -> list[TokenId] | Violation:
        """The tokens of a text that an answer will probably repeat; names of special tokens in it are text."""
        if not text:
            return []
        read = self._model.prompts.read(text, add_special=False, parse_special=False)
        if isinstance(read, Violation):
            return Violation("prediction", read.constraint, f"prediction: {read.message}")
        return read.tokens

    def _abort_if_in_the_way(self, prompt: list[TokenId]) -> None:
        """Stop the running step where a job that is in the inbox now should not wait for it."""
        # The step thread may have taken what is in the inbox just before, and be about to begin a step.
        if self._between_steps.acquire(timeout=_GLANCE_S):
            try:
                if self._engine.is_in_the_way(prompt):
                    self._model.runner.request_abort()
            finally:
                self._between_steps.release()

    def _abort_if_no_job_waits(self, job: JobKey) -> None:
        """Stop the running step when each of its jobs is cancelled; a mistake costs one repeated step (loop.py)."""
        running = self._engine.step_jobs
        self._cancelled = (self._cancelled | {job}) & running
        if running and self._cancelled == running:
            self._model.runner.request_abort()


def prompt_violation(
    n_prompt: int, *, context_length: int, max_tokens_in: int, is_answered: bool = True
) -> Violation | None:
    """Return why a prompt of `n_prompt` tokens is refused, or None if it fits: 1 ≤ n_prompt, n_prompt + 1 ≤
    context_length (without the 1 if nothing is generated), and n_prompt ≤ max_tokens_in (0 means no such limit).
    """
    if n_prompt == 0:
        return Violation("prompt", "non_empty", "prompt has no tokens for this model")
    if n_prompt + is_answered > context_length:
        room = " and needs room for one more" if is_answered else ""
        rule, limit, words = "context_length", context_length, f"{room}; the context is {context_length}"
    elif max_tokens_in and n_prompt > max_tokens_in:
        rule, limit, words = "max_tokens_in", max_tokens_in, f"; this worker takes at most {max_tokens_in}"
    else:
        return None
    return Violation("prompt", f"{rule}({limit})", f"prompt has {n_prompt} tokens{words}", Overflow(n_prompt, limit))


# ── the step thread ──────────────────────────────────────────────────────────────────────────────


def work(inbox: queue.SimpleQueue[Work], engine: Engine, rest: Callable[[], None], *, is_kept: bool) -> NoReturn:
    """Run steps until the process ends. `rest` is called while no job is there. `is_kept` says that cells of finished
    jobs outlive it."""
    while True:
        if engine.is_idle:
            if inbox.empty():
                rest()
            _rest(inbox, engine, is_kept=is_kept)
        drain(inbox, engine)
        engine.step()


def _rest(inbox: queue.SimpleQueue[Work], engine: Engine, *, is_kept: bool) -> None:
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


def drain(inbox: queue.SimpleQueue[Work], engine: Engine) -> None:
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
        case threading.Event():
            while engine.back_up():
                pass
            message.set()
