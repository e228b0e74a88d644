"""The fate of each job and question when the engine dies, and who is charged (docs/protocol.md#life-of-a-job).

It knows nothing of the way that work takes to an engine (dispatch.py).
"""

from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from enum import Enum, auto

from worker.front.job import Job
from worker.front.questions import Question

DEATHS_OF_A_CULPRIT = 2

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
