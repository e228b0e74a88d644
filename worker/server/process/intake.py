"""The intake: what the front sends, read and answered at once, also while a step runs.

Owns the socket's reading end and its thread: it has prompts read, compiles constraints, refuses what does not fit, and
answers questions about tokens. Jobs and cancels go on to the step thread through the inbox. Knows nothing of slots and
steps, but for one thing: a step is asked to stop if all its jobs are cancelled, or if it is in the way of a new job.
"""

import queue
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from worker.config.engine_settings import Configure, inbound_decoder
from worker.engine.backend import Found, LoadedModel
from worker.engine.loop import Engine
from worker.engine.sequence import Queued
from worker.engine.step import salted
from worker.server.process.outbox import Outbox, die, leave
from worker.wire.frames import FrameBuffer
from worker.wire.jobs import Accepted, Cancel, JobKey, Submit, TokenId
from worker.wire.load import AskResidency
from worker.wire.messages import Inbound
from worker.wire.questions import Detokenize, Detokenized, Tokenize, Tokenized, Untokenized
from worker.wire.refusals import Overflow, Refused, Violation

_READ_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True)
class Leaving:
    """The process is about to end; whether all that jobs computed is copied out."""

    is_put_away: threading.Event


Work = Inbound | Configure | Queued | Found | Leaving
"""The work that the step thread takes between steps."""

_GLANCE_S = 0.1
"""The longest that a new job is kept from later ones until a step runs. Between two steps there are milliseconds; if it
takes longer, the engine has something else to do and looks into the inbox next."""

FAREWELL_S = 1.5
"""The longest that the process waits for a step to end, and again as long for files to be written; the front waits for
5 s."""


class Intake:
    """Reads the socket on its own thread. The first frame is Configure, the others are jobs, cancels and questions."""

    def __init__(self, sock: socket.socket, outbox: Outbox) -> None:
        self._sock = sock
        self._outbox = outbox
        self._model: LoadedModel | None = None
        self._max_tokens_in = 0
        self._engine: Engine | None = None
        self._cancelled: set[JobKey] = set()
        self._between_steps = threading.Lock()
        """The step thread has it, except while a step runs: who takes it meanwhile finds the engine at rest."""
        self.inbox: queue.SimpleQueue[Work] = queue.SimpleQueue()
        threading.Thread(target=self._read, name="intake", daemon=True).start()

    def serve(self, config: Configure, model: LoadedModel, engine: Engine) -> None:
        """Take jobs from now on. Called before Loaded is sent, because the front submits nothing earlier."""
        self._max_tokens_in = config.max_tokens_in
        self._engine = engine
        self._model = model

    def take_turns(self) -> None:
        """Called by the step thread, once: the engine is its own from now on, except `while_running`."""
        self._between_steps.acquire()

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
                for _, body in buffer.feed(data):
                    self._take(inbound_decoder.decode(body))
        except OSError:
            pass
        except Exception:  # noqa: BLE001 - top of a thread: whatever it is, it ends the process, once, with its story
            die()
        self._keep_all()
        leave("")

    def _keep_all(self) -> None:
        """Flush the prefix cache to disk, for at most `FAREWELL_S`."""
        if self._model is not None and self._model.flush is not None:
            leaving = Leaving(threading.Event())
            self.inbox.put(leaving)
            # No reader is left for the result of a step.
            self._model.runner.request_abort()
            leaving.is_put_away.wait(FAREWELL_S)
            self._model.flush(FAREWELL_S)

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
                self._tell_residency()
            case Tokenize() | Detokenize():
                self._outbox.send(self._answer(message))

    def _tell_residency(self) -> None:
        """Answer here and not between steps: a step may be long, and the device answers from any thread."""
        assert self._model is not None
        if self._model.residency is not None:
            self._outbox.send(self._model.residency())

    def _answer(self, question: Tokenize | Detokenize) -> Tokenized | Detokenized | Untokenized:
        assert self._model is not None
        prompts, key = self._model.prompts, question.question
        if isinstance(question, Detokenize):
            text = prompts.detokenize(question.tokens)
            if isinstance(text, Violation):
                return Untokenized(question=key, violations=(text,))
            return Detokenized(question=key, text=text)
        read = prompts.read(question.prompt, add_special=question.add_special, parse_special=question.parse_special)
        if isinstance(read, Violation):
            return Untokenized(question=key, violations=(read,))
        text = prompts.detokenize(read.tokens) if read.text is None else read.text
        if isinstance(text, Violation):
            return Untokenized(question=key, violations=(text,))
        return Tokenized(question=key, tokens=tuple(read.tokens), text=text)

    def _examine(self, submit: Submit) -> None:
        """Queue a job with its tokens and its constraint, or refuse it with all that is wrong."""
        assert self._model is not None
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
        assert self._model is not None
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
        assert self._model is not None
        if not text:
            return []
        read = self._model.prompts.read(text, add_special=False, parse_special=False)
        if isinstance(read, Violation):
            return Violation("prediction", read.constraint, f"prediction: {read.message}")
        return read.tokens

    def _abort_if_in_the_way(self, prompt: list[TokenId]) -> None:
        """Stop the running step where a job that is in the inbox now should not wait for it."""
        assert self._engine is not None
        assert self._model is not None
        # The step thread may have taken what is in the inbox just before, and be about to begin a step.
        if self._between_steps.acquire(timeout=_GLANCE_S):
            try:
                if self._engine.is_in_the_way(prompt):
                    self._model.runner.request_abort()
            finally:
                self._between_steps.release()

    def _abort_if_no_job_waits(self, job: JobKey) -> None:
        """Stop the running step when each of its jobs is cancelled; a mistake costs one repeated step (loop.py)."""
        assert self._engine is not None
        assert self._model is not None
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
        return Violation(
            "prompt",
            f"context_length({context_length})",
            f"prompt has {n_prompt} tokens{room}; the context is {context_length}",
            Overflow(n_prompt, context_length),
        )
    if max_tokens_in and n_prompt > max_tokens_in:
        return Violation(
            "prompt",
            f"max_tokens_in({max_tokens_in})",
            f"prompt has {n_prompt} tokens; this worker takes at most {max_tokens_in}",
            Overflow(n_prompt, max_tokens_in),
        )
    return None
