"""A wide step of the real library is stopped for a newcomer, and both answers are what they are without."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from tests.llama.conftest import MakeContext
from tests.queued import queued
from worker.engine.config import EngineConfig
from worker.engine.loop import Engine
from worker.llama.model import Model
from worker.llama.runner import LlamaRunner
from worker.wire.jobs import JobKey, Sampling, SlotId, StepDone, TokenId
from worker.wire.messages import Outbound

pytestmark = pytest.mark.model

N_CELLS, N_UBATCH, N_TOKENS, PATIENCE_S = 1024, 512, 6, 60.0
GREEDY = Sampling(seed=0, temperature=0.0, ignore_eos=True, logprobs=0)
LONG = [TokenId(100 + (i * i) % 20_000) for i in range(600)]
SHORT = [TokenId(50 + i) for i in range(30)]


class Site:
    """An engine over the real library. `is_running` is set while a step may run."""

    def __init__(self, runner: LlamaRunner) -> None:
        self.runner = runner
        self.is_running = threading.Event()
        self.answers: dict[JobKey, list[TokenId]] = {}
        config = EngineConfig(
            n_slots=2,
            n_cells=N_CELLS,
            context_length=N_CELLS,
            chunk=32,
            widest_step=N_UBATCH,
            retained_slots=(SlotId(2),),
        )
        # No time goes by, so that every step still takes as long as it is expected to.
        self.engine = Engine(runner, config, emit=self._hear, clock=lambda: 0.0, while_running=self._while_running)

    @contextmanager
    def _while_running(self) -> Iterator[None]:
        self.is_running.set()
        yield

    def _hear(self, message: Outbound) -> None:
        if isinstance(message, StepDone):
            for delta in message.deltas:
                assert delta.logprob is not None
                self.answers.setdefault(delta.job, []).append(delta.logprob.token.id)

    def submit(self, job: int, prompt: list[TokenId]) -> None:
        self.engine.submit(queued(JobKey(job), prompt, N_TOKENS, GREEDY))

    def run(self) -> None:
        while not self.engine.is_idle:
            self.engine.step()

    def stop_for(self, prompt: list[TokenId]) -> bool:
        """Another thread's work."""
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
    for job, prompt in enumerate((LONG, SHORT)):
        alone.submit(job, prompt)
        alone.run()
    disturbed.submit(0, LONG)
    with ThreadPoolExecutor(1) as intake:
        is_stopped = intake.submit(disturbed.stop_for, SHORT)
        disturbed.engine.step()
        assert is_stopped.result(PATIENCE_S)
    long = disturbed.engine.scheduler.find(JobKey(0))
    assert long is not None
    assert long.n_computed == disturbed.runner.kv.n_cells_used == 0, "nothing of the step is left"
    disturbed.submit(1, SHORT)
    disturbed.run()
    assert next(iter(disturbed.answers)) == JobKey(1), "who came is first"
    assert disturbed.answers == {job: alone.answers[job] for job in (JobKey(0), JobKey(1))}
