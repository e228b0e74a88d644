"""The bookkeeping of jobs: their order on the way to the engine, and what becomes of them when it dies.

work.py judges that (docs/protocol.md#life-of-a-job).

It runs on the front's event loop: it gets the engine's messages and the clients' actions, and gives frames to `send`.
It knows nothing of processes, sockets or time. Every job leaves exactly once: finished, failed, refused or released.
Questions about tokens go the same way to the engine's intake, and leave when they are answered, failed or dropped.
"""

from collections import deque
from collections.abc import Callable

from worker.apis.core.events import StreamCode
from worker.errors import InferenceFailed, WorkerError
from worker.server.front.job import Job
from worker.server.front.work import Charge, Question, Work, charge_sheet, judge
from worker.wire.jobs import Accepted, Cancel, JobKey, StepDone, Submit
from worker.wire.questions import Detokenize, Detokenized, QuestionKey, Tokenize, Tokenized, Untokenized
from worker.wire.refusals import Refused


class Dispatch:
    """`send` gives a frame to the current engine; nothing is sent between `close_gate` and `open_gate`.

    `expect_work` is called whenever jobs come or leave: it is given how many are in flight now.
    """

    def __init__(
        self, send: Callable[[Submit | Cancel | Tokenize | Detokenize], None], expect_work: Callable[[int], None]
    ) -> None:
        self._send_frame = send
        self._expect_work = expect_work
        self._is_open = False
        self._in_flight: dict[JobKey, Job] = {}
        """Every job without its terminal event, in order of arrival."""
        self._questions: dict[QuestionKey, Question] = {}
        """Every question with a waiting caller, in order of arrival."""
        self._held: dict[Work, None] = {}
        """The work that is not sent yet, because there is no engine or suspects run first; a set that keeps its order.
        """
        self._suspects: deque[Work] = deque()
        self._alone: Work | None = None
        self._submitted: set[Job] = set()
        """The jobs that this engine knows and has not ended."""
        self._undecided: dict[Work, None] = {}
        """The work that the engine's intake has not answered, in the order in which it reads; ended work stays until it
        does."""
        self._has_run: set[Job] = set()
        self._step_jobs: list[Job] = []
        self._in_doubt: Work | None = None
        """The work that was being read at the last crash. Jobs ran too, so the crash was charged to the worker."""

    @property
    def n_leaving(self) -> int:
        """The number of jobs that have ended here and are still in the engine's intake, where they take room
        and time."""
        return sum(isinstance(work, Job) and work.is_ended for work in self._undecided)

    @property
    def n_questions(self) -> int:
        """The number of open questions, also those whose caller has left and that the intake has not reached."""
        return len({*self._questions.values(), *(work for work in self._undecided if isinstance(work, Question))})

    # ── the front ────────────────────────────────────────────────────────────────────────────────

    def submit(self, job: Job) -> None:
        """Take responsibility for a job until its terminal event."""
        self._in_flight[job.key] = job
        self._held[job] = None
        self._pump()
        self._expect_work(len(self._in_flight))

    def release(self, job: Job) -> None:
        """A job has its terminal event: the engine may forget it, and the next may go. Idempotent."""
        if self._leave(job.key) is None:
            return
        self._held.pop(job, None)
        if job in self._submitted:
            self._send_frame(Cancel(job=job.key))
        self._settle(job)

    def ask(self, question: Question) -> None:
        """Take responsibility for a question until it is answered, or dropped."""
        self._questions[question.key] = question
        self._held[question] = None
        self._pump()

    def drop(self, question: Question) -> None:
        """Forget a question whose caller has left. Idempotent."""
        if self._questions.pop(question.key, None) is not None:
            self._held.pop(question, None)
            self._pump()

    # ── the engine ───────────────────────────────────────────────────────────────────────────────

    def open_gate(self) -> None:
        """Send work from now on, because an engine is ready for jobs."""
        self._is_open = True
        self._pump()

    def accepted(self, message: Accepted) -> None:
        job = self._decided(message.job)
        if job is not None and not job.is_ended:
            job.accept(message.prompt_tokens, message.unenforced_tools)

    def refused(self, message: Refused) -> None:
        self._decided(message.job)
        if job := self._leave(message.job):
            job.refuse(message)
            self._settle(job)

    def answered(self, message: Tokenized | Untokenized | Detokenized) -> None:
        for work in self._undecided:
            if isinstance(work, Question) and work.key == message.question:
                del self._undecided[work]
                work.settle(message)
                self.drop(work)
                return

    def step_begun(self, jobs: tuple[JobKey, ...]) -> None:
        self._step_jobs = [job for key in jobs if (job := self._in_flight.get(key))]
        self._has_run.update(self._step_jobs)

    def step_done(self, step: StepDone) -> None:
        for started in step.started:
            if job := self._in_flight.get(started.job):
                job.start(started.n_cached, step.sampled_at_s)
        for part in step.prompt_logprobs:
            if job := self._in_flight.get(part.job):
                job.prompt_logprobs(part)
        for delta in step.deltas:
            if job := self._in_flight.get(delta.job):
                job.delta(delta.text, delta.logprob, step.sampled_at_s, is_reasoning=delta.is_reasoning)
        for finished in step.finished:
            if job := self._leave(finished.job):
                job.finish(finished)
                self._settle(job)
        for failed in step.failed:
            if job := self._leave(failed.job):
                job.fail(failed.code, failed.message)
                self._settle(job)

    # ── death ────────────────────────────────────────────────────────────────────────────────────

    def close_gate(self) -> Charge:
        """Decide the fate of all work after the engine died, and to whom its death is charged."""
        self._is_open = False
        being_read = next(iter(self._undecided), None)
        are_running = bool(self._has_run)
        failing: set[Work] = {*self._step_jobs, *([being_read] if being_read is not None else [])}
        not_yet_tried = {work for work in (self._alone, *self._suspects) if work is not None}
        aftermath = judge(
            [*self._questions.values(), *self._in_flight.values()],
            present=failing | self._has_run,
            suspects=failing | not_yet_tried,
        )
        for work in aftermath.interrupted:
            self._end(work, "ENGINE_RESTARTED", "the engine was restarted while this job was generating")
        for work in aftermath.culprits:
            self._end(work, "INFERENCE_FAILED", charge_sheet(work, is_being_read=work is being_read))
        for work in (*aftermath.suspects, *aftermath.bystanders):
            if isinstance(work, Job):
                work.rewind()
        self._suspects = deque(aftermath.suspects)
        self._held = dict.fromkeys(aftermath.bystanders)
        self._alone = None
        self._submitted.clear()
        self._undecided.clear()
        self._has_run.clear()
        self._step_jobs = []
        return self._charge(being_read, are_running=are_running, culprits=aftermath.culprits)

    def _charge(self, being_read: Work | None, *, are_running: bool, culprits: list[Work]) -> Charge:
        """Return to whom a death is charged. A text that kills every engine that reads it says nothing of the machine,
        so its first death does not count either. If jobs were running too, the second death, when it is read alone,
        shows that."""
        in_doubt, self._in_doubt = self._in_doubt, None
        if being_read is not None and being_read is in_doubt and being_read in culprits:
            return Charge.WORK_TWICE
        if culprits or (being_read is not None and not are_running):
            return Charge.WORK
        self._in_doubt = being_read
        return Charge.WORKER

    def end_all(self, code: StreamCode, message: str) -> None:
        for job in list(self._in_flight.values()):
            self._end(job, code, message)

    def fail_questions(self, error: WorkerError) -> None:
        """Fail all questions, because there will be no answers."""
        for question in list(self._questions.values()):
            question.fail(error)
            self.drop(question)

    # ── inside ───────────────────────────────────────────────────────────────────────────────────

    def _pump(self) -> None:
        """Send the work that may be sent: suspects one at a time, before anything else."""
        if not self._is_open or (self._alone is not None and not self._alone.is_ended):
            return
        self._alone = None
        while self._suspects:
            work = self._suspects.popleft()
            if not work.is_ended:
                self._alone = work
                self._send(work)
                return
        held, self._held = self._held, {}
        for work in held:
            self._send(work)

    def _send(self, work: Work) -> None:
        self._undecided[work] = None
        if isinstance(work, Question):
            self._send_frame(work.frame)
        else:
            self._submitted.add(work)
            self._send_frame(work.submit)

    def _decided(self, key: JobKey) -> Job | None:
        """Return the job that the intake has answered. It answers in order, so it is the first one, or nearly."""
        for work in self._undecided:
            if isinstance(work, Job) and work.key == key:
                del self._undecided[work]
                return work
        return None

    def _leave(self, key: JobKey) -> Job | None:
        """Take a job out of those in flight; None if it has left before."""
        job = self._in_flight.pop(key, None)
        self._expect_work(len(self._in_flight))
        return job

    def _settle(self, job: Job) -> None:
        self._submitted.discard(job)
        self._has_run.discard(job)
        self._pump()

    def _end(self, work: Work, code: StreamCode, message: str) -> None:
        if isinstance(work, Question):
            del self._questions[work.key]
            work.fail(InferenceFailed(message))
        else:
            self._leave(work.key)
            work.fail(code, message)
