"""Questions about tokens: answered beside the jobs, asked again after an engine's death, and never for ever."""

import asyncio

import pytest

from tests.server.front.rehearsal import FACTS, Stage, fronted, rehearsed
from worker.apis.core.bodies import FieldsRefused
from worker.config.settings import Settings
from worker.errors import (
    DeadlineExceeded,
    InferenceFailed,
    StartupError,
    WorkerBusy,
    WorkerDraining,
    WorkerError,
    WorkerLoading,
    WorkerUnhealthy,
)
from worker.observe.metrics import Metrics
from worker.server.front.dispatch import MAX_DEATHS, MAX_QUESTIONS
from worker.server.front.state import Front
from worker.wire.jobs import TokenId
from worker.wire.messages import QuestionKey, Tokenize, Tokenized, Untokenized, Violation

TOKENS = (TokenId(1),)
N_POISONOUS = 4 * MAX_DEATHS


async def asked(stage: Stage, n_questions: int) -> list[QuestionKey]:
    """The questions that this engine has been asked, once there are so many."""

    def found() -> list[QuestionKey]:
        return [message.question for message in stage.engine.sent if isinstance(message, Tokenize)]

    await stage.until(lambda: len(found()) >= n_questions)
    assert len(found()) == n_questions
    return found()


async def failure(asking: asyncio.Task[Tokenized]) -> WorkerError:
    with pytest.raises(WorkerError) as raised:
        await asking
    return raised.value


@rehearsed
async def test_a_prompt_becomes_tokens_and_tokens_text(stage: Stage) -> None:
    front = fronted(stage)
    tokenizing = asyncio.create_task(front.tokenize("hi", add_special=False))
    detokenizing = asyncio.create_task(front.detokenize(TOKENS))
    first, second = await asked(stage, 2)
    assert stage.engine.sent[1:] == [
        Tokenize(question=first, prompt="hi", add_special=False),
        Tokenize(question=second, prompt=TOKENS),
    ]
    stage.answer(second)
    stage.answer(first)
    assert (await tokenizing).tokens == TOKENS
    assert await detokenizing == "x"
    assert stage.client.jobs.n_questions == 0


@rehearsed
async def test_what_the_engine_refuses_is_refused_with_its_words(stage: Stage) -> None:
    asking = asyncio.create_task(fronted(stage).tokenize("hi"))
    (key,) = await asked(stage, 1)
    stage.say(Untokenized(question=key, violations=(Violation("messages", "no_chat_template", "no template"),)))
    refusal = await failure(asking)
    assert isinstance(refusal, FieldsRefused)
    assert [(error.field, error.constraint) for error in refusal.errors] == [("messages", "no_chat_template")]


@rehearsed
async def test_a_question_is_refused_by_the_state_as_a_job_is(stage: Stage) -> None:
    front = fronted(stage)
    with pytest.raises(WorkerLoading):
        await Front(Settings(), Metrics("new")).tokenize("hi")
    front.drain()
    with pytest.raises(WorkerDraining):
        await front.tokenize("hi")
    assert stage.client.jobs.n_questions == 0


@rehearsed
async def test_questions_are_limited_and_abandoned_ones_count_until_the_intake_has_answered_them(
    stage: Stage,
) -> None:
    front = fronted(stage)
    asking = [asyncio.create_task(front.tokenize("hi")) for _ in range(MAX_QUESTIONS)]
    keys = await asked(stage, MAX_QUESTIONS)
    asking[0].cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking[0]
    with pytest.raises(WorkerBusy):
        await front.tokenize("hi")
    stage.answer(keys[0])
    asking[0] = asyncio.create_task(front.tokenize("hi"))
    for key in [*keys[1:], (await asked(stage, MAX_QUESTIONS + 1))[-1]]:
        stage.answer(key)
    await asyncio.gather(*asking)
    assert stage.client.jobs.n_questions == 0


@rehearsed
async def test_a_question_has_a_jobs_time(stage: Stage) -> None:
    front = fronted(stage, inference_timeout_sec=0.001)
    assert isinstance(await failure(asyncio.create_task(front.tokenize("hi"))), DeadlineExceeded)
    stage.answer((await asked(stage, 1))[0])


@pytest.mark.parametrize("are_running", [False, True])
@rehearsed
async def test_no_number_of_poisonous_questions_ends_the_worker(stage: Stage, are_running: bool) -> None:
    """The same holds if another job runs at the first death of each, and may be to blame until the second."""
    front = fronted(stage)
    for n_asked in range(1, N_POISONOUS + 1):
        if are_running:
            running = stage.run()
            stage.draw(running)
        asking = asyncio.create_task(front.tokenize("poison"))
        await asked(stage, 1)
        await stage.die_and_reload()
        await asked(stage, 1)
        await stage.die_and_reload()
        assert isinstance(await failure(asking), InferenceFailed)
        assert len(stage.deaths) == 2 * n_asked
    assert stage.failure is None


@rehearsed
async def test_askers_that_leave_before_the_second_death_do_not_end_the_worker_either(stage: Stage) -> None:
    front = fronted(stage)
    for _ in range(N_POISONOUS):
        asking = asyncio.create_task(front.tokenize("poison"))
        await asked(stage, 1)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        await stage.die_and_reload()
        assert await asked(stage, 0) == []
    assert stage.client.jobs.n_questions == 0
    assert stage.failure is None


@rehearsed
async def test_deaths_during_questions_that_are_answered_later_count(stage: Stage) -> None:
    """A question that is answered when it is asked alone was not the cause."""
    front = fronted(stage)
    for n_asked_before in range(MAX_DEATHS):
        running = stage.run()
        stage.draw(running)
        asking = asyncio.create_task(front.tokenize("hi"))
        await asked(stage, 1 + min(n_asked_before, 1))
        await stage.die()
        if stage.failure is None:
            stage.say(FACTS)
            stage.answer((await asked(stage, 1))[0])
            await asking
        else:
            assert isinstance(await failure(asking), WorkerUnhealthy)
    assert stage.failure is not None


@rehearsed
async def test_an_asker_that_waits_hears_that_there_will_be_no_answer(stage: Stage) -> None:
    front = fronted(stage)
    asking = asyncio.create_task(front.tokenize("hi"))
    await asked(stage, 1)
    front.end_all("the worker is shutting down")
    assert isinstance(await failure(asking), WorkerDraining)
    asking = asyncio.create_task(front.tokenize("hi"))
    await asked(stage, 2)
    stage.client.on_fatal(StartupError("the watchdog is gone"))
    assert isinstance(await failure(asking), WorkerUnhealthy)
