"""A model that leaves its GPU while the worker serves: who asks, who is not asked, and what /health tells then."""

import asyncio
import io
import sys
from collections.abc import Sequence
from dataclasses import replace

import msgspec
import pytest

from tests.loops import on_a_loop
from tests.observe.log_lines import logging_is_put_back, to  # noqa: F401 - the first is a fixture of every test here
from tests.server.front.rehearsal import CONFIG, FACTS, Stage
from tests.toy_engine import GONE, LEAVING, ON_A_GPU, THERE
from worker.config.settings import Settings
from worker.observe.metrics import Metrics
from worker.server.front.children import engine_environment
from worker.server.front.client import EngineClient, EngineState
from worker.server.front.dispatch import Report
from worker.server.front.state import Front
from worker.wire.load import AskResidency, Loaded, Residency

PATIENCE_S = 60.0
OFTEN_S = 0.001
N_TURNS = 100
"""The number of turns of the event loop; a question asked at every turn would be asked many times."""


# ── who is asked ─────────────────────────────────────────────────────────────────────────────────


async def turn() -> None:
    for _ in range(N_TURNS):
        await asyncio.sleep(0)


@pytest.mark.parametrize(("facts", "dies"), [(ON_A_GPU, False), (ON_A_GPU, True), (FACTS, False)])
@on_a_loop
async def test_an_engine_on_a_gpu_is_asked_again_and_again_but_none_that_loads_or_is_on_a_cpu(
    facts: Loaded, dies: bool
) -> None:
    """A question is due at every turn of the loop."""
    stage = Stage(residency_period_s=0.0)
    await stage.open(facts)
    await turn()
    if dies:
        await stage.die()
        await turn()
    assert stage.client.state is (EngineState.RESTARTING if dies else EngineState.RUNNING)
    await stage.client.close()
    asked = [engine.sent.count(AskResidency()) for engine in stage.engines]
    await turn()
    assert asked == [engine.sent.count(AskResidency()) for engine in stage.engines], "closed, it asks no more"
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert asked[1:] == [0] * dies
    assert asked[0] > 2 if facts is ON_A_GPU else asked == [0]


@on_a_loop
async def test_the_first_question_comes_after_a_period() -> None:
    stage = Stage()
    await stage.open(ON_A_GPU)
    await turn()
    assert AskResidency() not in stage.engine.sent
    await stage.client.close()


# ── what is told ─────────────────────────────────────────────────────────────────────────────────


class Listening(Front):
    """A front that also says when it has heard of a model that is gone."""

    gone: asyncio.Event

    def on_report(self, report: Report) -> None:
        super().on_report(report)
        if isinstance(report, Residency) and not report.is_resident:
            self.gone.set()


async def served(answers: Sequence[Residency], facts: Loaded = ON_A_GPU) -> tuple[Front, Stage]:
    """A front whose engine has given these answers."""
    front, stage = Front(Settings(model="m.gguf", worker_id="w-1"), Metrics("w-1")), Stage()
    await stage.open(facts)
    front.open(stage.client)
    for answer in answers:
        front.on_report(answer)
    return front, stage


@pytest.mark.parametrize(
    ("answers", "is_there"),
    [((), True), ((THERE,), True), ((GONE, THERE), True), ((GONE,), False), ((THERE, GONE), False)],
)
@on_a_loop
async def test_health_and_metrics_report_where_the_model_is_and_the_worker_goes_on(
    answers: tuple[Residency, ...], is_there: bool
) -> None:
    front, stage = await served(answers)
    health, metrics = front.health(), front.scrape(None)[0].decode()
    gauges = dict(line.rsplit(" ", 1) for line in metrics.splitlines())
    n_bytes = 1000 if is_there else 30
    assert (health.resident, health.vram_bytes, health.vram_bytes_used) == (is_there, n_bytes, n_bytes)
    assert health.status == "healthy"
    assert float(gauges['worker_vram_bytes{worker_id="w-1"}']) == n_bytes
    assert float(gauges['worker_resident{worker_id="w-1"}']) == is_there
    await stage.client.close()


@pytest.mark.parametrize(
    ("answers", "changes"),
    [
        ((THERE, THERE), []),
        ((THERE, GONE, GONE, GONE), [False]),
        ((GONE, THERE, THERE, GONE), [False, True, False]),
    ],
)
@on_a_loop
async def test_each_change_is_one_warning(answers: tuple[Residency, ...], changes: list[bool]) -> None:
    stream = io.StringIO()
    to(stream)
    _, stage = await served(answers)
    await stage.client.close()
    lines = [msgspec.json.decode(line) for line in stream.getvalue().splitlines()]
    assert [(line["event"], line["level"], line["resident"]) for line in lines] == [
        ("residency_changed", "warning", is_resident) for is_resident in changes
    ]


@on_a_loop
async def test_a_model_that_was_never_wholly_there_is_no_news() -> None:
    stream = io.StringIO()
    to(stream)
    facts = msgspec.structs.replace(ON_A_GPU, resident=False)
    front, stage = await served([msgspec.structs.replace(THERE, is_resident=False)], facts)
    assert (front.health().resident, front.health().vram_bytes_used) == (False, 1000)
    await stage.client.close()
    assert stream.getvalue() == ""


@on_a_loop
async def test_a_successor_is_where_it_was_loaded() -> None:
    front, stage = await served([GONE])
    front.on_restarting("it was ended by SIGKILL", "")
    front.on_restarted(ON_A_GPU)
    assert (front.health().resident, front.health().vram_bytes_used) == (True, 1000)
    await stage.client.close()


@pytest.mark.process
@on_a_loop
async def test_an_engine_process_whose_model_leaves_is_found_out() -> None:
    front = Listening(Settings(model="m.gguf", worker_id="w-1"), Metrics("w-1"))
    front.gone = asyncio.Event()
    client = EngineClient(
        replace(CONFIG, model_path=LEAVING),
        front,
        environment=engine_environment(),
        watchdog_s=PATIENCE_S,
        command=(sys.executable, "-m", "tests.toy_engine"),
        residency_period_s=OFTEN_S,
    )
    try:
        await client.start()
        front.open(client)
        assert front.health().resident
        await asyncio.wait_for(front.gone.wait(), PATIENCE_S)
        assert (front.health().resident, front.health().vram_bytes_used) == (False, 30)
    finally:
        await client.close()
