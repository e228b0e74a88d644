"""The states of a job, of the engine client and of the front: every move is enumerated against its table."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.loops import on_a_loop
from tests.server.front.rehearsal import CONFIG, FACTS, Stage, rehearsed
from worker.apis.pool.execute import TEXT_ONLY
from worker.config.settings import Settings
from worker.errors import EngineCrashed
from worker.observe.metrics import Metrics
from worker.server.front import client, job
from worker.server.front.admission import MAX_RETRY_S, Phase, retry_after_s
from worker.server.front.client import EngineClient, EngineState
from worker.server.front.job import Job, JobState, next_chunk_of
from worker.server.front.state import Front
from worker.wire.jobs import Finished
from worker.wire.messages import Refused, Violation

State = TypeVar("State", bound=Enum)

REFUSED = (Violation("prompt", "non_empty", "prompt has no tokens for this model"),)


def pairs(states: type[State]) -> list[tuple[State, State]]:
    return [(before, after) for before in states for after in states]


def check(table: Mapping[State, frozenset[State]], moved: Any, attribute: str, before: State, after: State) -> None:
    """`moved._move(after)` from `before` does what the table says, and an illegal move changes nothing."""
    setattr(moved, attribute, before)
    if after in table[before]:
        moved._move(after)
        assert getattr(moved, attribute) is after
        return
    with pytest.raises(AssertionError, match=f"{before.name} -> {after.name} is not a legal move"):
        moved._move(after)
    assert getattr(moved, attribute) is before


def test_every_state_is_in_its_table_and_one_is_the_end() -> None:
    assert set(job.LEGAL_MOVES) == set(JobState)
    assert set(client.LEGAL_MOVES) == set(EngineState)
    assert [state for state, moves in job.LEGAL_MOVES.items() if not moves] == [JobState.ENDED]
    assert [state for state, moves in client.LEGAL_MOVES.items() if not moves] == [EngineState.CLOSED]


@pytest.mark.parametrize(("before", "after"), pairs(JobState))
@rehearsed
async def test_a_job_moves_as_its_table_says(stage: Stage, before: JobState, after: JobState) -> None:
    check(job.LEGAL_MOVES, stage.jobs[stage.submit()], "state", before, after)


@rehearsed
async def test_what_happens_to_a_job_moves_it(stage: Stage) -> None:
    """The client may be answered from the moment at which the job leaves ARRIVED."""
    found = stage.jobs[stage.submit()]
    assert (found.state, found.decided.is_set()) == (JobState.ARRIVED, False)
    acts: tuple[tuple[Callable[[], object], JobState], ...] = (
        (lambda: found.accept(3), JobState.ACCEPTED),
        (lambda: found.start(0, 0.0), JobState.RUNNING),
        (found.rewind, JobState.ACCEPTED),
        (lambda: found.accept(3), JobState.ACCEPTED),
        (lambda: found.start(0, 0.0), JobState.RUNNING),
        (lambda: found.delta("text", None, 1.0), JobState.RUNNING),
        (lambda: found.finish(Finished(found.key, "EOS")), JobState.ENDED),
    )
    for happen, state in acts:
        happen()
        assert (found.state, found.is_running, found.decided.is_set()) == (state, state is JobState.RUNNING, True)
    assert found.outcome == "success"


def prepared(found: Job, state: JobState) -> None:
    """Bring a job to a state by what the engine says."""
    if state is not JobState.ARRIVED:
        found.accept(3)
    if state in (JobState.RUNNING, JobState.ENDED):
        found.start(0, 0.0)
    if state is JobState.ENDED:
        found.fail("CANCELLED", "enough")


@pytest.mark.parametrize("state", JobState)
@rehearsed
async def test_a_job_can_be_failed_in_every_state_and_ends_once(stage: Stage, state: JobState) -> None:
    found = stage.jobs[stage.submit()]
    prepared(found, state)
    found.fail("INFERENCE_FAILED", "the engine crashed twice while running this job")
    assert (found.state, found.decided.is_set()) == (JobState.ENDED, True)
    assert stage.ended == [found.key]
    assert [event["type"] for event in await stage.events(found.key)].count("error") == 1


@pytest.mark.parametrize("state", JobState)
@rehearsed
async def test_what_an_engine_refuses_is_a_400_only_while_no_header_may_have_left(
    stage: Stage, state: JobState
) -> None:
    found = stage.jobs[stage.submit()]
    prepared(found, state)
    found.refuse(Refused(job=found.key, violations=REFUSED))
    was = {JobState.ARRIVED: ("rejected", None), JobState.ENDED: ("cancelled", "CANCELLED")}
    assert (found.outcome, found.failure) == was.get(state, ("error", "INVALID_REQUEST"))
    assert (found.refusal is not None) == (state is JobState.ARRIVED)


@rehearsed
async def test_a_time_out_before_the_engine_has_taken_a_job_is_a_refusal(stage: Stage) -> None:
    early, late = (stage.jobs[stage.submit()] for _ in range(2))
    late.accept(3)
    for found in (early, late):
        found.fail("TIMEOUT", "the job's time is up")
    assert early.refusal is not None
    assert late.refusal is None
    assert {early.outcome, late.outcome} == {"timeout"}


@rehearsed
async def test_an_event_that_the_dialect_leaves_out_is_not_the_end_of_the_stream(stage: Stage) -> None:
    found = stage.jobs[stage.submit()]
    found.dialect = TEXT_ONLY
    prepared(found, JobState.RUNNING)
    reading = asyncio.create_task(next_chunk_of([found]))
    await asyncio.sleep(0)
    found.delta("text", None, 1.0)
    assert await reading == b"text"
    found.finish(Finished(found.key, "EOS"))
    assert await next_chunk_of([found]) == b""


@pytest.mark.parametrize(("before", "after"), pairs(EngineState))
@on_a_loop
async def test_the_engine_client_moves_as_its_table_says(before: EngineState, after: EngineState) -> None:
    moved = EngineClient(CONFIG, Stage(), environment={}, watchdog_s=30)
    check(client.LEGAL_MOVES, moved, "state", before, after)


@pytest.mark.parametrize(
    ("acts", "phases"),
    [
        (["open", "die", "reload"], [Phase.READY, Phase.RESTARTING, Phase.READY]),
        (["die", "open", "reload"], [Phase.STARTING, Phase.RESTARTING, Phase.READY]),
        (["die", "reload", "open"], [Phase.STARTING, Phase.STARTING, Phase.READY]),
        (["drain", "open"], [Phase.DRAINING, Phase.DRAINING]),
        (["open", "drain", "drain"], [Phase.READY, Phase.DRAINING, Phase.DRAINING]),
        (["open", "drain", "die", "reload"], [Phase.READY, *[Phase.DRAINING] * 3]),
        (["open", "die", "drain", "reload"], [Phase.READY, Phase.RESTARTING, *[Phase.DRAINING] * 2]),
        (["open", "fail", "drain", "reload", "fail"], [Phase.READY, *[Phase.FAILED] * 4]),
        (["fail", "open"], [Phase.FAILED] * 2),
        (["drain", "fail"], [Phase.DRAINING, Phase.FAILED]),
    ],
)
@on_a_loop
async def test_what_happens_to_the_front_moves_it(acts: Sequence[str], phases: Sequence[Phase]) -> None:
    front, stage = Front(Settings(model="m.gguf", worker_id="w-1"), Metrics("w-1")), Stage()
    await stage.open()
    assert front.phase is Phase.STARTING
    for act, phase in zip(acts, phases, strict=True):
        match act:
            case "open":
                front.open(stage.client)
            case "die":
                stage.client.state = EngineState.RESTARTING
                front.on_restarting("it was ended by SIGKILL", "")
            case "reload":
                stage.client.state = EngineState.RUNNING
                front.on_restarted(FACTS)
            case "drain":
                front.drain()
            case "fail":
                front.on_fatal(EngineCrashed("the engine died", "on purpose", ""))
        assert front.phase is phase, act
    await stage.client.close()


@given(st.floats(0, 1e6), st.integers(0, 10**6), st.integers(1, 256))
def test_a_refused_client_waits_for_the_queue_at_the_measured_pace_within_bounds(
    service_s: float, n_waiting: int, n_slots: int
) -> None:
    assert 1 <= retry_after_s(service_s, n_waiting=n_waiting, n_slots=n_slots) <= MAX_RETRY_S
    assert [retry_after_s(10.0, n_waiting=n, n_slots=8) for n in (255, 0)] == [320, 2]
