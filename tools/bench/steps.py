"""`python -m tools.bench steps`: what a decode step costs beyond llama_decode, the engine's own work for each token.

Owns the run (the ordinary engine over a loaded model, frames encoded and thrown away, no sockets, nothing guessed), the
bounds and what is printed. Loads llama.cpp in this process. Never downloads.
"""

import gc
import time
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import numpy as np
import rich_click as click
from msgspec import structs

from tools.bench.measures import check
from worker.commands.places import present, where
from worker.commands.tables import print_table
from worker.config.engine import configure
from worker.config.engine_settings import Configure
from worker.config.settings import Settings
from worker.engine.config import EngineConfig
from worker.engine.loop import Engine
from worker.engine.sequence import Queued, State
from worker.llama.runner import LlamaRunner
from worker.models.loading.load import load_model
from worker.wire.encoding import encode_frame
from worker.wire.jobs import JobKey, SamplingParams, Submit, TokenId
from worker.wire.messages import Outbound

BOUNDS = {1: 0.03, 16: 0.015}
"""streams → the most that the rest of a step may take, as a share of llama_decode."""
_N_PROMPT, _N_TOKENS = 85, 96
"""The sizes of `llama-bench -d 85 -n 96`."""


@click.command("steps")
@click.option("--model", metavar="REF", help="A model that is here. [default: the catalogue's]")
@where
@click.option("--threads", type=click.IntRange(1, 512), default=2, show_default=True, help="CPU threads.")
@click.option("--rounds", type=click.IntRange(1, 1000), default=7, show_default=True, help="How often.")
def steps(model: str | None, models_dir: Path, catalog: Path | None, threads: int, rounds: int) -> None:
    """Time decode steps of 1 and 16 streams, and llama_decode within them.

    No sockets: what a client sees is in `load`. Exit 1 when the engine's own work takes more than 3 % of llama_decode
    at one stream, or 1.5 % at sixteen. Measure on an idle machine.
    """
    settings = Settings(threads=threads, parallel=max(BOUNDS), ctx_size=16_384)
    config = configure(settings, present(model, models_dir, catalog))
    found = [step_costs(config, n_streams, rounds) for n_streams in BOUNDS]
    print_table(
        [">streams", ">step", ">llama_decode", ">the rest", ">share", ">bound", ""], [costs.cells for costs in found]
    )
    check(bad_news(found))


@dataclass(frozen=True, slots=True)
class StepCosts:
    """Medians over the rounds, of steps in which all streams generate."""

    n_streams: int
    step_ms: float
    decode_ms: float
    """The part of these within llama_decode."""
    rest_us: float
    overhead: float
    """The rest, as a share of llama_decode."""

    @property
    def holds(self) -> bool:
        return self.overhead <= BOUNDS[self.n_streams]

    @property
    def cells(self) -> tuple[str, ...]:
        times = (f"{self.step_ms:.2f} ms", f"{self.decode_ms:.2f} ms", f"{self.rest_us:.0f} µs")
        shares = (f"{self.overhead:.1%}", f"{BOUNDS[self.n_streams]:.1%}")
        return (str(self.n_streams), *times, *shares, "ok" if self.holds else "MISSED")


def bad_news(found: list[StepCosts]) -> list[str]:
    """A sentence for each bound that does not hold."""
    return [
        f"a step of {costs.n_streams} streams takes {costs.overhead:.1%} more than llama_decode, "
        f"at most {BOUNDS[costs.n_streams]:.1%} is allowed"
        for costs in found
        if not costs.holds
    ]


def step_costs(config: Configure, n_streams: int, n_rounds: int) -> StepCosts:
    """Greedy streams of their own random tokens, side by side, `n_rounds` times. Raises: as loading does."""
    model = load_model(config, lambda _: None)
    runner = model.runner
    assert isinstance(runner, LlamaRunner)
    gc.freeze()  # as the engine's process does
    rules = replace(EngineConfig.of(config, model), row_costs=())
    try:
        rounds = [timed_round(rules, runner, n_streams, seed) for seed in range(n_rounds)]
    finally:
        runner.close()
    step_s, decode_s = median(step for step, _ in rounds), median(decode for _, decode in rounds)
    rest_s = median(step - decode for step, decode in rounds)
    return StepCosts(n_streams, 1e3 * step_s, 1e3 * decode_s, 1e6 * rest_s, rest_s / decode_s)


def timed_round(rules: EngineConfig, runner: LlamaRunner, n_streams: int, seed: int) -> tuple[float, float]:
    """Seconds of a step, and of its llama_decode, on average of one round of streams of their own random tokens."""
    engine = Engine(runner, rules, emit=encode, clock=time.monotonic)
    chance = np.random.default_rng(seed)
    sampling = SamplingParams(seed=0, temperature=0.0, ignore_eos=True)
    jobs = [JobKey(job) for job in range(n_streams)]
    for job in jobs:
        prompt = [TokenId(token) for token in chance.integers(0, runner.model.n_vocab, _N_PROMPT).tolist()]
        # None ends before the last has begun, however slowly the prompts are read beside it.
        n_tokens = n_streams * _N_PROMPT + _N_TOKENS
        submit = Submit(job=job, prompt=tuple(prompt), sampling=structs.replace(sampling, max_tokens=n_tokens))
        engine.submit(Queued(submit, prompt))
    scheduler = engine.scheduler
    while any(one.state is not State.DECODE for one in (*scheduler.waiting, *scheduler.running.values())):
        engine.step()
    decoding_s, began_s = runner.context.decoding_s, time.perf_counter()
    for _ in range(_N_TOKENS):
        engine.step()
    taken_s = time.perf_counter() - began_s
    decoding_s = runner.context.decoding_s - decoding_s
    for job in jobs:
        engine.cancel(job)
    while engine.prefix_cache.evict(()):
        pass
    return taken_s / _N_TOKENS, decoding_s / _N_TOKENS


def encode(frame: Outbound) -> None:
    """Spend what a frame costs this process; it goes nowhere."""
    encode_frame(frame)
