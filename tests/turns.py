"""The place at which a greedy answer leaves another of the same prompt, and how near a tie that was.

Two ways of computing the same weights round in two ways, so an answer may turn where two tokens were almost equally
likely, and nowhere else. Knows neither models nor why two answers are compared.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from tests.queued import queued
from tests.real_engine import answered
from worker.engine.config import EngineConfig
from worker.llama.runner import LlamaRunner
from worker.wire.jobs import MAX_LOGPROBS, JobKey, Logprob, SamplingParams

NEAR = 1.0
"""Nats between the two best tokens. Rounding moves a logit of the default model by up to about half of that."""

N_CELLS = 1024
N_TOKENS = 24
PROMPTS = (
    "Once upon a time",
    "The capital of France is",
    "A recipe for bread: first",
    "def quicksort(items):",
    "In the year 2050, people",
    "The old man said",
)


@dataclass(frozen=True)
class Turn:
    """`margin` is what the token of `one` was ahead of the other's by, in nats, by `one`'s own account; infinite where
    the other's is not among the best that are told.
    """

    prompt: str
    position: int
    one: str
    other: str
    margin: float


def answers(runner: LlamaRunner, prompts: Sequence[str]) -> list[list[Logprob]]:
    """The tokens of each prompt's answer, all prompts at once."""
    config = EngineConfig(n_slots=len(PROMPTS), n_cells=N_CELLS, context_length=N_CELLS, chunk=32)
    greedy = SamplingParams(seed=0, temperature=0.0, logprobs=MAX_LOGPROBS, ignore_eos=True)
    asked = [queued(JobKey(key), runner.model.tokenize(prompt), N_TOKENS, greedy) for key, prompt in enumerate(prompts)]
    told = answered(runner, config, asked)
    return [told.logprobs[JobKey(key)] for key in range(len(prompts))]


def first_turns(ones: Sequence[list[Logprob]], others: Sequence[list[Logprob]]) -> list[Turn]:
    """The first of each prompt whose two answers part, in the order of PROMPTS."""
    turns = (_first_turn(*story) for story in zip(PROMPTS, ones, others, strict=True))
    return [turn for turn in turns if turn is not None]


def _first_turn(prompt: str, ones: list[Logprob], others: list[Logprob]) -> Turn | None:
    for position, (one, other) in enumerate(zip(ones, others, strict=True)):
        if one.token.id != other.token.id:
            by_id = {top.id: top.logprob for top in one.top}
            margin = one.token.logprob - by_id.get(other.token.id, float("-inf"))
            return Turn(prompt, position, one.token.text, other.token.text, margin)
    return None
