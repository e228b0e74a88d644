"""The engine over llama.cpp, as the engine process puts them together, in the test's own process; and its reports."""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from msgspec.structs import replace as with_fields

from tests.on_cpu import loaded_on_cpu
from tests.queued import put_away
from tests.server.front.rehearsal import CONFIG
from worker.engine.backend import LoadedModel, Read
from worker.engine.config import EngineConfig
from worker.engine.loop import Engine
from worker.engine.sequence import Queued
from worker.llama.context import Context
from worker.llama.runner import LlamaRunner
from worker.models.loading.load import load_model
from worker.wire.jobs import Failed, Finished, JobKey, Logprob, StepDone, TokenId
from worker.wire.messages import Outbound

SLOW_S = 60.0
"""An inter-token target that no machine misses: prompts are read in few steps, and there are drafts only behind
these."""
NEVER_TOGETHER = 10_000
"""Steps: more than a job takes."""


@dataclass
class Told:
    """The answers of all jobs, by job, and counts over all steps."""

    texts: dict[JobKey, str] = field(default_factory=dict)
    n_tokens: dict[JobKey, int] = field(default_factory=dict)
    logprobs: dict[JobKey, list[Logprob]] = field(default_factory=dict)
    ends: dict[JobKey, Finished | Failed] = field(default_factory=dict)
    """The number of drafted tokens is no part of an answer, and is 0 here."""
    n_steps: int = 0
    n_decodes: int = 0
    n_drafted: int = 0
    n_accepted: int = 0
    n_paused: int = 0
    warnings: list[str] = field(default_factory=list)

    def hear(self, message: Outbound) -> None:
        if not isinstance(message, StepDone):
            return
        self.n_steps += message.kind is not None
        self.n_decodes += message.kind == "decode"
        self.n_paused += message.n_victims + message.n_preempted
        self.n_drafted += message.n_drafted
        self.n_accepted += message.n_accepted
        for delta in message.deltas:
            self.texts[delta.job] = self.texts.get(delta.job, "") + delta.text
            self.n_tokens[delta.job] = self.n_tokens.get(delta.job, 0) + 1
            self.logprobs.setdefault(delta.job, []).extend([] if delta.logprob is None else [delta.logprob])
        self.ends |= {end.job: with_fields(end, n_drafted=0, n_accepted=0) for end in message.finished}
        self.ends |= {end.job: end for end in message.failed}


def answered(
    runner: Any,
    config: EngineConfig,
    jobs: Iterable[Queued],
    *,
    between: int = 0,
    before_step: Callable[[Engine, Told], None] = lambda *_: None,
    **options: Any,
) -> Told:
    """Run the jobs, one arriving every `between` steps. `options` are those of Engine."""
    told = Told()
    engine = Engine(runner, config, emit=told.hear, clock=time.monotonic, warn=told.warnings.append, **options)

    def run(n_most: int) -> None:
        for _ in range(n_most):
            if not engine.is_idle:
                before_step(engine, told)
                engine.step()

    for job in jobs:
        engine.submit(job)
        run(between)
    while not engine.is_idle:
        run(1)
    put_away(engine)
    return told


@contextmanager
def served(path: Path, **changes: Any) -> Iterator[LoadedModel]:
    """The model, without prompt lookup, as the engine process loads it. `changes` are fields of Configure."""
    settings = {"cache_type_k": "auto", "prompt_lookup": "off", "ctx_size": 1024, **changes}
    model = load_model(replace(CONFIG, model_path=str(path), **settings), lambda _: None)
    assert isinstance(model.runner, LlamaRunner)
    try:
        yield model
    finally:
        model.runner.close()


@contextmanager
def plain_runner(path: Path, *, n_cells: int, n_slots: int, **options: Any) -> Iterator[LlamaRunner]:
    """A runner on the CPU with one thread, without what loading measures. `options` are those of Context."""
    sizes: dict[str, Any] = {"n_ctx": n_cells, "n_batch": 512, "n_ubatch": 512, "n_seq_max": n_slots}
    with loaded_on_cpu(path) as model:
        yield LlamaRunner(model, Context(model, **sizes, n_threads=1, n_threads_batch=1, **options))


def config_of(model: LoadedModel, n_slots: int, **changes: Any) -> EngineConfig:
    """The configuration of its engine. `changes` are fields of EngineConfig."""
    return replace(EngineConfig.of(replace(CONFIG, parallel=n_slots), model), **changes)


def tokens_of(model: LoadedModel, text: str, *, is_prompt: bool = True) -> list[TokenId]:
    read = model.prompts.read(text, add_special=is_prompt, parse_special=is_prompt)
    assert isinstance(read, Read)
    return read.tokens
