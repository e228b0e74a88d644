"""Questions to the engine about tokens: the tokens of a prompt, and the text of tokens.

The intake thread answers a question while steps run, so it takes no slot and no place in the queue. Questions live on
the front's event loop. dispatch.py has the order of questions and jobs, and their fate when the engine dies.
"""

import asyncio
from collections.abc import Callable
from typing import ClassVar

from worker.errors import WorkerError
from worker.protocol.bodies import refused_by_engine
from worker.wire.questions import Detokenize, Detokenized, QuestionKey, Tokenize, Tokenized, Untokenized

MAX_QUESTIONS = 64
"""The largest number of open questions; one more is WORKER_BUSY. The intake reads jobs between them, so the more there
are, the longer a job waits to be accepted."""

Ask = Callable[[QuestionKey], Tokenize | Detokenize]
"""A question's frame, once it has its number."""


class Question:
    """One question, until `answer` is done, whether its caller still waits or not."""

    has_sent_token: ClassVar = False
    """False, unlike a job's: an answer leaves as a whole, so a question can always be asked again."""

    def __init__(self, frame: Tokenize | Detokenize) -> None:
        self.frame = frame
        self.key = frame.question
        self.answer: asyncio.Future[Tokenized | Detokenized] = asyncio.get_running_loop().create_future()
        self.n_deaths = 0
        """The number of engines that died while they were answering it."""

    @property
    def is_ended(self) -> bool:
        return self.answer.done()

    def settle(self, message: Tokenized | Untokenized | Detokenized) -> None:
        """Take the engine's answer, or its reasons for giving none."""
        if isinstance(message, Untokenized):
            self.fail(refused_by_engine(message.violations))
        elif not self.is_ended:
            self.answer.set_result(message)

    def fail(self, error: WorkerError) -> None:
        """Fail the question, because there will be no answer."""
        if not self.is_ended:
            self.answer.set_exception(error)
            self.answer.exception()  # taken, or asyncio would log it if the caller has left in the same moment
