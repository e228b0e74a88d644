"""`python -m tools.bench account`: where the time of streams that begin together goes.

Owns the run (the ordinary engine over a loaded model, frames encoded and thrown away, no sockets) and the table. Loads
llama.cpp in this process. Never downloads.
"""

import gc
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import rich_click as click

from tools.bench.prompts import Prompts
from tools.bench.steps import encode
from worker.commands.places import present, where
from worker.commands.tables import print_table
from worker.config.settings import CACHE_TYPES, Settings
from worker.engine.backend import LoadedModel, Sampled, Step
from worker.engine.config import EngineConfig
from worker.engine.loop import Engine
from worker.front.client import configure
from worker.llama.load import load_model
from worker.llama.runner import LlamaRunner
from worker.wire.messages import Configure, JobKey, Sampling

_N_WORDS, _N_TOKENS = 64, 96
"""As the scenarios of `load`."""
_LEAST_ROWS = (32, 16, 12, 8, 4, 2, 1)
"""Decode steps are told in groups of those with at least so many rows."""


@click.command("account")
@click.option("--model", metavar="REF", help="A model that is here. [default: the catalogue's]")
@where
@click.option("--threads", type=click.IntRange(1, 512), default=2, show_default=True, help="CPU threads.")
@click.option("--streams", type=click.IntRange(1, 64), default=16, show_default=True, help="How many begin together.")
@click.option("--rounds", type=click.IntRange(1, 1000), default=3, show_default=True, help="How often.")
@click.option("--lookup/--no-lookup", default=True, show_default=True, help="Whether drafts are taken along.")
@click.option(
    "--cache-type-k",
    "types",
    type=click.Choice(("auto", *CACHE_TYPES)),
    multiple=True,
    default=("auto",),
    show_default=True,
    help="Type of the K cache; several are measured in turns.",
)
def account(
    *,
    model: str | None,
    models_dir: Path,
    catalog: Path | None,
    threads: int,
    streams: int,
    rounds: int,
    lookup: bool,
    types: tuple[str, ...],
) -> None:
    """Tell what each kind of step takes of a run in which streams begin together, and what is not llama_decode.

    64 words in, 96 tokens out, greedy. Measure on an idle machine.
    """
    settings = Settings(
        threads=threads, parallel=streams, ctx_size=16_384, prompt_lookup="on" if lookup else "off", prefix_cache_mb="0"
    )
    path = present(model, models_dir, catalog)
    benches = [Bench.of(configure(replace(settings, cache_type_k=cache_type), path)) for cache_type in types]
    gc.freeze()  # as the engine's process does
    try:
        runs = [[bench.run(streams, seed) for bench in benches] for seed in range(rounds + 1)][1:]
    finally:
        for bench in benches:
            bench.runner.close()
    for cache_type, found in zip(types, zip(*runs, strict=True), strict=True):
        print_table(
            [f"{cache_type}, {streams} streams", ">steps", ">tokens", ">seconds", ">ms a step", ">share"],
            rows_of(found),
        )


@dataclass(frozen=True, slots=True)
class Ran:
    """One step of an engine."""

    name: str
    n_tokens: int
    seconds: float
    decode_s: float
    """Of these, within llama_decode."""


@dataclass(frozen=True, slots=True)
class Run:
    """All steps of streams that began together, and how long they took from the first to the end of the last."""

    steps: tuple[Ran, ...]
    seconds: float


class Watched(LlamaRunner):
    """A runner that keeps what each step took."""

    def __init__(self, runner: LlamaRunner) -> None:
        super().__init__(runner.model, runner.context)
        self.ran: list[Ran] = []

    def run(self, step: Step) -> list[Sampled]:
        decoding_s, began_s = self.context.decoding_s, time.perf_counter()
        sampled = super().run(step)
        seconds = time.perf_counter() - began_s
        self.ran.append(Ran(name_of(step), step.n_tokens, seconds, self.context.decoding_s - decoding_s))
        return sampled


@dataclass(frozen=True, slots=True)
class Bench:
    """A loaded model, and what an engine over it is told."""

    config: Configure
    model: LoadedModel
    runner: LlamaRunner

    @classmethod
    def of(cls, config: Configure) -> "Bench":
        model = load_model(config, lambda _: None)
        assert isinstance(model.runner, LlamaRunner)
        return cls(config, model, model.runner)

    def run(self, n_streams: int, seed: int) -> Run:
        """Streams with prompts of the seed's own, in a new engine, from the first step to the last."""
        runner = Watched(self.runner)
        rules = EngineConfig.of(self.config, self.model)
        engine = Engine(runner, rules, emit=encode, clock=time.monotonic)
        prompts = Prompts(seed)
        sampling = Sampling(seed=0, temperature=0.0, ignore_eos=True)
        began_s = time.perf_counter()
        for job in range(n_streams):
            tokens = runner.model.tokenize(prompts.of(_N_WORDS))
            engine.submit(JobKey(job), tokens, _N_TOKENS, sampling)
        while not engine.is_idle:
            engine.step()
        seconds = time.perf_counter() - began_s
        engine.put_away()
        return Run(tuple(runner.ran), seconds)


def name_of(step: Step) -> str:
    """The group that a step is told in."""
    if step.kind == "prefill":
        return "prefill"
    n_least = next(n_rows for n_rows in _LEAST_ROWS if step.n_tokens >= n_rows)
    has_drafts = any(slice_.n_drafts for slice_ in step.slices)
    return f"decode, {n_least} rows or more" + (", drafts among them" if has_drafts else "")


def rows_of(runs: Iterable[Run]) -> list[tuple[str, ...]]:
    """The table's rows: medians over the runs of each group, of what is drawn, and of what is neither."""
    runs = list(runs)
    names = sorted({step.name for run in runs for step in run.steps}, key=_order)
    rows = [_row(name, runs, [[step for step in run.steps if step.name == name] for run in runs]) for name in names]
    drawing_s = median(sum(step.seconds - step.decode_s for step in run.steps) for run in runs)
    rest_s = median(run.seconds - sum(step.seconds for step in run.steps) for run in runs)
    whole_s = median(run.seconds for run in runs)
    for name, seconds in (("drawing", drawing_s), ("the engine's own", rest_s), ("all", whole_s)):
        rows.append((name, "", "", f"{seconds:.2f}", "", f"{seconds / whole_s:.1%}"))
    return rows


def _row(name: str, runs: list[Run], steps: list[list[Ran]]) -> tuple[str, ...]:
    n_steps = median(len(each) for each in steps)
    n_tokens = median(sum(step.n_tokens for step in each) for each in steps)
    decode_s = median(sum(step.decode_s for step in each) for each in steps)
    share = median(sum(s.decode_s for s in each) / run.seconds for each, run in zip(steps, runs, strict=True))
    each_ms = 1e3 * decode_s / max(n_steps, 1)
    return (name, f"{n_steps:g}", f"{n_tokens:g}", f"{decode_s:.2f}", f"{each_ms:.1f}", f"{share:.1%}")


def _order(name: str) -> tuple[bool, int, str]:
    digits = "".join(filter(str.isdigit, name))
    return name != "prefill", int(digits or 0), name
