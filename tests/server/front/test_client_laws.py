"""Any order of acts and deaths ends each job once, and who is charged (docs/protocol.md#life-of-a-job)."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.server.front.rehearsal import FACTS, Stage, rehearsed
from tests.worker_process import check_order
from worker.config.engine_settings import Configure
from worker.server.front.client import EngineState
from worker.server.front.dispatch import DEATHS_OF_A_CULPRIT, DEATHS_WINDOW_S, MAX_DEATHS, Work
from worker.wire.jobs import Failed, JobKey, StepDone, Submit
from worker.wire.load import LoadFailed
from worker.wire.messages import Inbound, QuestionKey, Refused, Tokenize, Violation

ACTS = st.lists(st.tuples(st.integers(0, 2**16 - 1), st.integers(0, 2**6 - 1)), min_size=30, max_size=90)
"""Each act: which of those possible at that moment, and a number whose bits say to which jobs."""
IS_RETRIABLE = {"ENGINE_RESTARTED": True, "INFERENCE_FAILED": False}
"""The codes that deaths give."""


@dataclass
class Improvisation:
    """Makes acts happen as a real engine could: jobs and questions are read in order, a job before it is in a step."""

    stage: Stage
    n_read: int = 0
    """Frames that this engine has taken from its socket."""
    accepted: list[JobKey] = field(default_factory=list)
    """The jobs that this engine has accepted."""
    ran: set[JobKey] = field(default_factory=set)
    """The jobs that were in a step of this engine."""
    step: set[JobKey] = field(default_factory=set)
    """The jobs of this engine's last StepBegun."""
    has_text: set[JobKey] = field(default_factory=set)
    suspects: set[Work] = field(default_factory=set)
    n_deaths: Counter[Work] = field(default_factory=Counter)
    """The deaths at which the job was running or was read, or the question."""
    expected: dict[JobKey, str] = field(default_factory=dict)
    """The codes deaths have given: exactly these jobs, unless the client has given up."""
    expected_unanswered: set[QuestionKey] = field(default_factory=set)

    def _possible(self) -> list[str]:
        """Often twice what makes deaths interesting."""
        acts = ["submit", "submit", "ask", "die", *(["cancel"] if self._alive() else [])]
        acts += ["leave"] if self._open_questions() else []
        if self.stage.client.state is EngineState.RESTARTING:
            return [*acts, *["load"] * 9]
        if self._unread():
            acts += ["read", "read", "read"]
        if self._running_or_queued():
            acts += ["begin", "begin", "begin", "draw", "finish", "fail", "die"]
        return acts

    async def act(self, number: int, bits: int) -> None:
        possible = self._possible()
        running = self._running_or_queued()
        chosen = [key for at, key in enumerate(running) if bits >> at & 1] or running[:1]
        match possible[number % len(possible)]:
            case "submit":
                self.stage.submit()
            case "read":
                self._read(is_refusing=bits % 8 == 0)
            case "ask":
                self.stage.ask()
            case "leave":  # as an asker that is cancelled does
                open_ = self._open_questions()
                question = self.stage.questions[open_[bits % len(open_)]]
                question.answer.cancel()
                self.stage.client.jobs.drop(question)
            case "cancel":
                alive = self._alive()
                self.stage.jobs[alive[bits % len(alive)]].fail("CANCELLED", "enough")
            case "die":
                await self._die()
            case "load":
                self._load()
            case name:
                self._run(name, chosen, text="x" if bits % 3 == 0 else "")

    def _alive(self) -> list[JobKey]:
        return [key for key, job in self.stage.jobs.items() if not job.is_ended]

    def _open_questions(self) -> list[QuestionKey]:
        return [key for key, question in self.stage.questions.items() if not question.is_ended]

    def _running_or_queued(self) -> list[JobKey]:
        return [key for key in self.accepted if key in self.stage.engine.submitted]

    def _unread(self) -> list[Inbound | Configure]:
        return self.stage.engine.sent[self.n_read :]

    def _read(self, *, is_refusing: bool) -> None:
        for message in self._unread():
            self.n_read += 1
            match message:
                case Submit(job=job):
                    self._answer(job, is_refusing=is_refusing)
                    return
                case Tokenize(question=question):
                    self.stage.answer(question)
                    return

    def _answer(self, key: JobKey, *, is_refusing: bool) -> None:
        if is_refusing and not self.stage.jobs[key].decided.is_set():
            self.stage.engine.forget(key)
            self.stage.say(Refused(job=key, violations=(Violation("prompt", "non_empty", "no"),)))
        else:
            self.accepted.append(key)
            self.stage.accept(key)

    def _run(self, name: str, chosen: list[JobKey], *, text: str) -> None:
        self.ran.update(chosen)
        self.step = set(chosen)
        self.stage.begin(*chosen)
        match name:
            case "draw":
                self.has_text.update(chosen if text else [])
                self.stage.draw(*chosen, text=text)
            case "finish":
                self.stage.finish(*chosen)
            case "fail":
                for key in chosen:
                    self.stage.engine.forget(key)
                self.stage.say(StepDone(failed=[Failed(key, "VRAM_OOM", "no room") for key in chosen]))

    async def _die(self) -> None:
        jobs, questions = self.stage.jobs, self.stage.questions
        being_read = self._being_read()
        for key in self._alive():
            self.n_deaths[jobs[key]] += key in self.ran or jobs[key] in being_read
            if key in self.has_text:
                self.expected[key] = "ENGINE_RESTARTED"
            elif self.n_deaths[jobs[key]] >= DEATHS_OF_A_CULPRIT:
                self.expected[key] = "INFERENCE_FAILED"
        for question in self._open_questions():
            self.n_deaths[questions[question]] += questions[question] in being_read
            if self.n_deaths[questions[question]] >= DEATHS_OF_A_CULPRIT:
                self.expected_unanswered.add(question)
        self.suspects |= {jobs[key] for key in self.step} | being_read
        self.n_read, self.accepted, self.ran, self.step = 0, [], set(), set()
        await self.stage.die()

    def _being_read(self) -> set[Work]:
        """The first job or question that this engine has not answered."""
        for message in self._unread():
            match message:
                case Submit(job=job):
                    return {self.stage.jobs[job]}
                case Tokenize(question=question):
                    return {self.stage.questions[question]}
        return set()

    def _load(self) -> None:
        if self.stage.client.state is EngineState.RESTARTING:
            self.stage.say(FACTS)

    def finish_all(self) -> None:
        """Nothing goes wrong from here on."""
        self._load()
        while len(self.stage.ended) < len(self.stage.jobs) or self._open_questions():
            n_left = len(self._alive()) + len(self._open_questions())
            while self._unread():
                self._read(is_refusing=False)
            if left := self._running_or_queued():
                self._run("finish", left, text="x")
            assert len(self._alive()) + len(self._open_questions()) < n_left, "somebody is always next"

    def check(self) -> None:
        if self.stage.failure is None:
            jobs = self.stage.jobs.items()
            assert {key: job.failure for key, job in jobs if job.failure in IS_RETRIABLE} == self.expected
            ended = {key: question.answer for key, question in self.stage.questions.items() if question.is_ended}
            failed = {key for key, answer in ended.items() if not answer.cancelled() and answer.exception()}
            assert failed == self.expected_unanswered
        if self.stage.client.state is EngineState.RUNNING:
            submitted = self.stage.engine.submitted
            assert sorted(set(submitted)) == submitted, "each once, in the order of arrival"
            assert not [key for key in submitted if self.stage.jobs[key].is_ended], "the engine works for nobody"
            self._check_suspects()

    def _check_suspects(self) -> None:
        engine, jobs, questions = self.stage.engine, self.stage.jobs, self.stage.questions
        asked = [questions[key] for key in engine.asked]
        works: list[Work] = [*(jobs[key] for key in engine.submitted), *(one for one in asked if not one.is_ended)]
        waiting_suspects = {work for work in self.suspects if not work.is_ended}
        if waiting_suspects and works:
            assert len(works) == 1, "suspects run alone"
            assert waiting_suspects.issuperset(works), "and before anything else"

    async def check_stories(self) -> None:
        assert sorted(self.stage.ended) == sorted(self.stage.jobs), "every job ends exactly once"
        assert all(n_deaths <= DEATHS_OF_A_CULPRIT for n_deaths in self.n_deaths.values())
        for key, job in self.stage.jobs.items():
            if job.refusal is None:
                events = await self.stage.events(key)
                check_order(events)
                assert events[-1].get("code") == job.failure
                if job.failure in IS_RETRIABLE:
                    assert events[-1]["retriable"] == IS_RETRIABLE[job.failure]


@pytest.mark.long
@settings(max_examples=300)
@given(ACTS)
@rehearsed
async def test_every_job_ends_exactly_once_and_as_its_deaths_demand(
    stage: Stage, acts: Sequence[tuple[int, int]]
) -> None:
    improvisation = Improvisation(stage)
    for number, bits in acts:
        await improvisation.act(number, bits)
        improvisation.check()
        if stage.failure is not None:
            break
    else:
        improvisation.finish_all()
    await improvisation.check_stories()


@rehearsed
async def test_a_job_that_has_sent_no_token_runs_again_as_it_was(stage: Stage) -> None:
    """The same holds if tokens were drawn whose text was held back. One Submit has one seed; there is one `started`."""
    job = stage.run()
    stage.draw(job, text="")
    first = stage.engine.sent[-1]
    await stage.die_and_reload()
    assert stage.engine.sent[1:] == [first]
    stage.run(job)
    stage.finish(job)
    started, token, end = await stage.events(job)
    assert (started["type"], token["i"], end["tokens_sampled"]) == ("started", 0, 1)


@rehearsed
async def test_deaths_while_a_successor_loads_count_too_and_its_reason_is_reported(stage: Stage) -> None:
    for n_deaths in range(MAX_DEATHS):
        assert stage.client.state is not EngineState.FAILED
        if n_deaths == 1:
            stage.say(LoadFailed(code="MODEL_LOAD_FAILED", message="the file is gone"))
        await stage.die()
    assert stage.client.state is EngineState.FAILED
    assert "the file is gone" in stage.deaths[1][0]


async def poison(stage: Stage) -> None:
    """A job that kills every engine that runs it, and ends; or that finds the worker failed."""
    job = stage.submit()
    while not stage.jobs[job].is_ended:
        stage.run(job)
        await stage.die()
        if stage.client.state is not EngineState.FAILED:
            stage.say(FACTS)


@pytest.mark.parametrize("finishes_one", [False, True])
@rehearsed
async def test_five_poison_prompts_in_a_row_fail_the_worker_and_a_finished_job_between_them_saves_it(
    stage: Stage,
    finishes_one: bool,
) -> None:
    """Only the second death of each is charged to it."""
    for _ in range(MAX_DEATHS - 1):
        await poison(stage)
        assert stage.client.state is EngineState.RUNNING
    assert len(stage.deaths) == 2 * (MAX_DEATHS - 1)
    if finishes_one:
        good = stage.run()
        stage.finish(good)
    await poison(stage)
    assert stage.client.state is (EngineState.RUNNING if finishes_one else EngineState.FAILED)


@pytest.mark.parametrize(("last_s", "state"), [(0.0, EngineState.FAILED), (1.0, EngineState.RESTARTING)])
@rehearsed
async def test_deaths_are_too_many_when_the_last_five_lie_within_ten_minutes(
    stage: Stage, last_s: float, state: EngineState
) -> None:
    """They end every job, and no sixth engine is started."""
    for _ in range(MAX_DEATHS - 1):
        await stage.die_and_reload()
    job = stage.run()
    stage.now_s += DEATHS_WINDOW_S + last_s
    await stage.die("the library's last words")
    is_end = state is EngineState.FAILED
    assert (stage.client.state, len(stage.engines)) == (state, MAX_DEATHS + (not is_end))
    assert stage.jobs[job].failure == ("INFERENCE_FAILED" if is_end else None)
    assert str(stage.failure).endswith("the library's last words") == is_end


@pytest.mark.parametrize("are_running", [False, True])
@rehearsed
async def test_no_number_of_prompts_that_kill_their_reader_ends_the_worker(stage: Stage, are_running: bool) -> None:
    """If jobs ran at the first death of one, that was charged to the worker; read alone, the text is known to be the
    cause, and the death is withdrawn.
    """
    for _ in range(4 * MAX_DEATHS):
        running = [stage.run()] if are_running else []
        poisonous, behind = stage.submit(), stage.submit()
        await stage.die_and_reload()
        for key in running:
            stage.accept(key)
            stage.jobs[key].fail("CANCELLED", "enough")
        assert stage.engine.submitted == [poisonous], "alone"
        await stage.die_and_reload()
        assert (await stage.events(poisonous))[-1]["code"] == "INFERENCE_FAILED"
        assert stage.engine.submitted == [behind]
        stage.jobs[behind].fail("CANCELLED", "enough")
        stage.accept(behind)
    assert stage.client.state is EngineState.RUNNING
