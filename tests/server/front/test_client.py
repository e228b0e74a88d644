"""The front's handle on the engine: how it begins, whom it believes, when its watchdog barks.

What a death means for jobs and the worker: test_client_laws.py.
"""

import asyncio
from collections.abc import Mapping, Sequence

import msgspec
import pytest

from tests.loops import on_a_loop
from tests.server.front.rehearsal import CONFIG, FACTS, WATCHDOG_S, Engine, Stage, rehearsed
from worker.config.engine_settings import Configure
from worker.errors import EngineCrashed, InsufficientMemory, InternalFailure, ModelLoadFailed, StartupError
from worker.server.front.client import RESIDENCY_PERIOD_S, EngineClient, EngineState
from worker.server.front.link import LinkOwner
from worker.server.front.supervision import STEPS_OF_SILENCE
from worker.wire.jobs import Cancel, Delta, Failed, Finished, StepDone
from worker.wire.load import AskResidency, LoadFailed, Progress, Residency
from worker.wire.messages import Inbound, Outbound, Refused, Violation

TOO_BIG = LoadFailed(
    code="INSUFFICIENT_VRAM", message="too big", needed_bytes=8, available_bytes=4, device="CUDA0 (a card)"
)


@pytest.mark.parametrize(
    ("last", "expected"),
    [
        (LoadFailed(code="MODEL_LOAD_FAILED", message="no tensors"), ModelLoadFailed("no tensors")),
        (TOO_BIG, InsufficientMemory("too big", needed_bytes=8, available_bytes=4, device="CUDA0 (a card)")),
        (
            Progress(percent=50),
            EngineCrashed("the engine died while loading the model", "it exited with code 0", "words"),
        ),
    ],
)
@on_a_loop
async def test_an_engine_that_cannot_load_gives_its_own_reason_and_is_not_replaced(
    last: Outbound, expected: StartupError
) -> None:
    stage = Stage()
    starting = asyncio.create_task(stage.client.start())
    await stage.until(lambda: bool(stage.engines))
    stage.say(Progress(percent=3))
    stage.say(last)
    stage.client.on_exit("it exited with code 0", "words")
    with pytest.raises(type(expected)) as raised:
        await starting
    assert (str(raised.value), vars(raised.value)) == (str(expected), vars(expected))
    assert stage.failure is None, "told once"
    await stage.client.close()


@on_a_loop
async def test_an_engine_command_that_cannot_be_started_is_an_error_of_one_line() -> None:
    client = EngineClient(CONFIG, Stage(), environment={}, watchdog_s=30, command=("/no/such/engine",))
    with pytest.raises(EngineCrashed, match=r"could not be started: .*No such file"):
        await client.start()
    await client.close()


@rehearsed
async def test_a_successor_gets_the_shape_of_the_first_engine(stage: Stage) -> None:
    """Memory may look different by then, but accepted jobs must still fit: it gets the same plan."""
    await stage.die_and_reload()
    first, second = (engine.sent[0] for engine in stage.engines)
    assert first == CONFIG
    assert isinstance(second, Configure)
    assert second.predecessor == FACTS
    assert stage.n_restarted == 1


@rehearsed
async def test_several_tokens_of_one_step_are_events_of_their_own(stage: Stage) -> None:
    """Guessed right; they have one time, so that only the first of them has a gap."""
    job = stage.submit()
    stage.accept(job)
    stage.begin(job, n_cached=3)
    deltas = [Delta(job, text) for text in "abc"]
    stage.say(StepDone(deltas=deltas[:1], kind="prefill", sampled_at_s=1.0))
    stage.say(StepDone(deltas=deltas, finished=[Finished(job, "EOS")], kind="decode", sampled_at_s=1.5))
    started, *tokens, end = await stage.events(job)
    assert started["cached_tokens"] == 3
    assert [(token["t"], token["i"]) for token in tokens] == [("a", 0), ("a", 1), ("b", 2), ("c", 3)]
    assert (end["tokens_out"], end["tokens_sampled"], end["decode_time_ms"]) == (4, 4, 500)
    told = stage.metrics.render(None)[0].decode()
    for series, value in (("inter_token_latency_seconds_count", 3), ("inter_token_latency_seconds_sum", 0.5)):
        assert f'worker_{series}{{worker_id="stage"}} {float(value)}\n' in told
    assert 'worker_prefix_tokens_reused_total{worker_id="stage"} 3.0\n' in told


@rehearsed
async def test_a_closed_client_hears_nothing_more(stage: Stage) -> None:
    await stage.die()
    await stage.client.close()
    stage.say(FACTS)
    stage.client.on_exit("it exited with code 0", "")
    assert stage.client.state is EngineState.CLOSED
    assert (len(stage.deaths), stage.n_restarted) == (1, 0)


@rehearsed
async def test_only_a_job_that_ends_in_the_front_is_cancelled_in_the_engine_and_once(stage: Stage) -> None:
    finished, failed, refused, cancelled = (stage.submit() for _ in range(4))
    stage.accept(finished, failed, cancelled)
    stage.say(Refused(job=refused, violations=(Violation("prompt", "context_length(8)", "too long"),)))
    stage.begin(finished, failed)
    stage.finish(finished)
    stage.say(StepDone(failed=[Failed(failed, "INFERENCE_FAILED", "no")]))
    stage.jobs[cancelled].fail("CANCELLED", "enough")
    stage.client.jobs.release(stage.jobs[cancelled])
    assert sorted(stage.ended) == [finished, failed, refused, cancelled]
    assert [message for message in stage.engine.sent if isinstance(message, Cancel)] == [Cancel(job=cancelled)]


@pytest.mark.parametrize("how", ["never worked", "finished", "cancelled", "interrupted by a death"])
@rehearsed
async def test_an_engine_without_work_is_never_killed(stage: Stage, how: str) -> None:
    if how != "never worked":
        job = stage.run()
        stage.draw(job)
        if how == "finished":
            stage.finish(job)
        elif how == "cancelled":
            stage.jobs[job].fail("CANCELLED", "enough")
        else:
            await stage.die_and_reload()
    stage.let_time_pass(10 * WATCHDOG_S)
    assert stage.engine.killed_for is None


@pytest.mark.parametrize("after", ["a submission", "a death"])
@rehearsed
async def test_an_engine_that_owes_an_answer_and_is_silent_is_killed(stage: Stage, after: str) -> None:
    stage.let_time_pass(10 * WATCHDOG_S)
    stage.submit()
    if after == "a death":
        await stage.die_and_reload()
    stage.let_time_pass(WATCHDOG_S - 2)
    assert stage.engine.killed_for is None
    stage.let_time_pass(4)
    assert stage.engine.killed_for is not None
    assert "no sign of life" in stage.engine.killed_for


@on_a_loop
async def test_the_first_step_of_a_slow_machine_is_not_taken_for_silence() -> None:
    """The engine knows from its warm-up what a step takes; nobody has seen one yet."""
    stage = Stage()
    await stage.open(msgspec.structs.replace(FACTS, step_s=WATCHDOG_S))
    stage.submit()
    stage.let_time_pass(STEPS_OF_SILENCE * WATCHDOG_S - 2)
    assert stage.engine.killed_for is None
    stage.let_time_pass(4)
    assert stage.engine.killed_for is not None
    await stage.client.close()


@rehearsed
async def test_answers_of_the_intake_thread_do_not_hide_a_step_that_hangs(stage: Stage) -> None:
    stage.run()
    for _ in range(4):
        stage.let_time_pass(WATCHDOG_S / 3)
        stage.accept(stage.submit())
        stage.say(Residency(is_resident=True, memory_bytes=1))
    assert stage.engine.killed_for is not None


class Unaskable(Engine):
    """An engine whose link breaks when it is asked where its model is."""

    def send(self, message: Inbound | Configure) -> None:
        if isinstance(message, AskResidency):
            raise ZeroDivisionError("the question")
        super().send(message)


class FailingStage(Stage):
    """Its n-th engine cannot be started, for a reason that nobody has thought of; the others cannot be asked."""

    def __init__(self, n: int, *, residency_period_s: float = RESIDENCY_PERIOD_S) -> None:
        super().__init__(residency_period_s=residency_period_s)
        self._n = n

    async def _spawn(self, _command: Sequence[str], _owner: LinkOwner, _: Mapping[str, str]) -> Engine:
        if len(self.engines) + 1 == self._n:
            raise ZeroDivisionError("the start")
        self.engines.append(Unaskable())
        return self.engine


@on_a_loop
async def test_a_first_engine_that_cannot_be_started_for_an_unforeseen_reason_ends_the_start() -> None:
    stage = FailingStage(1)
    with pytest.raises(InternalFailure, match="ZeroDivisionError: the start"):
        await stage.client.start()
    await stage.client.close()


@pytest.mark.parametrize("part", ["the start", "the question"])
@on_a_loop
async def test_a_successor_that_cannot_be_started_or_a_timer_that_fails_is_fatal(part: str) -> None:
    """The worker would otherwise stay in RESTARTING for ever, and its jobs with it; or have no watchdog any more, and
    no sign of that.
    """
    is_start = part == "the start"
    stage = FailingStage(2, residency_period_s=RESIDENCY_PERIOD_S if is_start else 0.0)
    await stage.open(FACTS if is_start else msgspec.structs.replace(FACTS, backend="cuda"))
    jobs = [stage.submit()] if is_start else []
    if is_start:
        stage.client.on_exit("it was ended by SIGKILL", "")
    await stage.until(lambda: stage.failure is not None)
    assert stage.client.state is EngineState.FAILED
    assert isinstance(stage.failure, InternalFailure)
    assert f"ZeroDivisionError: {part}" in str(stage.failure)
    assert [stage.jobs[key].failure for key in jobs] == ["INFERENCE_FAILED"] * len(jobs)
    n_deaths = len(stage.deaths)
    stage.client.on_exit("it exited with code 0", "")
    assert len(stage.deaths) == n_deaths, "nothing is restarted any more"
    await stage.client.close()


@rehearsed
async def test_a_job_cancelled_before_its_answer_takes_room_until_the_engine_answers(stage: Stage) -> None:
    hasty, patient = stage.submit(), stage.submit()
    assert stage.client.jobs.n_leaving == 0
    stage.jobs[hasty].fail("CANCELLED", "changed its mind")
    assert stage.client.jobs.n_leaving == 1
    stage.accept(hasty, patient)
    assert stage.client.jobs.n_leaving == 0
    assert stage.jobs[patient].decided.is_set()
