"""What a draft model gains by modelled time: real tokens of two models, and steps that take as long as a table says.

    .venv/bin/python scripts/draft_model_modelled.py MODEL.gguf DRAFT.gguf [THREADS] [cpu|gpu]

The engine decides as it would where steps took so long, so that the outcome depends on the texts of the two models and
on the table alone, not on this machine. Prints, for step costs of two processors and of an imagined GPU, and for draft
models whose steps take a part of what the model's take, for each kind of text the modelled time without the draft model
divided by the time with it, and the draft tokens that were right. Prompt lookup is off; the kinds come one after
another, and what was learned stays.
"""

import sys
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import cast

from draft_model_gain import CHAT, N_TOKENS, loaded, say

from worker.engine.backend import LoadedDraft, LoadedModel, Read, Runner, Sampled, Step
from worker.engine.config import EngineConfig
from worker.engine.loop import Engine
from worker.llama.runner import LlamaRunner
from worker.wire.messages import JobKey, Outbound, RowCosts, Sampling, StepDone

MACHINES: dict[str, RowCosts] = {
    "cpu": ((1, 7.5e-3), (2, 11e-3), (4, 19e-3), (8, 34e-3), (16, 66e-3)),
    "gpu": ((1, 5e-3), (2, 5.05e-3), (8, 5.2e-3), (32, 6e-3)),
}
PARTS = (0.7, 0.25, 0.1, 0.03)
_SUBJECTS = ("the sea", "bread", "a lighthouse", "winter")
_CLASSES = ("a bank account", "a stack", "a library", "a chess clock")
_QUESTIONS = tuple(CHAT.format(f"Tell me about {subject}.") for subject in _SUBJECTS)
TEXTS: dict[str, tuple[tuple[str, ...], float]] = {
    "questions": (_QUESTIONS, 0.0),
    "questions, temperature 0.8": (_QUESTIONS, 0.8),
    "classes in Python": (tuple(CHAT.format(f"Write {one} as a Python class.") for one in _CLASSES), 0.0),
}


@dataclass
class Clock:
    now_s: float = 0.0


class Timed:
    """A Runner whose steps take modelled time."""

    def __init__(self, runner: Runner, clock: Clock, costs: RowCosts) -> None:
        self._runner, self._clock, self._costs = runner, clock, costs

    def run(self, step: Step) -> list[Sampled]:
        self._clock.now_s += _cost(self._costs, step.n_tokens)
        return self._runner.run(step)

    def __getattr__(self, name: str) -> object:
        return getattr(self._runner, name)


def _cost(costs: RowCosts, n_rows: int) -> float:
    for (n, n_s), (m, m_s) in pairwise(costs):
        if n_rows <= m:
            return n_s + (m_s - n_s) * (n_rows - n) / (m - n)
    return costs[-1][1] * n_rows / costs[-1][0]


def main(model_path: str, draft_path: str, threads: str = "0", machines: str = "cpu,gpu") -> None:
    model, config = loaded(model_path, draft_path, int(threads), n_cells=2048)
    for machine, costs in ((machine, MACHINES[machine]) for machine in machines.split(",")):
        for n_at_once in (1, 4):
            plain = run(model, config, costs, None, n_at_once)
            for part in PARTS:
                drafting = run(model, config, costs, part, n_at_once)
                gains = [f"{one.seconds / other.seconds:.2f}" for one, other in zip(plain, drafting, strict=True)]
                right = [f"{other.n_accepted} of {other.n_drafted}" for other in drafting]
                is_same = [one.text == other.text for one, other in zip(plain, drafting, strict=True)]
                say(f"| {machine}, {n_at_once} at once, {part} | {' | '.join(gains)} | {'; '.join(right)} | {is_same}")


@dataclass
class Outcome:
    seconds: float
    text: str
    n_drafted: int
    n_accepted: int


def run(model: LoadedModel, config: EngineConfig, costs: RowCosts, part: float | None, n_at_once: int) -> list[Outcome]:
    """What the kinds of text take, by modelled time. `part`: of the draft model's steps; None: without it."""
    clock, told = Clock(), list[StepDone]()

    def hear(frame: Outbound) -> None:
        if isinstance(frame, StepDone):
            told.append(frame)

    draft = None
    if part is not None:
        runner = cast(LlamaRunner, cast(LoadedDraft, model.draft).runner)
        runner.kv.clear()
        draft_costs = tuple((n, part * one) for n, one in costs)
        draft = LoadedDraft(cast(Runner, Timed(runner, clock, draft_costs)), draft_costs)
    engine = Engine(
        cast(Runner, Timed(model.runner, clock, costs)),
        replace(config, row_costs=costs),
        emit=hear,
        clock=lambda: clock.now_s,
        draft=draft,
        warn=say,
    )
    outcomes, n_jobs = [], 0
    for prompts, temperature in TEXTS.values():
        told.clear()
        began_s = clock.now_s
        for first in range(0, len(prompts), n_at_once):
            for number, prompt in enumerate(prompts[first : first + n_at_once], first):
                tokens = cast(Read, model.prompts.read(prompt)).tokens
                sampling = Sampling(seed=number, temperature=temperature, ignore_eos=True)
                engine.submit(JobKey(n_jobs), tokens, N_TOKENS, sampling)
                n_jobs += 1
            while not engine.is_idle:
                engine.step()
        deltas = sorted((delta for step in told for delta in step.deltas), key=lambda delta: delta.job)
        n_drafted, n_accepted = (sum(step.n_drafted for step in told), sum(step.n_accepted for step in told))
        text = "".join(delta.text for delta in deltas)
        outcomes.append(Outcome(clock.now_s - began_s, text, n_drafted, n_accepted))
    engine.put_away()
    return outcomes


if __name__ == "__main__":
    main(*sys.argv[1:])
