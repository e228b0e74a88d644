"""Finished jobs' cells stay in the memory, as on a GPU, here on the real library: found again, and never copied."""

from dataclasses import replace

import pytest

from tests.llama.conftest import MakeContext
from tests.llama.served import Served
from worker.engine.config import EngineConfig
from worker.llama.model import Model
from worker.llama.runner import LlamaRunner
from worker.wire.jobs import SlotId, TokenId

pytestmark = pytest.mark.model

N_SLOTS, N_RETAINED, N_CELLS, N_TOKENS = 3, 4, 512, 6
CONFIG = EngineConfig(
    n_slots=N_SLOTS,
    n_cells=N_CELLS,
    context_length=N_CELLS,
    chunk=32,
    retained_slots=tuple(SlotId(N_SLOTS + i) for i in range(N_RETAINED)),
    max_dead_cells=200,
)


def played(served: Served, *prompts: list[TokenId]) -> list[list[TokenId]]:
    """The answers of jobs that run at once."""
    jobs = [served.submit(prompt, N_TOKENS) for prompt in prompts]
    served.run()
    return [served.answer(job) for job in jobs]


@pytest.fixture
def served(shallow: Model, make_context: MakeContext) -> Served:
    context = make_context(shallow, n_ctx=N_CELLS, n_batch=128, n_ubatch=64, n_seq_max=N_SLOTS + N_RETAINED)
    return Served(LlamaRunner(shallow, context), CONFIG)


def prompt_of(family: int, n_tokens: int) -> list[TokenId]:
    return [TokenId(100 + (family * 7919 + i * i) % 20_000) for i in range(n_tokens)]


def test_conversations_that_alternate_go_on_where_they_were(served: Served) -> None:
    """Three of them, so that one slot for the last job's cells would not do."""
    turns = {family: prompt_of(family, 40) for family in range(3)}
    for _ in range(3):
        for family, tokens in turns.items():
            (answer,) = played(served, tokens)
            if len(tokens) > 40:
                assert list(served.n_cached.values())[-1] >= len(tokens) - 3
            turns[family] = [*tokens, *answer, TokenId(7), TokenId(8)]
    assert served.engine.prefix_cache.index.n_tokens == 0, "nothing was copied"


def test_answers_are_those_of_a_memory_that_keeps_nothing(
    served: Served, shallow: Model, make_context: MakeContext
) -> None:
    context = make_context(shallow, n_ctx=N_CELLS, n_batch=128, n_ubatch=64, n_seq_max=N_SLOTS)
    prompts = [[*prompt_of(n % 2, 30), *prompt_of(10 + n, 5 + n)] for n in range(8)]
    answers = [answer for at in (0, 3, 6) for answer in played(served, *prompts[at : at + 3])]
    for answer, prompt in zip(answers, prompts, strict=True):
        context.kv.clear()
        alone = Served(LlamaRunner(shallow, context), replace(CONFIG, max_dead_cells=0))
        assert [answer] == played(alone, prompt)


def test_they_are_evicted_for_jobs_that_need_their_cells(served: Served) -> None:
    for family in range(6):
        assert [len(answer) for answer in played(served, prompt_of(family, 100))] == [N_TOKENS]
    kv = served.runner.kv
    assert kv.n_cells_of([SlotId(N_SLOTS + i) for i in range(N_RETAINED)]) == kv.n_cells_used > 200
    assert [len(answer) for answer in played(served, prompt_of(9, 450), prompt_of(10, 20))] == [N_TOKENS] * 2
