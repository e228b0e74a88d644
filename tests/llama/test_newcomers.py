"""A wide step of the real library is stopped for a newcomer, and both answers are what they are without."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from tests.llama.conftest import MakeContext
from tests.llama.served import Served
from worker.engine.config import EngineConfig
from worker.llama.model import Model
from worker.llama.runner import LlamaRunner
from worker.wire.jobs import JobKey, SlotId, TokenId

pytestmark = pytest.mark.model

N_CELLS, N_UBATCH, N_TOKENS, PATIENCE_S = 1024, 512, 6, 60.0
LONG = [TokenId(100 + (i * i) % 20_000) for i in range(600)]
SHORT = [TokenId(50 + i) for i in range(30)]


class Site(Served):
    """`is_running` is set while a step may run."""

    def __init__(self, runner: LlamaRunner) -> None:
        self.is_running = threading.Event()
        config = EngineConfig(
            n_slots=2,
            n_cells=N_CELLS,
            context_length=N_CELLS,
            chunk=32,
            widest_step=N_UBATCH,
            retained_slots=(SlotId(2),),
        )
        super().__init__(runner, config, while_running=self._while_running)

    @contextmanager
    def _while_running(self) -> Iterator[None]:
        self.is_running.set()
        yield

    def stop_for(self, prompt: list[TokenId]) -> bool:
        """Act as another thread."""
        assert self.is_running.wait(PATIENCE_S)
        is_in_the_way = self.engine.is_in_the_way(prompt)
        if is_in_the_way:
            self.runner.request_abort()
        return is_in_the_way


def test_a_micro_batch_is_stopped_for_a_short_prompt_and_read_again(model: Model, make_context: MakeContext) -> None:
    def site() -> Site:
        context = make_context(model, n_ctx=N_CELLS, n_batch=N_UBATCH, n_ubatch=N_UBATCH, n_seq_max=3)
        return Site(LlamaRunner(model, context))

    alone, disturbed = site(), site()
    for prompt in (LONG, SHORT):
        alone.submit(prompt, N_TOKENS)
        alone.run()
    disturbed.submit(LONG, N_TOKENS)
    with ThreadPoolExecutor(1) as intake:
        is_stopped = intake.submit(disturbed.stop_for, SHORT)
        disturbed.engine.step()
        assert is_stopped.result(PATIENCE_S)
    long = disturbed.engine.scheduler.find(JobKey(0))
    assert long is not None
    assert long.n_computed == disturbed.runner.kv.n_cells_used == 0, "nothing of the step is left"
    disturbed.submit(SHORT, N_TOKENS)
    while not any(disturbed.generated.values()):
        disturbed.engine.step()
    assert [job for job, tokens in disturbed.generated.items() if tokens] == [JobKey(1)], "the newcomer is first"
    disturbed.run()
    assert all(disturbed.answer(job) == alone.answer(job) != [] for job in (JobKey(0), JobKey(1)))
