"""Which job is where, and in which order jobs go to the engine (docs/protocol.md 6).

Bookkeeping on the front's event loop: it hears what the engine said and what clients did, and hands frames to `send`.
Knows nothing of processes, sockets or time. Every job leaves exactly once: finished, failed, refused or released.
"""

from collections import deque
from collections.abc import Callable

from worker.front.job import Job
from worker.front.verdict import judge
from worker.protocol.events import StreamCode
from worker.wire.messages import Cancel, JobKey, Refused, StepDone, Submit


class Dispatch:
    """`send` gives a frame to the engine of the moment; nothing is sent between `close_gate` and `open_gate`."""

    def __init__(self, send: Callable[[Submit | Cancel], None]) -> None:
        self._send_frame = send
        self._is_open = False
        self._in_flight: dict[JobKey, Job] = {}
        """Every job without its terminal event, in order of arrival."""
        self._held: dict[JobKey, Job] = {}
        """Not submitted yet: no engine, or suspects run first."""
        self._suspects: deque[Job] = deque()
        self._alone: Job | None = None
        self._submitted: set[JobKey] = set()
        """What this engine knows of and has not ended."""
        self._undecided: dict[JobKey, Job] = {}
        """With the intake thread, which takes them in this order; also jobs that were released meanwhile."""
        self._has_run: set[JobKey] = set()
        self._step_jobs: tuple[JobKey, ...] = ()

    @property
    def are_in_flight(self) -> bool:
        return bool(self._in_flight)

    @property
    def n_leaving(self) -> int:
        """Jobs that have ended here but are still in the engine's intake: they take room there, and time."""
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
        """The engine died: decide what becomes of each job. True when a job was ended as the culprit."""
        self._is_open = False
        failing = {*self._step_jobs, *list(self._undecided)[:1]}
        not_yet_tried = {job.key for job in (self._alone, *self._suspects) if job is not None}
        verdict = judge(self._in_flight.values(), present=failing | self._has_run, suspects=failing | not_yet_tried)
        for job in verdict.interrupted:
            self._end(job, "ENGINE_RESTARTED", "the engine was restarted while this job was generating")
        for job in verdict.culprits:
            self._end(job, "INFERENCE_FAILED", "the engine died twice while running this job")
        for job in (*verdict.suspects, *verdict.bystanders):
            job.rewind()
        self._suspects = deque(verdict.suspects)
        self._held = {job.key: job for job in verdict.bystanders}
        self._alone = None
        self._submitted.clear()
        self._undecided.clear()
        self._has_run.clear()
        self._step_jobs = ()
        return bool(verdict.culprits)

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
        self._send_frame(job.submission)

    def _leave(self, key: JobKey) -> Job | None:
        """The engine has forgotten this job: no Cancel is owed for it."""
        return self._in_flight.pop(key, None)

    def _settle(self, key: JobKey) -> None:
        self._submitted.discard(key)
        self._has_run.discard(key)
        self._pump()

    def _end(self, job: Job, code: StreamCode, message: str) -> None:
        del self._in_flight[job.key]
        job.fail(code, message)
