"""Constrained output on the default model: answers satisfy their schemas, and a constraint costs little.

The constraints and the engine are the real ones, in this process.
"""

import json
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import jsonschema
import pytest

from tests.on_cpu import loaded_on_cpu
from tests.queued import queued
from tests.random_schemas import Schema, random_schema
from worker.constraints.answer import AnswerConstraint
from worker.constraints.jobs import Constraints
from worker.engine.config import EngineConfig
from worker.engine.loop import Engine
from worker.engine.step import Slice, Step
from worker.llama.context import Context
from worker.llama.model import constraints_of
from worker.llama.runner import LlamaRunner
from worker.wire.jobs import Failed, Finished, JobKey, SamplingParams, SchemaText, SlotId, StepDone, Submit
from worker.wire.messages import Outbound, Violation

pytestmark = pytest.mark.model

N_SLOTS = 8
N_CELLS = 4096
MAX_TOKENS = 96
MIN_FINISHED = 0.95
MAX_STEP_RATIO = 1.2

PROMPT = "<|im_start|>user\nAnswer with a short JSON value.<|im_end|>\n<|im_start|>assistant\n"


@dataclass(slots=True)
class Answers:
    """The engine's reports about its jobs."""

    texts: dict[JobKey, str] = field(default_factory=dict)
    ends: dict[JobKey, Finished | Failed] = field(default_factory=dict)

    def take(self, frame: Outbound) -> None:
        if isinstance(frame, StepDone):
            for delta in frame.deltas:
                self.texts[delta.job] = self.texts.get(delta.job, "") + delta.text
            self.ends |= {end.job: end for end in frame.finished}
            self.ends |= {end.job: end for end in frame.failed}


@pytest.fixture(scope="module")
def runner(model_path: Path) -> Iterator[LlamaRunner]:
    with loaded_on_cpu(model_path) as model:
        context = Context(
            model, n_ctx=N_CELLS, n_batch=512, n_ubatch=512, n_seq_max=N_SLOTS, n_threads=1, n_threads_batch=1
        )
        yield LlamaRunner(model, context)


@pytest.fixture(scope="module")
def constraints(runner: LlamaRunner) -> Constraints:
    return constraints_of(runner.model)


def constraint_of(
    constraints: Constraints, *, json_schema: str | None = None, regex: str | None = None
) -> AnswerConstraint:
    schema = None if json_schema is None else SchemaText(json_schema)
    submit = Submit(
        job=JobKey(0),
        prompt=PROMPT,
        sampling=SamplingParams(seed=0, max_tokens=MAX_TOKENS, json_schema=schema, regex=regex),
    )
    constraint = constraints.constrain(submit)
    assert not isinstance(constraint, Violation), constraint.message
    assert isinstance(constraint, AnswerConstraint)
    return constraint


def answer_all(runner: LlamaRunner, constraints: Constraints, schemas: dict[int, Schema]) -> Answers:
    """Every schema as a job of its own, eight at a time; a job's seed is its schema's."""
    answers = Answers()
    config = EngineConfig(n_slots=N_SLOTS, n_cells=N_CELLS, context_length=N_CELLS, chunk=64)
    engine = Engine(runner, config, emit=answers.take, clock=time.monotonic)
    prompt = runner.model.tokenize(PROMPT)
    for seed, schema in schemas.items():
        constraint = constraint_of(constraints, json_schema=json.dumps(schema))
        sampling = SamplingParams(seed=seed, temperature=0.7)
        engine.submit(queued(JobKey(seed), prompt, MAX_TOKENS, sampling, constraint=constraint))
    while not engine.is_idle:
        engine.step()
    return answers


def check_answers(answers: Answers, schemas: dict[int, Schema]) -> None:
    n_finished = 0
    for seed, schema in schemas.items():
        end, text = answers.ends[JobKey(seed)], answers.texts[JobKey(seed)]
        assert isinstance(end, Finished), end
        if end.reason == "EOS":
            n_finished += 1
            jsonschema.validate(json.loads(text), schema, jsonschema.Draft202012Validator)
    assert n_finished >= MIN_FINISHED * len(schemas), f"{n_finished} of {len(schemas)} answers finished"


def test_a_hundred_schemas_are_satisfied(runner: LlamaRunner, constraints: Constraints) -> None:
    schemas = {seed: random_schema(seed) for seed in range(100)}
    check_answers(answer_all(runner, constraints, schemas), schemas)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_a_thousand_schemas_are_satisfied(runner: LlamaRunner, constraints: Constraints) -> None:
    schemas = {seed: random_schema(seed) for seed in range(1000, 2000)}
    check_answers(answer_all(runner, constraints, schemas), schemas)


# ── what it costs ────────────────────────────────────────────────────────────────────────────────


def step_s(runner: LlamaRunner, n_steps: int, constraint: AnswerConstraint | None) -> list[float]:
    """Seconds of each whole decode step of one greedy answer: decode, draw, go on in the constraint."""
    sampling = SamplingParams(seed=0, temperature=0.0)
    prompt = runner.model.tokenize("Once upon a time")
    slot, took_s = SlotId(0), []
    generated = [runner.run(Step("prefill", (Slice(slot, 0, prompt, sampling, (), constraint),)))[0].token]
    for _ in range(n_steps):
        began_s = time.perf_counter()
        if constraint is not None:
            constraint.accept(generated[-1])
        start = len(prompt) + len(generated) - 1
        piece = Slice(slot, start, generated[-1:], sampling, generated, constraint)
        [sampled] = runner.run(Step("decode", (piece,)))
        took_s.append(time.perf_counter() - began_s)
        assert not sampled.is_end
        generated.append(sampled.token)
    runner.kv.trim(slot, 0)
    return took_s


@pytest.mark.soak
def test_a_constraint_that_the_model_follows_costs_a_small_part_of_a_step(
    runner: LlamaRunner, constraints: Constraints
) -> None:
    """Medians of steps at the same positions, in turns, so that another process's moment falls on both."""
    plain, constrained = [], []
    for _ in range(8):
        plain += step_s(runner, 40, None)
        constraint = constraint_of(constraints, regex="(?s:.*)")
        constrained += step_s(runner, 40, constraint)
        constraint.close()
    with_s, without_s = statistics.median(constrained), statistics.median(plain)
    assert with_s <= MAX_STEP_RATIO * without_s, f"{1000 * with_s:.2f} ms against {1000 * without_s:.2f} ms"
