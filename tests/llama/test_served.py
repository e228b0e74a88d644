"""The engine over the real library: cells of finished jobs stay, as on a GPU, and a step is stopped for a newcomer."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace

import pytest

from tests.llama.conftest import MakeContext
from tests.llama.served import Served
from worker.engine.config import EngineConfig
from worker.llama.model import Model
from worker.llama.runner import LlamaRunner
from worker.wire.jobs import JobKey, SlotId, TokenId

pytestmark = pytest.mark.model

N_TOKENS = 6

# ── cells that stay ──────────────────────────────────────────────────────────────────────────────

N_SLOTS, N_RETAINED, N_CELLS = 3, 4, 512
RETAINED = tuple(SlotId(N_SLOTS + i) for i in range(N_RETAINED))
CONFIG = EngineConfig(
    n_slots=N_SLOTS, n_cells=N_CELLS, context_length=N_CELLS, chunk=32, retained_slots=RETAINED, max_dead_cells=200
)
SIZES = {"n_ctx": N_CELLS, "n_batch": 128, "n_ubatch": 64}


@pytest.fixture
def served(shallow: Model, make_context: MakeContext) -> Served:
    context = make_context(shallow, **SIZES, n_seq_max=N_SLOTS + N_RETAINED)
    return Served(LlamaRunner(shallow, context), CONFIG)


def prompt_of(family: int, n_tokens: int) -> list[TokenId]:
    return [TokenId(100 + (family * 7919 + i * i) % 20_000) for i in range(n_tokens)]


def test_conversations_that_alternate_go_on_where_they_were(served: Served) -> None:
    """Three of them, so that one slot for the last job's cells would not do."""
    turns = {family: prompt_of(family, 40) for family in range(3)}
    for _ in range(3):
        for family, tokens in turns.items():
            (answer,) = served.ask([tokens], N_TOKENS)
            if len(tokens) > 40:
                assert list(served.n_cached.values())[-1] >= len(tokens) - 3
            turns[family] = [*tokens, *answer, TokenId(7), TokenId(8)]
    assert served.engine.prefix_cache.index.n_tokens == 0, "nothing was copied"


def test_answers_are_those_of_a_memory_that_keeps_nothing(
    served: Served, shallow: Model, make_context: MakeContext
) -> None:
    context = make_context(shallow, **SIZES, n_seq_max=N_SLOTS)
    prompts = [[*prompt_of(n % 2, 30), *prompt_of(10 + n, 5 + n)] for n in range(8)]
    answers = [answer for at in (0, 3, 6) for answer in served.ask(prompts[at : at + 3], N_TOKENS)]
    for answer, prompt in zip(answers, prompts, strict=True):
        context.kv.clear()
        alone = Served(LlamaRunner(shallow, context), replace(CONFIG, max_dead_cells=0))
        assert [answer] == alone.ask([prompt], N_TOKENS)


def test_they_are_evicted_for_jobs_that_need_their_cells(served: Served) -> None:
    for family in range(6):
        assert [len(answer) for answer in served.ask([prompt_of(family, 100)], N_TOKENS)] == [N_TOKENS]
    kv = served.runner.kv
    assert kv.n_cells_of(RETAINED) == kv.n_cells_used > 200
    assert [len(answer) for answer in served.ask([prompt_of(9, 450), prompt_of(10, 20)], N_TOKENS)] == [N_TOKENS] * 2


# ── a newcomer ───────────────────────────────────────────────────────────────────────────────────

N_UBATCH, PATIENCE_S = 512, 60.0
LONG = [TokenId(100 + (i * i) % 20_000) for i in range(600)]
SHORT = [TokenId(50 + i) for i in range(30)]


def test_a_micro_batch_is_stopped_for_a_short_prompt_and_read_again(model: Model, make_context: MakeContext) -> None:
    """Both answers are what they are without."""
    is_running = threading.Event()

    @contextmanager
    def while_running() -> Iterator[None]:
        is_running.set()
        yield

    def site() -> Served:
        context = make_context(model, n_ctx=1024, n_batch=N_UBATCH, n_ubatch=N_UBATCH, n_seq_max=3)
        config = replace(CONFIG, n_slots=2, n_cells=1024, context_length=1024, widest_step=N_UBATCH)
        config = replace(config, retained_slots=(SlotId(2),), max_dead_cells=0)
        return Served(LlamaRunner(model, context), config, while_running=while_running)

    alone, disturbed = site(), site()

    def stop_for_short() -> bool:
        """Act as another thread."""
        assert is_running.wait(PATIENCE_S)
        if is_in_the_way := disturbed.engine.is_in_the_way(SHORT):
            disturbed.runner.request_abort()
        return is_in_the_way

    for prompt in (LONG, SHORT):
        alone.submit(prompt, N_TOKENS)
        alone.run()
    is_running.clear()
    disturbed.submit(LONG, N_TOKENS)
    with ThreadPoolExecutor(1) as intake:
        is_stopped = intake.submit(stop_for_short)
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
