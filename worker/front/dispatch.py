"""Where each job is, in which order jobs go to the engine, and what becomes of them when it dies (docs/protocol.md 6).

Bookkeeping on the front's event loop: it hears what the engine said and what clients did, and hands frames to `send`.
It knows nothing of processes, sockets or time. Every job leaves exactly once: finished, failed, refused or released.
"""

from collections import deque
from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from worker.front.job import Job
from worker.protocol.events import StreamCode
from worker.wire.messages import Cancel, JobKey, Refused, StepDone, Submit

DEATHS_OF_A_CULPRIT = 2


@dataclass(slots=True)
class Aftermath:
    """What becomes of the jobs in flight when the engine dies: each is in exactly one list, in order of arrival."""

    interrupted: list[Job] = field(default_factory=list)
    """They have sent text, so they cannot run again without the client noticing."""
    culprits: list[Job] = field(default_factory=list)
    """They were present at two deaths."""
    suspects: list[Job] = field(default_factory=list)
    """They were in the failing step or being tokenised, and run again one at a time, before anything else.

    They stay suspects until their turn has come, or two poison jobs in one step would take an innocent one with them.
    """
    bystanders: list[Job] = field(default_factory=list)
    """They run again with the others."""


def judge(jobs: Iterable[Job], *, present: AbstractSet[JobKey], suspects: AbstractSet[JobKey]) -> Aftermath:
    """Sort the jobs in flight, and count a death for those `present`, which the engine had run or was tokenising."""
    aftermath = Aftermath()
    for job in jobs:
        job.n_deaths += job.key in present
        if job.has_sent_token:
            aftermath.interrupted.append(job)
        elif job.n_deaths >= DEATHS_OF_A_CULPRIT:
            aftermath.culprits.append(job)
        elif job.key in suspects:
            aftermath.suspects.append(job)
        else:
            aftermath.bystanders.append(job)
    return aftermath


class Dispatch:
    """`send` gives a frame to the engine of the moment; nothing is sent between `close_gate` and `open_gate`."""

    def __init__(self, send: Callable[[Submit | Cancel], None]) -> None:
        self._send_frame = send
        self._is_open = False
        self._in_flight: dict[JobKey, Job] = {}
        """Every job without its terminal event, in order of arrival."""
        self._held: dict[JobKey, Job] = {}
        """Jobs that are not submitted yet, because there is no engine or suspects run first."""
        self._suspects: deque[Job] = deque()
        self._alone: Job | None = None
        self._submitted: set[JobKey] = set()
        """Jobs that this engine knows and has not ended."""
        self._undecided: dict[JobKey, Job] = {}
        """Jobs the engine's intake has not answered yet, in the order it takes them; ended ones stay until it does."""
        self._has_run: set[JobKey] = set()
        self._step_jobs: tuple[JobKey, ...] = ()

    @property
    def are_in_flight(self) -> bool:
        return bool(self._in_flight)

    @property
    def n_leaving(self) -> int:
        """How many jobs have ended here and are still in the engine's intake, where they take room and time."""
        return sum(job.is_ended for job in self._undecided.values())

    # ── the front ────────────────────────────────────────────────────────────────────────────────

    def submit(self, job: Job) -> None:
        """Take responsibility for a job until its terminal event."""
        self._in_flight[job.key] = job
        self._held[job.key] = job
        self._pump()

    def release(self, job: Job) -> None:
        """A job has its terminal event: the engine may forget it, and the next may go. Idempotent."""
        if self._in_flight.pop(job.key, None) is None:
            return
        self._held.pop(job.key, None)
        if job.key in self._submitted:
            self._send_frame(Cancel(job=job.key))
        self._settle(job.key)

    # ── the engine ───────────────────────────────────────────────────────────────────────────────

    def open_gate(self) -> None:
        """An engine is ready for jobs."""
        self._is_open = True
        self._pump()

    def accepted(self, key: JobKey, prompt_tokens: int) -> None:
        job = self._undecided.pop(key, None)
        if job is not None and not job.is_ended:
            job.accept(prompt_tokens)

    def refused(self, message: Refused) -> None:
        self._undecided.pop(message.job, None)
        if job := self._leave(message.job):
            job.refuse(message)
            self._settle(message.job)

    def step_begun(self, jobs: tuple[JobKey, ...]) -> None:
        self._step_jobs = jobs
        self._has_run.update(key for key in jobs if key in self._in_flight)

    def step_done(self, step: StepDone) -> None:
        for started in step.started:
            if job := self._in_flight.get(started.job):
                job.start(started.n_cached)
        for delta in step.deltas:
            if job := self._in_flight.get(delta.job):
                job.delta(delta.text, delta.logprob, step.sampled_at_s)
        for finished in step.finished:
            if job := self._leave(finished.job):
                job.finish(finished)
                self._settle(finished.job)
        for failed in step.failed:
            if job := self._leave(failed.job):
                job.fail(failed.code, failed.message)
                self._settle(failed.job)

    # ── death ────────────────────────────────────────────────────────────────────────────────────

    def close_gate(self) -> bool:
        """The engine died. Decide what becomes of each job; true when a job was ended as the culprit."""
        self._is_open = False
        failing = {*self._step_jobs, *list(self._undecided)[:1]}
        not_yet_tried = {job.key for job in (self._alone, *self._suspects) if job is not None}
        aftermath = judge(self._in_flight.values(), present=failing | self._has_run, suspects=failing | not_yet_tried)
        for job in aftermath.interrupted:
            self._end(job, "ENGINE_RESTARTED", "the engine was restarted while this job was generating")
        for job in aftermath.culprits:
            self._end(job, "INFERENCE_FAILED", "the engine died twice while running this job")
        for job in (*aftermath.suspects, *aftermath.bystanders):
            job.rewind()
        self._suspects = deque(aftermath.suspects)
        self._held = {job.key: job for job in aftermath.bystanders}
        self._alone = None
        self._submitted.clear()
        self._undecided.clear()
        self._has_run.clear()
        self._step_jobs = ()
        return bool(aftermath.culprits)

    def end_all(self, code: StreamCode, message: str) -> None:
        for job in list(self._in_flight.values()):
            self._end(job, code, message)

    # ── inside ───────────────────────────────────────────────────────────────────────────────────

    def _pump(self) -> None:
        """Submit what may be submitted: suspects one at a time, before anything else."""
        if not self._is_open or (self._alone is not None and not self._alone.is_ended):
            return
        self._alone = None
        while self._suspects:
            job = self._suspects.popleft()
            if not job.is_ended:
                self._alone = job
                self._send(job)
                return
        held, self._held = self._held, {}
        for job in held.values():
            self._send(job)

    def _send(self, job: Job) -> None:
        self._submitted.add(job.key)
        self._undecided[job.key] = job
        self._send_frame(job.request.submit)

    def _leave(self, key: JobKey) -> Job | None:
        """The engine has forgotten this job, so that no Cancel is sent for it."""
        return self._in_flight.pop(key, None)

    def _settle(self, key: JobKey) -> None:
        self._submitted.discard(key)
        self._has_run.discard(key)
        self._pump()

    def _end(self, job: Job, code: StreamCode, message: str) -> None:
        del self._in_flight[job.key]
        job.fail(code, message)
