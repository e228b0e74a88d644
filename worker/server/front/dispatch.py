"""The work of an engine: its order on the way there, and its fate when the engine dies
(docs/protocol.md#life-of-a-job).

Work is a job (job.py), or a question about tokens, which the intake thread answers while steps run: it takes no slot
and no place in the queue. Every job leaves exactly once: finished, failed, refused or released; a question is answered,
failed or dropped.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import ClassVar, TypeVar

from worker.apis.core.bodies import refused_by_engine
from worker.apis.core.events import StreamCode
from worker.errors import InferenceFailed, WorkerError
from worker.server.front.job import Job
from worker.server.front.supervision import Watchdog
from worker.wire.jobs import Accepted, Cancel, JobKey, StepBegun, StepDone, Submit
from worker.wire.load import Loaded, LoadFailed, PrefixCacheFound, Progress, Residency, Warned
from worker.wire.messages import BlocksChanged, Outbound, QuestionKey, Refused, Tokenize, Tokenized, Untokenized

DEATHS_OF_A_CULPRIT = 2
MAX_DEATHS = 5
DEATHS_WINDOW_S = 600.0
"""So many deaths within this time, with no job finished between them, are the worker's end."""

MAX_QUESTIONS = 64
"""The largest number of open questions; one more is WORKER_BUSY. The intake reads jobs between them, so the more there
are, the longer a job waits to be accepted."""


_SIGNS_OF_LIFE = (StepDone, StepBegun, Progress, Loaded, LoadFailed)
"""Frames of the thread that loads and steps. The intake thread's answers do not show that this thread is alive."""

Report = StepDone | BlocksChanged | Progress | Warned | Residency | PrefixCacheFound
"""The frames that concern more than the jobs; these have a step's results already when it is reported."""


class Question:
    """One question, until `answer` is done, whether its caller still waits or not."""

    has_sent_token: ClassVar = False
    """False, unlike a job's: an answer leaves as a whole, so a question can always be asked again."""

    def __init__(self, frame: Tokenize) -> None:
        self.frame = frame
        self.key = frame.question
        self.answer: asyncio.Future[Tokenized] = asyncio.get_running_loop().create_future()
        self.n_deaths = 0
        """The number of engines that died while they were answering it."""

    @property
    def is_ended(self) -> bool:
        return self.answer.done()

    def settle(self, message: Tokenized | Untokenized) -> None:
        """Take the engine's answer, or its reasons for giving none."""
        if isinstance(message, Untokenized):
            self.fail(refused_by_engine(message.violations))
        elif not self.is_ended:
            self.answer.set_result(message)

    def fail(self, error: WorkerError) -> None:
        if not self.is_ended:
            self.answer.set_exception(error)
            self.answer.exception()  # taken, or asyncio would log it if the caller has left in the same moment


Work = Job | Question
"""The work that the engine's intake reads, one after the other."""
W = TypeVar("W", Job, Question)


class Dispatch:
    """`report` gets the frames that concern more than the work, `load_ended` the engine's answer to its load."""

    _send: Callable[[Submit | Cancel | Tokenize], None]
    """It gives a frame to the current engine; nothing is sent between `close_gate` and `open_gate`."""

    def __init__(
        self,
        watchdog: Watchdog,
        report: Callable[[Report], None],
        load_ended: Callable[[Loaded | LoadFailed], None],
        clock: Callable[[], float],
    ) -> None:
        self._watchdog = watchdog
        self._report, self._load_ended = report, load_ended
        self._clock = clock
        self.is_over = False
        """True if nothing that an engine says counts any more."""
        self._deaths_s: deque[float] = deque(maxlen=MAX_DEATHS)
        """The times at which engines died since a job last finished, but for deaths that work is charged with."""
        self._is_open = False
        self._in_flight: dict[JobKey, Job] = {}
        """Every job without its terminal event, in order of arrival. This engine has those that neither are held nor
        are suspects."""
        self._questions: dict[QuestionKey, Question] = {}
        """Every question with a waiting caller, in order of arrival."""
        self._held: dict[Work, None] = {}
        """The work that is not sent yet, because there is no engine or suspects run first; a set that keeps its order.
        """
        self._suspects: deque[Work] = deque()
        """The work that a crash may be due to. It runs again one at a time, before anything else, and stays here until
        its turn has come: two poison jobs in one step would take an innocent one with them otherwise."""
        self._alone: Work | None = None
        """The suspect that runs now."""
        self._undecided: dict[Work, None] = {}
        """The work that the engine's intake has not answered, in its order; ended work stays until it does."""
        self._has_run: set[Job] = set()
        self._step_jobs: list[Job] = []
        self._in_doubt: Work | None = None
        """The work that was being read at the last crash. Jobs ran too, so the crash was charged to the worker."""

    @property
    def n_leaving(self) -> int:
        """The number of jobs that have ended here and still take room and time in the engine's intake."""
        return sum(isinstance(work, Job) and work.is_ended for work in self._undecided)

    @property
    def n_questions(self) -> int:
        """The number of open questions, also those whose caller has left and that the intake has not reached."""
        return len({*self._questions.values(), *(work for work in self._undecided if isinstance(work, Question))})

    # ── the front ────────────────────────────────────────────────────────────────────────────────

    def submit(self, job: Job) -> None:
        """Take responsibility for a job until its terminal event."""
        self._in_flight[job.key] = job
        self._hold(job)
        self._watchdog.expect_work(len(self._in_flight))

    def release(self, job: Job) -> None:
        """A job has its terminal event: the engine may forget it, and the next may go. Idempotent."""
        if self._leave(job.key) is None:
            return
        if job in self._held:
            del self._held[job]
        elif job not in self._suspects:
            self._send(Cancel(job=job.key))
        self._pump()

    def ask(self, question: Question) -> None:
        """Take responsibility for a question until it is answered, or dropped."""
        self._questions[question.key] = question
        self._hold(question)

    def drop(self, question: Question) -> None:
        """Forget a question whose caller has left. Idempotent."""
        if self._questions.pop(question.key, None) is not None:
            self._held.pop(question, None)
            self._pump()

    # ── the engine ───────────────────────────────────────────────────────────────────────────────

    def open_gate(self, send: Callable[[Submit | Cancel | Tokenize], None]) -> None:
        """Send work from now on, because an engine is ready for jobs."""
        self._send = send
        self._is_open = True
        self._pump()

    def on_message(self, message: Outbound) -> None:
        """Take a frame of the engine."""
        if self.is_over:
            return
        if isinstance(message, _SIGNS_OF_LIFE):
            self._watchdog.heartbeat()
        match message:
            case StepDone():
                if message.finished:
                    self._deaths_s.clear()  # the engine is able to work
                self._step_done(message)
                self._report(message)
            case StepBegun(jobs=keys):
                self._step_jobs = [job for key in keys if (job := self._in_flight.get(key))]
                self._has_run.update(self._step_jobs)
            case Accepted():
                if (accepted := self._decided(Job, message.job)) and not accepted.is_ended:
                    accepted.accept(message.prompt_tokens, message.unenforced_tools)
            case Refused():
                self._refused(message)
            case Tokenized() | Untokenized():
                if question := self._decided(Question, message.question):
                    question.settle(message)
                    self.drop(question)
            case Loaded() | LoadFailed():
                self._load_ended(message)
            case _:
                self._report(message)

    def _refused(self, message: Refused) -> None:
        self._decided(Job, message.job)
        if job := self._leave(message.job):
            job.refuse(message)
            self._pump()

    def _step_done(self, step: StepDone) -> None:
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
                self._pump()
        for failed in step.failed:
            if job := self._leave(failed.job):
                job.fail(failed.code, failed.message)
                self._pump()

    # ── death ────────────────────────────────────────────────────────────────────────────────────

    def close_gate(self) -> bool:
        """Decide the fate of all work after the engine died. Returns whether engines die too often.

        A death counts for the work that this engine had run or was reading. Work that was present at two deaths is
        their culprit; work of the failing step, or that was being read, is a suspect.
        """
        self._is_open = False
        being_read = next(iter(self._undecided), None)
        are_running = bool(self._has_run)
        failing = {*self._step_jobs, being_read}
        suspects = {*failing, self._alone, *self._suspects}
        interrupted, culprits = list[Work](), list[Work]()
        self._suspects.clear()
        self._held.clear()
        works: list[Work] = [*self._questions.values(), *self._in_flight.values()]
        for work in works:
            work.n_deaths += work in failing or work in self._has_run
            if work.has_sent_token:
                interrupted.append(work)
            elif work.n_deaths >= DEATHS_OF_A_CULPRIT:
                culprits.append(work)
            elif work in suspects:
                self._suspects.append(work)
            else:
                self._held[work] = None
        for work in interrupted:
            self._end(work, "ENGINE_RESTARTED", "the engine was restarted while this job was generating")
        for work in culprits:
            self._end(work, "INFERENCE_FAILED", _crime(work, is_being_read=work is being_read))
        for work in (*self._suspects, *self._held):
            if isinstance(work, Job):
                work.rewind()
        self._alone = None
        self._undecided.clear()
        self._has_run.clear()
        self._step_jobs = []
        self._charge(being_read, are_running=are_running, culprits=culprits)
        return len(self._deaths_s) == MAX_DEATHS and self._deaths_s[-1] - self._deaths_s[0] <= DEATHS_WINDOW_S

    def _charge(self, being_read: Work | None, *, are_running: bool, culprits: list[Work]) -> None:
        """Charge a death to the worker if no work can be blamed for it, or several can: a worker that always dies must
        not stay in the pool. If one is the cause, and was that of the death before too, take that charge back.

        A text that kills every engine that reads it says nothing of the machine, so its first death does not count
        either. If jobs were running too, the second death, when it is read alone, shows that.
        """
        in_doubt, self._in_doubt = self._in_doubt, None
        if being_read is not None and being_read is in_doubt and being_read in culprits:
            if self._deaths_s:
                self._deaths_s.pop()
        elif not culprits and (being_read is None or are_running):
            self._in_doubt = being_read
            self._deaths_s.append(self._clock())

    def end_all(self, code: StreamCode, message: str) -> None:
        for job in list(self._in_flight.values()):
            self._end(job, code, message)

    def fail_questions(self, error: WorkerError) -> None:
        """Fail all questions, because there will be no answers."""
        for question in list(self._questions.values()):
            question.fail(error)
            self.drop(question)

    # ── inside ───────────────────────────────────────────────────────────────────────────────────

    def _hold(self, work: Work) -> None:
        self._held[work] = None
        self._pump()

    def _pump(self) -> None:
        """Send the work that may be sent: suspects one at a time, before anything else."""
        if not self._is_open or (self._alone is not None and not self._alone.is_ended):
            return
        self._alone = None
        while self._suspects and self._alone is None:
            if not (work := self._suspects.popleft()).is_ended:
                self._alone = work
                self._give(work)
        if self._alone is None:
            held, self._held = self._held, {}
            for work in held:
                self._give(work)

    def _give(self, work: Work) -> None:
        self._undecided[work] = None
        self._send(work.frame)

    def _decided(self, kind: type[W], key: int) -> W | None:
        """Return the work that the intake has answered. It answers in order, so it is the first one, or nearly."""
        for work in self._undecided:
            if isinstance(work, kind) and work.key == key:
                del self._undecided[work]
                return work
        return None

    def _leave(self, key: JobKey) -> Job | None:
        """Take a job out of those in flight; None if it has left before."""
        if job := self._in_flight.pop(key, None):
            self._has_run.discard(job)
        self._watchdog.expect_work(len(self._in_flight))
        return job

    def _end(self, work: Work, code: StreamCode, message: str) -> None:
        if isinstance(work, Question):
            del self._questions[work.key]
            work.fail(InferenceFailed(message))
        else:
            self._leave(work.key)
            work.fail(code, message)


def _crime(work: Work, *, is_being_read: bool) -> str:
    if isinstance(work, Question):
        return "the engine crashed twice while answering this question"
    return f"the engine crashed twice while {'reading' if is_being_read else 'running'} this job"
