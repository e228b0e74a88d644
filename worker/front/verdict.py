"""What becomes of each job when the engine dies (docs/protocol.md 6). Pure but for each job's count of deaths."""

from collections import deque
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from worker.front.job import Job
from worker.wire.messages import JobKey

DEATHS_OF_A_CULPRIT = 2

MAX_DEATHS = 5
DEATHS_WINDOW_S = 600.0


class Deaths:
    """Deaths without a finished job between them."""

    def __init__(self) -> None:
        self._times_s: deque[float] = deque(maxlen=MAX_DEATHS)

    def add(self, now_s: float) -> None:
        self._times_s.append(now_s)

    def clear(self) -> None:
        """A job finished: the engine is able to work."""
        self._times_s.clear()

    @property
    def are_too_many(self) -> bool:
        """The last MAX_DEATHS lie within the window."""
        return len(self._times_s) == MAX_DEATHS and self._times_s[-1] - self._times_s[0] <= DEATHS_WINDOW_S


@dataclass(slots=True)
class Verdict:
    """Every job in flight is in exactly one list; each keeps the order of arrival."""

    interrupted: list[Job] = field(default_factory=list)
    """Had sent text: cannot be run again without the client noticing."""
    culprits: list[Job] = field(default_factory=list)
    """Were running at two deaths."""
    suspects: list[Job] = field(default_factory=list)
    """Were in the failing step, or being tokenised: run again one at a time, before anything else.

    They stay suspects until their turn has come, or two poison jobs in one step would take an innocent one with them.
    """
    bystanders: list[Job] = field(default_factory=list)
    """Run again with the others."""


def judge(jobs: Iterable[Job], *, present: AbstractSet[JobKey], suspects: AbstractSet[JobKey]) -> Verdict:
    """Sort the jobs in flight. `present`: those that the engine that died had run or was tokenising."""
    verdict = Verdict()
    for job in jobs:
        job.n_deaths += job.key in present
        if job.has_sent_token:
            verdict.interrupted.append(job)
        elif job.n_deaths >= DEATHS_OF_A_CULPRIT:
            verdict.culprits.append(job)
        elif job.key in suspects:
            verdict.suspects.append(job)
        else:
            verdict.bystanders.append(job)
    return verdict
