"""The work of an engine: its fate when the engine dies, and who is charged (docs/protocol.md#life-of-a-job).

Work is a job (job.py), or a question about tokens: the tokens of a prompt, or the text of tokens. The intake thread
answers a question while steps run, so it takes no slot and no place in the queue. Questions live on the front's event
loop. dispatch.py has the way that work takes to an engine, and the order in which it goes.
"""

import asyncio
from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import ClassVar

from worker.apis.core.bodies import refused_by_engine
from worker.errors import WorkerError
from worker.server.front.job import Job
from worker.wire.questions import Detokenize, Detokenized, QuestionKey, Tokenize, Tokenized, Untokenized

DEATHS_OF_A_CULPRIT = 2

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


Work = Job | Question
"""The work that the engine's intake reads, one after the other."""


class Charge(Enum):
    """The party to which a crash of the engine is charged."""

    WORKER = auto()
    """Either no work can be blamed for it, or several can."""
    WORK = auto()
    """A job or a question is the cause."""
    WORK_TWICE = auto()
    """A job or a question is the cause, and of the death before, which was charged to the worker."""


@dataclass(slots=True)
class Aftermath:
    """The fate of the work in flight when the engine dies: each is in exactly one list, in order of arrival."""

    interrupted: list[Work] = field(default_factory=list)
    """Text of them may have left, so they cannot run again without the client noticing."""
    culprits: list[Work] = field(default_factory=list)
    """They were present at two deaths."""
    suspects: list[Work] = field(default_factory=list)
    """They were in the failing step or being tokenised, and run again one at a time, before anything else.

    They stay suspects until their turn has come, or two poison jobs in one step would take an innocent one with them.
    """
    bystanders: list[Work] = field(default_factory=list)
    """They run again with the others."""


def judge(works: Iterable[Work], *, present: AbstractSet[Work], suspects: AbstractSet[Work]) -> Aftermath:
    """Sort the work in flight, and count a death for what was `present`: the engine had run it or was reading it."""
    aftermath = Aftermath()
    for work in works:
        work.n_deaths += work in present
        if work.has_sent_token:
            aftermath.interrupted.append(work)
        elif work.n_deaths >= DEATHS_OF_A_CULPRIT:
            aftermath.culprits.append(work)
        elif work in suspects:
            aftermath.suspects.append(work)
        else:
            aftermath.bystanders.append(work)
    return aftermath


def charge_sheet(work: Work, *, is_being_read: bool) -> str:
    if isinstance(work, Question):
        return "the engine crashed twice while answering this question"
    return f"the engine crashed twice while {'reading' if is_being_read else 'running'} this job"
