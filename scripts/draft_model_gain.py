"""Measures what a draft model gains or costs on this machine: the same answers with and without it, in one process.

    .venv/bin/python scripts/draft_model_gain.py MODEL.gguf DRAFT.gguf [THREADS] [ROUNDS] [JOBS] [DEPTH]

It prints what decode steps of both models cost, and then a line for each kind of text and each number of JOBS at once
(1,4). A line has the time without the draft model divided by the time with it, which is above 1 if the draft model
pays: the median of the rounds, the least and the greatest value. Then follow the share of draft tokens that were right,
the decode steps of both, and the number of rounds in which both texts were the same. Prompt lookup is off. A first
round, in which the engine learns, does not count. Times depend on what else runs; ratios do so less. With a DEPTH, the
draft model drafts that many tokens in every step, even if it is not expected to pay.
"""

import statistics
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

from worker.config.engine import configure
from worker.config.settings import Settings
from worker.engine.backend import LoadedDraft, LoadedModel, Read
from worker.engine.config import EngineConfig
from worker.engine.loop import Engine
from worker.engine.sequence import Queued
from worker.llama.runner import LlamaRunner
from worker.loading.load import load_model
from worker.wire.jobs import JobKey, Sampling, StepDone, Submit
from worker.wire.messages import Outbound

N_TOKENS = 64
CHAT = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
_CLASSES = ("a bank account", "a stack of plates", "a library of books", "a chess clock")
_SUBJECTS = ("the sea", "bread", "a lighthouse", "winter in the mountains")
_PLAIN = tuple(CHAT.format(f"Tell me about {subject}.") for subject in _SUBJECTS)
TEXTS: dict[str, tuple[tuple[str, ...], float]] = {
    "questions, greedy": (_PLAIN, 0.0),
    "questions, temperature 0.8": (_PLAIN, 0.8),
    "classes in Python, greedy": (tuple(CHAT.format(f"Write {one} as a Python class.") for one in _CLASSES), 0.0),
    "counting, greedy": (tuple(f"Count: {n}, {n + 1}, {n + 2}, {n + 3}, {n + 4}," for n in (1, 20, 50, 90)), 0.0),
}
"""Kind → prompts and temperature."""


@dataclass
class Side:
    """An engine with or without the draft model, and the steps that it reported in one round."""

    engine: Engine
    reports: list[StepDone]
    n_jobs: int = 0

    def seconds(self, model: LoadedModel, prompts: tuple[str, ...], temperature: float) -> float:
        self.reports.clear()
        began_s = time.perf_counter()
        for number, prompt in enumerate(prompts):
            read = cast(Read, model.prompts.read(prompt))
            sampling = Sampling(seed=number, temperature=temperature, ignore_eos=True)
            job = JobKey(self.n_jobs)
            submit = Submit(job=job, prompt=tuple(read.tokens), max_tokens=N_TOKENS, sampling=sampling)
            self.engine.submit(Queued(submit, read.tokens))
            self.n_jobs += 1
        while not self.engine.is_idle:
            self.engine.step()
        took_s = time.perf_counter() - began_s
        self.engine.put_away()
        return took_s

    @property
    def n_steps(self) -> int:
        return sum(step.kind == "decode" for step in self.reports)

    def texts(self) -> list[str]:
        by_job: dict[JobKey, str] = {}
        for delta in (delta for step in self.reports for delta in step.deltas):
            by_job[delta.job] = by_job.get(delta.job, "") + delta.text
        return [by_job[job] for job in sorted(by_job)]


def main(  # noqa: PLR0917 - the arguments of a command line
    model_path: str, draft_path: str, threads: str = "0", n_rounds: str = "5", n_jobs: str = "1,4", depth: str = ""
) -> None:
    model, config = loaded(model_path, draft_path, int(threads), n_cells=4096)
    draft = cast(LoadedDraft, model.draft)
    for name, costs in (("model", model.facts.row_costs), ("draft model", draft.row_costs)):
        say(f"a decode step of the {name}, ms: " + ", ".join(f"{n}: {1000 * one:.1f}" for n, one in costs))
    if depth:
        model = replace(model, draft=LoadedDraft(draft.runner, ((1, 1e-9), (32, 1e-9))))
        config = replace(config, row_costs=((1, 1.0), (32, 1.0001)), draft_max=int(depth))
    bench = Bench(model, config, int(n_rounds))
    for kind, (prompts, temperature) in TEXTS.items():
        for n_at_once in map(int, n_jobs.split(",")):
            bench.measure(f"{kind}, {n_at_once} at once", prompts[:n_at_once], temperature)


def loaded(model_path: str, draft_path: str, n_threads: int, n_cells: int) -> tuple[LoadedModel, EngineConfig]:
    """Load both models on the CPU with four slots, and make the configuration of an engine that uses them."""
    settings = Settings(
        model=model_path,
        draft_model=draft_path,
        device="cpu",
        threads=n_threads,
        ctx_size=n_cells,
        parallel=4,
        prompt_lookup="off",
        prefix_cache_mb="0",
    )
    asked = configure(settings, Path(model_path), None, Path(draft_path))
    model = load_model(asked, lambda _: None)
    return model, EngineConfig.of(asked, model)


@dataclass(frozen=True)
class Bench:
    model: LoadedModel
    config: EngineConfig
    n_rounds: int

    def measure(self, name: str, prompts: tuple[str, ...], temperature: float) -> None:
        plain, drafting = (side(self.model, self.config, has_draft=has_draft) for has_draft in (False, True))
        ratios, n_same = [], 0
        for number in range(self.n_rounds + 1):
            order = (plain, drafting) if number % 2 else (drafting, plain)
            seconds = {id(each): each.seconds(self.model, prompts, temperature) for each in order}
            if number:
                ratios.append(seconds[id(plain)] / seconds[id(drafting)])
                n_same += plain.texts() == drafting.texts()
        n_drafted = sum(step.n_drafted for step in drafting.reports)
        n_accepted = sum(step.n_accepted for step in drafting.reports)
        say(
            f"| {name} | {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f}) "
            f"| {n_accepted} of {n_drafted} | {drafting.n_steps} for {plain.n_steps} | {n_same} of {self.n_rounds} |"
        )


def side(model: LoadedModel, config: EngineConfig, *, has_draft: bool) -> Side:
    reports: list[StepDone] = []

    def keep(frame: Outbound) -> None:
        if isinstance(frame, StepDone):
            reports.append(frame)

    draft = model.draft if has_draft else None
    if draft is not None:
        cast(LlamaRunner, draft.runner).kv.clear()
    return Side(Engine(model.runner, config, emit=keep, clock=time.monotonic, draft=draft, warn=say), reports)


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
