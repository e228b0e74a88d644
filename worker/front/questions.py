"""Questions about tokens that wait for the engine's answer: what a prompt becomes, what text tokens are.

A question is answered by the intake thread, beside all steps, so it takes no slot and no place in the queue. Lives on
the front's event loop. In which order questions and jobs go to the engine, and what its death means for them, is
dispatch.py's.
"""

import asyncio
from collections.abc import Callable
from typing import ClassVar

from worker.errors import WorkerError
from worker.protocol.bodies import refused_by_engine
from worker.wire.messages import Detokenize, Detokenized, QuestionKey, Tokenize, Tokenized, Untokenized

MAX_QUESTIONS = 64
"""How many may be open at once; one more is WORKER_BUSY. The intake reads jobs between them, so the more there are the
longer a job waits to be accepted."""

Ask = Callable[[QuestionKey], Tokenize | Detokenize]
"""A question's frame, once it has its number."""


class Question:
    """One question, from when it is asked until `answer` is done, whether its asker still waits or not."""

    has_sent_token: ClassVar = False
    """As a job's: nothing of an answer leaves before all of it is there, so a question can always be asked again."""

    def __init__(self, frame: Tokenize | Detokenize) -> None:
        self.frame = frame
        self.key = frame.question
        self.answer: asyncio.Future[Tokenized | Detokenized] = asyncio.get_running_loop().create_future()
        self.n_deaths = 0
        """How many engines died while they were answering it."""

    @property
    def is_ended(self) -> bool:
        return self.answer.done()

    def settle(self, message: Tokenized | Untokenized | Detokenized) -> None:
        """The engine has answered, or says why it does not."""
        if isinstance(message, Untokenized):
            self.fail(refused_by_engine(message.violations))
        elif not self.is_ended:
            self.answer.set_result(message)

    def fail(self, error: WorkerError) -> None:
        """There will be no answer."""
        if not self.is_ended:
            self.answer.set_exception(error)
            self.answer.exception()  # taken, or asyncio would log it where the asker has left in the same moment
