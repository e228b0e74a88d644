"""Jobs whose answers leave when they are complete, and jobs whose answers leave together."""

import asyncio

import pytest

from tests.apis.asking import HEADING, entry
from tests.server.front.rehearsal import Stage, rehearsed
from worker.apis.chat.message import ChatAnswer
from worker.apis.completions.request import CompletionRequest, Echo, TextAnswer
from worker.apis.core.answers import Allowance
from worker.apis.core.reading import PLAIN
from worker.server.front.job import Job, JobState, next_chunk_of
from worker.wire.jobs import PromptLogprobs, StepDone, TokenId


def collecting(stage: Stage, allowance: Allowance | None = None) -> tuple[Job, ChatAnswer]:
    """A job whose message is collected."""
    job = stage.jobs[stage.submit()]
    message = ChatAnswer(0, allowance or Allowance(), HEADING, None, PLAIN)
    job.dialect = message
    return job, message


@rehearsed
async def test_a_job_whose_answer_has_not_left_runs_again_though_it_had_drawn_tokens(stage: Stage) -> None:
    job, message = collecting(stage)
    stage.run(job.key)
    stage.draw(job.key, text="lost")
    await stage.die_and_reload()
    assert (job.state, job.tokens_out) == (JobState.ACCEPTED, 0)
    stage.run(job.key)
    stage.draw(job.key, text="kept")
    stage.finish(job.key)
    assert (job.outcome, job.tokens_sampled) == ("success", 2)
    assert message.made().message.content == "keptx"
    assert await next_chunk_of([job]) == b""


@rehearsed
async def test_a_job_that_keeps_too_much_ends_once(stage: Stage) -> None:
    job, message = collecting(stage, Allowance(5))
    stage.run(job.key)
    stage.draw(job.key, text="12345")
    assert not job.is_ended
    stage.draw(job.key, text="6")
    assert (job.failure, stage.ended) == ("INVALID_REQUEST", [job.key])
    assert message.failed is not None


@rehearsed
async def test_what_a_prompt_was_worth_reaches_the_jobs_dialect(stage: Stage) -> None:
    job = stage.jobs[stage.submit()]
    asked = CompletionRequest(prompt="ab", echo=True, logprobs=0)
    text = TextAnswer(0, Allowance(), HEADING, asked, Echo("ab", TokenId(1), "a"))
    job.dialect = text
    stage.run(job.key)
    stage.say(StepDone(prompt_logprobs=[PromptLogprobs(job.key, 1, (entry("b", 2, -1.0),))]))
    stage.finish(job.key)
    made = text.made()
    assert made.logprobs is not None
    assert bytes(made.logprobs.token_logprobs) == b"[null,-1.0]"


@pytest.mark.parametrize("n_jobs", [1, 3])
@rehearsed
async def test_chunks_of_several_jobs_come_until_all_have_ended(stage: Stage, n_jobs: int) -> None:
    jobs = together(stage, n_jobs)
    keys = [job.key for job in jobs]
    reading = asyncio.create_task(read(jobs))
    stage.run(*keys)
    for key in keys:
        stage.draw(key, text=f"of {key}")
        await asyncio.sleep(0)
        stage.finish(key)
    whole = await reading
    assert whole.count(b'"type":"end"') == n_jobs
    assert all(f"of {key}".encode() in whole for key in keys)


@rehearsed
async def test_once_one_of_several_has_failed_nothing_else_comes(stage: Stage) -> None:
    jobs = together(stage, 2)
    keys = [job.key for job in jobs]
    stage.run(*keys)
    stage.draw(*keys)
    jobs[1].fail("CANCELLED", "enough")
    whole = await read(jobs)
    assert b'"type":"token"' not in whole
    assert whole.count(b'"type":"error"') == 1
    jobs[0].fail("CANCELLED", "enough")


def together(stage: Stage, n_jobs: int) -> list[Job]:
    """Jobs that wake whoever waits for any of them."""
    jobs = [stage.jobs[stage.submit()] for _ in range(n_jobs)]
    for job in jobs:
        job.admission = jobs[0].admission
    return jobs


async def read(jobs: list[Job]) -> bytes:
    whole = b""
    while chunk := await next_chunk_of(jobs):
        whole += chunk
    return whole
