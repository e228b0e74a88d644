"""Each job, and the worker, have one end when engines die (docs/protocol.md#life-of-a-job)."""

import pytest

from tests.server.front.rehearsal import FACTS, Stage, rehearsed
from worker.server.front.client import DEATHS_WINDOW_S, MAX_DEATHS, EngineState
from worker.wire.load import LoadFailed

# ── what becomes of a job ────────────────────────────────────────────────────────────────────────


@rehearsed
async def test_a_job_that_has_sent_a_token_ends_with_the_engine(stage: Stage) -> None:
    job = stage.run()
    stage.draw(job)
    await stage.die_and_reload()
    error = (await stage.events(job))[-1]
    assert (error["code"], error["retriable"]) == ("ENGINE_RESTARTED", True)
    assert stage.engine.submitted == []


@rehearsed
async def test_a_job_that_has_sent_none_runs_again_as_it_was(stage: Stage) -> None:
    """The same holds if tokens were drawn whose text was held back. One Submit has one seed; there is one `started`."""
    job = stage.run()
    stage.draw(job, text="")
    first = stage.engine.sent[-1]
    await stage.die_and_reload()
    assert stage.engine.sent[1:] == [first]
    stage.accept(job)
    stage.begin(job)
    stage.finish(job)
    started, token, end = await stage.events(job)
    assert (started["type"], token["i"], end["tokens_sampled"]) == ("started", 0, 1)


@rehearsed
async def test_a_job_present_at_two_deaths_ends_and_its_second_death_does_not_count(stage: Stage) -> None:
    for _ in range(MAX_DEATHS - 1):
        job = stage.run()
        await stage.die_and_reload()
        stage.begin(job)
        await stage.die_and_reload()
        error = (await stage.events(job))[-1]
        assert (error["code"], error["retriable"]) == ("INFERENCE_FAILED", False)
    assert stage.failure is None
    await stage.die()
    assert stage.failure is not None


@rehearsed
async def test_jobs_of_the_failing_step_run_alone_and_before_all_others(stage: Stage) -> None:
    queued, first, second = stage.submit(), stage.submit(), stage.submit()
    stage.accept(queued, first, second)
    stage.begin(first, second)
    await stage.die()
    late = stage.submit()
    stage.say(FACTS)
    assert stage.engine.submitted == [first]
    stage.accept(first)
    stage.begin(first)
    assert stage.engine.submitted == [first], "alone until its end"
    stage.finish(first)
    assert stage.engine.submitted == [second]
    stage.jobs[second].fail("CANCELLED", "enough")
    assert stage.engine.submitted == [queued, late]


@rehearsed
async def test_the_job_being_tokenised_is_a_suspect_and_those_after_it_are_not(stage: Stage) -> None:
    done, tokenising, behind = stage.submit(), stage.submit(), stage.submit()
    stage.accept(done)
    await stage.die_and_reload()
    assert stage.engine.submitted == [tokenising]
    await stage.die_and_reload()
    assert (await stage.events(tokenising))[-1]["code"] == "INFERENCE_FAILED"
    assert stage.engine.submitted == [done, behind]


@rehearsed
async def test_no_number_of_prompts_that_cannot_be_read_ends_the_worker(stage: Stage) -> None:
    for _ in range(4 * MAX_DEATHS):
        unreadable, behind = stage.submit(), stage.submit()
        await stage.die_and_reload()
        assert stage.engine.submitted == [unreadable], "alone"
        await stage.die_and_reload()
        assert (await stage.events(unreadable))[-1]["code"] == "INFERENCE_FAILED"
        assert stage.engine.submitted == [behind]
        stage.jobs[behind].fail("CANCELLED", "enough")
        stage.accept(behind)
    assert stage.failure is None


# ── the client's own end ─────────────────────────────────────────────────────────────────────────


@rehearsed
async def test_the_fifth_death_without_a_finished_job_ends_every_job_and_the_worker(stage: Stage) -> None:
    job = stage.submit()
    for _ in range(MAX_DEATHS - 1):
        stage.accept(job)
        await stage.die_and_reload()
    stage.accept(job)
    await stage.die("the library's last words")
    assert (await stage.events(job))[-1]["code"] == "INFERENCE_FAILED"
    assert stage.failure is not None
    assert str(stage.failure).endswith("the library's last words")
    assert len(stage.engines) == MAX_DEATHS, "no sixth engine"


@pytest.mark.parametrize("mercy", ["a finished job", "time"])
@rehearsed
async def test_a_finished_job_or_ten_minutes_make_deaths_forgotten(stage: Stage, mercy: str) -> None:
    for _ in range(2):
        for _ in range(MAX_DEATHS - 1):
            await stage.die_and_reload()
        if mercy == "time":
            stage.now_s += DEATHS_WINDOW_S + 1
        else:
            job = stage.run()
            stage.finish(job)
    assert stage.client.state is EngineState.RUNNING


@rehearsed
async def test_deaths_while_a_successor_loads_count_too(stage: Stage) -> None:
    for _ in range(MAX_DEATHS):
        assert stage.client.state is not EngineState.FAILED
        await stage.die()
    assert stage.client.state is EngineState.FAILED


@rehearsed
async def test_why_a_successor_could_not_load_is_reported(stage: Stage) -> None:
    await stage.die()
    stage.say(LoadFailed(code="MODEL_LOAD_FAILED", message="the file is gone"))
    await stage.die()
    assert "the file is gone" in stage.deaths[-1][0]


async def poison(stage: Stage) -> None:
    """A job that kills every engine that runs it, and ends; or that finds the worker failed."""
    job = stage.submit()
    while not stage.jobs[job].is_ended:
        stage.accept(job)
        stage.begin(job)
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


@pytest.mark.parametrize(("last_s", "state"), [(0.0, EngineState.FAILED), (1.0, EngineState.RUNNING)])
@rehearsed
async def test_deaths_are_too_many_when_the_last_five_lie_within_ten_minutes(
    stage: Stage, last_s: float, state: EngineState
) -> None:
    for _ in range(MAX_DEATHS - 1):
        await stage.die_and_reload()
    stage.now_s += DEATHS_WINDOW_S + last_s
    await stage.die_and_reload()
    assert stage.client.state is state


@rehearsed
async def test_a_death_over_a_text_that_kills_its_reader_again_is_withdrawn(stage: Stage) -> None:
    """Jobs ran at its first death, which was the worker's therefore; read alone, the text is known to be the cause."""
    for _ in range(4 * MAX_DEATHS):
        running, poisonous = stage.run(), stage.submit()
        await stage.die_and_reload()
        stage.accept(running)
        stage.jobs[running].fail("CANCELLED", "enough")
        assert stage.engine.submitted == [poisonous], "alone"
        await stage.die_and_reload()
        assert (await stage.events(poisonous))[-1]["code"] == "INFERENCE_FAILED"
    assert stage.client.state is EngineState.RUNNING
