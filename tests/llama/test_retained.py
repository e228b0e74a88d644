"""Ended jobs' cells that stay in the memory, as on a GPU, here on the real library: found again, and never copied."""

from collections.abc import Sequence as Seq

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

N_SLOTS, N_RETAINED, N_CELLS, N_TOKENS = 3, 4, 512, 6
GREEDY = Sampling(seed=0, temperature=0.0, ignore_eos=True, logprobs=0)


class Served:
    """An engine over the real library, and which tokens its jobs have had."""

    def __init__(self, runner: LlamaRunner, *, max_dead_cells: int = 200) -> None:
        self.runner = runner
        self.answers: dict[JobKey, list[TokenId]] = {}
        self.n_cached: dict[JobKey, int] = {}
        config = EngineConfig(
            n_slots=N_SLOTS,
            n_cells=N_CELLS,
            context_length=N_CELLS,
            chunk=32,
            retained_slots=tuple(SlotId(N_SLOTS + i) for i in range(N_RETAINED)),
            max_dead_cells=max_dead_cells,
        )
        self.engine = Engine(runner, config, emit=self._hear, clock=lambda: 0.0)

    def _hear(self, message: Outbound) -> None:
        if isinstance(message, StepDone):
            self.n_cached |= {started.job: started.n_cached for started in message.started}
            for delta in message.deltas:
                assert delta.logprob is not None
                self.answers[delta.job].append(delta.logprob.token.id)
            assert not message.failed

    def run(self, *prompts: Seq[TokenId]) -> list[JobKey]:
        jobs = [JobKey(len(self.answers) + i) for i in range(len(prompts))]
        for job, prompt in zip(jobs, prompts, strict=True):
            self.answers[job] = []
            self.engine.submit(queued(job, list(prompt), N_TOKENS, GREEDY))
        while not self.engine.is_idle:
            self.engine.step()
        return jobs


@pytest.fixture
def served(shallow: Model, make_context: MakeContext) -> Served:
    context = make_context(shallow, n_ctx=N_CELLS, n_batch=128, n_ubatch=64, n_seq_max=N_SLOTS + N_RETAINED)
    return Served(LlamaRunner(shallow, context))


def prompt_of(family: int, n_tokens: int) -> list[TokenId]:
    return [TokenId(100 + (family * 7919 + i * i) % 20_000) for i in range(n_tokens)]


def test_conversations_that_alternate_go_on_where_they_were(served: Served) -> None:
    """Three of them, so that one slot for the last job's cells would not do."""
    turns = {family: prompt_of(family, 40) for family in range(3)}
    for _ in range(3):
        for family, tokens in turns.items():
            (job,) = served.run(tokens)
            if len(tokens) > 40:
                assert served.n_cached[job] >= len(tokens) - 3
            turns[family] = [*tokens, *served.answers[job], TokenId(7), TokenId(8)]
    assert served.engine.prefix_cache.index.n_tokens == 0, "nothing was copied"


def test_answers_are_those_of_a_memory_that_keeps_nothing(
    served: Served, shallow: Model, make_context: MakeContext
) -> None:
    context = make_context(shallow, n_ctx=N_CELLS, n_batch=128, n_ubatch=64, n_seq_max=N_SLOTS)
    prompts = [[*prompt_of(n % 2, 30), *prompt_of(10 + n, 5 + n)] for n in range(8)]
    jobs = [served.run(*prompts[at : at + 3]) for at in (0, 3, 6)]
    for job, prompt in zip((job for some in jobs for job in some), prompts, strict=True):
        context.kv.clear()
        alone = Served(LlamaRunner(shallow, context), max_dead_cells=0)
        assert served.answers[job] == alone.answers[alone.run(prompt)[0]]


def test_they_give_way_to_jobs_that_need_their_cells(served: Served) -> None:
    for family in range(6):
        served.run(prompt_of(family, 100))
    kv = served.runner.kv
    assert kv.n_cells_of([SlotId(N_SLOTS + i) for i in range(N_RETAINED)]) == kv.n_cells_used > 200
    served.run(prompt_of(9, 450), prompt_of(10, 20))
    assert all(len(answer) == N_TOKENS for answer in served.answers.values())
