"""Models whose rows llama.cpp computes otherwise in company: where an answer differs, it was a near-tie, and which.

The default model's Q4_1 rows are the same bits in any company (tests/llama/test_cells.py). Other types have matrix
kernels of their own for several rows at once, so a greedy answer may turn where two tokens were almost equally likely.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from llama_cpp import llama_cpp as capi

from worker.engine.contract import JobKey, Logprob, Outbound, Sampling, StepDone
from worker.engine.loop import Engine
from worker.engine.rules import Rules
from worker.llama.context import Context
from worker.llama.devices import choose_device, devices
from worker.llama.model import Model
from worker.llama.runner import LlamaRunner

pytestmark = pytest.mark.model

FILE_TYPES = {"Q8_0": 7, "Q4_0": 2, "F16": 1}
"""llama_ftype."""

NEAR = 1.0
"""Nats between the two best tokens. Rounding moves a logit of this model by up to about half of that."""

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
    """Where an answer left the one alone: `margin` is what the token alone was ahead by, in nats."""

    prompt: str
    position: int
    alone: str
    beside: str
    margin: float


def quantised(default_model: Path, path: Path, file_type: int) -> Path:
    """The default model's weights as another type, by the library's own quantiser."""
    params = capi.llama_model_quantize_default_params()
    params.ftype, params.allow_requantize, params.nthread = file_type, True, 2
    assert capi.llama_model_quantize(str(default_model).encode(), str(path).encode(), params) == 0
    return path


def answers(runner: LlamaRunner, prompts: Sequence[str]) -> list[list[Logprob]]:
    """What each prompt's tokens were, all prompts at once."""
    told: list[list[Logprob]] = [[] for _ in prompts]

    def hear(message: Outbound) -> None:
        for delta in message.deltas if isinstance(message, StepDone) else ():
            assert delta.logprob is not None
            told[delta.job].append(delta.logprob)

    rules = Rules(n_slots=len(PROMPTS), n_cells=1024, context_length=1024, chunk=32)
    engine = Engine(runner, rules, emit=hear, clock=lambda: 0.0)
    greedy = Sampling(seed=0, temperature=0.0, logprobs=2, ignore_eos=True)
    for key, prompt in enumerate(prompts):
        engine.submit(JobKey(key), runner.model.tokenize(prompt), N_TOKENS, greedy)
    while not engine.is_idle:
        engine.step()
    return told


def first_turn(prompt: str, alone: list[Logprob], beside: list[Logprob]) -> Turn | None:
    for position, (one, other) in enumerate(zip(alone, beside, strict=True)):
        if one.token.id != other.token.id:
            by_id = {top.id: top.logprob for top in one.top}
            margin = one.token.logprob - by_id.get(other.token.id, float("-inf"))
            return Turn(prompt, position, one.token.text, other.token.text, margin)
    return None


@pytest.mark.parametrize("name", ["default", *FILE_TYPES])
def test_an_answer_that_turns_beside_others_turns_at_a_near_tie(
    default_model: Path, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = default_model if name == "default" else quantised(default_model, tmp_path / "q.gguf", FILE_TYPES[name])
    with Model.load(path, device=choose_device("cpu", devices()), n_gpu_layers=0, on_progress=lambda _: None) as model:
        runner = LlamaRunner(
            model,
            Context(
                model,
                n_ctx=1024,
                n_batch=512,
                n_ubatch=512,
                n_seq_max=len(PROMPTS),
                n_threads=2,
                n_threads_batch=2,
                type_k="bf16",
            ),
        )
        alone = [answers(runner, [prompt])[0] for prompt in PROMPTS]
        beside = answers(runner, PROMPTS)
    turns = [first_turn(*story) for story in zip(PROMPTS, alone, beside, strict=True)]
    found = [turn for turn in turns if turn is not None]
    with capsys.disabled():
        for turn in found:
            sys.stdout.write(f"\n{name}: {turn}\n")
    assert all(turn.margin < NEAR for turn in found), found
    assert name != "default" or not found
