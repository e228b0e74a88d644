"""The worker has one end when engines die too often (docs/protocol.md#life-of-a-job).

Which jobs a death ends, and which run again alone, is a law: test_client_laws.py.
"""

import pytest

from tests.server.front.rehearsal import FACTS, Stage, rehearsed
from worker.server.front.client import DEATHS_WINDOW_S, MAX_DEATHS, EngineState
from worker.wire.load import LoadFailed


@rehearsed
async def test_a_job_that_has_sent_no_token_runs_again_as_it_was(stage: Stage) -> None:
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
