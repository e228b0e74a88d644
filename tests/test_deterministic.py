"""An answer has the same bits alone and among others that come and go, with --deterministic and any weights' type;
and without it where /health tells so.

Over the engine and llama.cpp, as the engine process puts them together, on small models of our own making.
"""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from parity.llama.quantise import quantise
from tests.llama.random_models import write_wide
from tests.queued import queued
from tests.server.front.rehearsal import CONFIG
from tests.test_models import command
from worker.config.engine_settings import BatchInvariant
from worker.engine.config import EngineConfig
from worker.engine.loop import Engine
from worker.errors import ModelLoadFailed
from worker.llama.invariance import has_own_products
from worker.llama.runner import LlamaRunner
from worker.models.loading.load import load_model
from worker.wire.jobs import JobKey, Logprob, SamplingParams, StepDone, TokenId
from worker.wire.messages import Outbound

pytestmark = pytest.mark.model

N_JOBS = 8
N_TOKENS = 24
LENGTHS = (70, 5, 64, 131, 9, 40, 65, 3)
"""Prompts of less than a chunk of 64, of one, and of more."""

Answers = list[list[Logprob]]


class Worker:
    """An engine that is asked for log-probabilities."""

    def __init__(self, path: Path, *, is_deterministic: bool = False, batch_invariant: BatchInvariant = "auto") -> None:
        asked: dict[str, Any] = {"deterministic": is_deterministic, "batch_invariant": batch_invariant}
        sizes: dict[str, Any] = {"ctx_size": 2048, "parallel": N_JOBS, "cache_type_k": "auto"}
        config = replace(CONFIG, model_path=str(path), **asked, **sizes)
        model = load_model(config, lambda _: None)
        assert isinstance(model.runner, LlamaRunner)
        assert model.facts.determinism is not None
        self.found = model.facts.determinism
        self.is_kept = model.facts.batch_invariance.kept
        self.is_in_tiles = model.facts.amx.tile_bytes > 0
        self._runner = model.runner
        self._engine = Engine(model.runner, EngineConfig.of(config, model), emit=self._hear, clock=lambda: 0.0)
        self._told: dict[int, list[Logprob]] = {}
        chance = random.Random(5)
        self._prompts = [[TokenId(chance.randrange(3, 259)) for _ in range(length)] for length in LENGTHS]

    def _hear(self, message: Outbound) -> None:
        for delta in message.deltas if isinstance(message, StepDone) else ():
            assert delta.logprob is not None
            self._told[delta.job].append(delta.logprob)

    def ask(self, number: int) -> None:
        sampling = SamplingParams(seed=number, temperature=1.0, logprobs=5, ignore_eos=True)
        self._told[number] = []
        self._engine.submit(queued(JobKey(number), self._prompts[number], N_TOKENS + 3 * number, sampling))

    def alone(self, number: int) -> list[Logprob]:
        self.ask(number)
        self._run_to_the_end()
        return self._told[number]

    def beside(self, numbers: list[int], n_steps_between: int) -> Answers:
        """One arrives every so many steps."""
        for number in numbers:
            self.ask(number)
            for _ in range(n_steps_between):
                self._engine.step()
        self._run_to_the_end()
        return [self._told[number] for number in numbers]

    def _run_to_the_end(self) -> None:
        while not self._engine.is_idle:
            self._engine.step()

    def close(self) -> None:
        self._runner.close()


@contextmanager
def worker_on(folder: Path, family: str, name: str, *, is_deterministic: bool) -> Iterator[Worker]:
    worker = Worker(write_wide(folder / "wide.gguf", family, name), is_deterministic=is_deterministic)
    try:
        yield worker
    finally:
        worker.close()


@pytest.mark.parametrize(
    ("family", "name"),
    [*(("llama", name) for name in ("Q4_K_M", "Q6_K", "Q4_0", "Q8_0", "F16")), ("gemma3", "Q4_K_M")],
)
def test_an_answer_is_the_same_alone_and_among_up_to_seven_others_that_come_and_go(
    tmp_path: Path, family: str, name: str
) -> None:
    with worker_on(tmp_path, family, name, is_deterministic=True) as worker:
        assert worker.found.is_same, worker.found.differences
        assert worker.found.tried is not None
        assert worker.found.tried.widths == tuple(range(1, N_JOBS + 1))
        alone = [worker.alone(number) for number in range(N_JOBS)]
        chance = random.Random(7)
        for n_jobs in range(2, N_JOBS + 1):
            numbers = chance.sample(range(N_JOBS), n_jobs)
            assert worker.beside(numbers, n_steps_between=n_jobs % 4) == [alone[number] for number in numbers]


@pytest.mark.parametrize(
    ("family", "name"),
    [
        *(("llama", name) for name in ("Q4_0", "Q4_1", "Q8_0", "Q4_K_M", "Q5_K_M", "Q6_K", "F16")),
        ("gemma3", "Q4_K_M"),
        ("gemma3", "Q8_0"),
    ],
)
def test_if_invariance_is_reported_200_requests_among_others_are_as_alone(
    tmp_path: Path, family: str, name: str
) -> None:
    """Prompts are cut as there is time, tokens are drafted, and nothing was asked for."""
    with worker_on(tmp_path, family, name, is_deterministic=False) as worker:
        assert worker.is_kept == (name != "F16" and has_own_products())
        if not worker.is_kept:
            return
        assert worker.found.is_same, worker.found.differences
        assert_200_requests_are_as_alone(worker)


@pytest.mark.models
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", ["Q4_0", "Q4_1", "Q8_0", "Q4_K_M", "Q5_K_M", "Q6_K", "IQ4_XS"])
def test_200_requests_to_a_model_that_people_run_are_as_alone_where_on_starts(tmp_path: Path, name: str) -> None:
    """Qwen2.5-Coder-1.5B in Q4_K_M, written again as each type."""
    source, path = Path(command("models", "pull", "qwen2.5-coder-1.5b-instruct")[0]), tmp_path / f"{name}.gguf"
    quantise(source, path, name, n_threads=2)
    if name == "IQ4_XS" and not is_in_tiles(path):
        # Only ggml's products of IQ4_XS depend on company, and in tiles of AMX not even they do.
        with pytest.raises(ModelLoadFailed, match="an answer would depend on other jobs"):
            Worker(path, batch_invariant="on")
        return
    worker = Worker(path, batch_invariant="on")
    try:
        assert_200_requests_are_as_alone(worker)
    finally:
        worker.close()


def is_in_tiles(path: Path) -> bool:
    worker = Worker(path)
    worker.close()
    return worker.is_in_tiles


def assert_200_requests_are_as_alone(worker: Worker) -> None:
    alone = [worker.alone(number) for number in range(N_JOBS)]
    chance = random.Random(11)
    n_left = 200
    while n_left > 0:
        numbers = chance.sample(range(N_JOBS), chance.randint(2, N_JOBS))
        found = worker.beside(numbers, n_steps_between=chance.randint(0, 3))
        assert found == [alone[number] for number in numbers]
        n_left -= len(numbers)


def test_without_the_flag_such_weights_answer_otherwise_among_others_and_the_rule_says_so(tmp_path: Path) -> None:
    """Else the test above could not fail. Weights of floats have products of ggml's own everywhere."""
    with worker_on(tmp_path, "llama", "F16", is_deterministic=False) as worker:
        numbers = list(range(N_JOBS))
        alone = [worker.alone(number) for number in numbers]
        assert worker.beside(numbers, n_steps_between=2) != alone
        assert not worker.found.is_same
        own = "products with F16 depend on the number of rows"
        assert not has_own_products() or worker.found.differences == (own,)
