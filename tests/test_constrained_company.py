"""A constrained answer is the same alone, among others, with prompt lookup or log-probabilities, and without.

On two layers of the default model, over the engine and llama.cpp as the engine process puts them together.
"""

import json
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, get_args

import jsonschema
import msgspec
import pytest

from tests.queued import put_away, queued
from tests.server.front.rehearsal import CHEAP_ROWS, CONFIG
from worker.config.engine_settings import Scheduling
from worker.engine.backend import LoadedModel, Read
from worker.engine.config import EngineConfig
from worker.engine.loop import Engine
from worker.llama.runner import LlamaRunner
from worker.models.loading.load import load_model
from worker.wire.jobs import Failed, Finished, JobKey, SamplingParams, StepDone, Submit, TokenId
from worker.wire.messages import Outbound, Violation

pytestmark = pytest.mark.model

SLOW_S = 60.0
"""An inter-token target that no machine misses: prompts are read in few steps, and there are drafts only behind
these."""

PERSON = {
    "type": "object",
    "properties": {
        "first_name": {"type": "string", "maxLength": 12},
        "kind": {"enum": ["alpha", "beta"]},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 8}, "maxItems": 3},
    },
    "required": ["first_name", "kind", "age", "tags"],
    "additionalProperties": False,
}
JSON_REGEX = r'\[("(red|green|blue)", ){6,8}"[a-z]{3,6}"\]'
LARK = '%llguidance {}\nstart: ("- " LINE "\\n"){4}\nLINE: /[A-Za-z ]{1,24}/'
CONST = json.dumps({"const": {"answer": "all of it is forced", "by": "<|im_end|>"}})


Told = tuple[str, int, Finished | Failed]
"""An answer's text, how many tokens it has, and how it ended."""
NEVER_TOGETHER = 10_000
"""Steps: more than a job takes."""


@dataclass(frozen=True)
class Asked:
    field: str | None
    text: str = ""
    temperature: float = 0.0
    max_tokens: int = 64
    stop: tuple[str, ...] = ()

    def submit(self, job: JobKey, sampling: SamplingParams) -> Submit:
        constraint = {} if self.field is None else {self.field: self.text}
        return Submit(
            job=job, prompt="", sampling=msgspec.structs.replace(sampling, max_tokens=self.max_tokens, **constraint)
        )


JOBS = (
    Asked("json_schema", json.dumps(PERSON)),
    Asked("json_schema", json.dumps(PERSON), temperature=0.9),
    Asked("json_schema", json.dumps(PERSON), temperature=0.9, max_tokens=17),
    Asked("regex", JSON_REGEX, temperature=0.7),
    Asked("regex", JSON_REGEX, stop=('", ',)),
    Asked("grammar", LARK, temperature=1.0),
    Asked("json_schema", CONST),
    Asked(None, temperature=0.8, max_tokens=40),
)
PROMPT = (
    '<|im_start|>user\nDescribe people as JSON, such as {"first_name": "Ann", "kind": "beta", "age": 41, "tags": '
    '["red", "green", "blue", "red", "green"]}.<|im_end|>\n<|im_start|>assistant\n'
)


@dataclass
class Answers:
    texts: dict[JobKey, str] = field(default_factory=dict)
    n_tokens: dict[JobKey, int] = field(default_factory=dict)
    ends: dict[JobKey, Finished | Failed] = field(default_factory=dict)
    n_steps: int = 0
    n_accepted: int = 0
    n_paused: int = 0

    def take(self, message: Outbound) -> None:
        if not isinstance(message, StepDone):
            return
        self.n_steps += message.kind is not None
        self.n_paused += message.n_victims + message.n_preempted
        self.n_accepted += message.n_accepted
        for delta in message.deltas:
            self.texts[delta.job] = self.texts.get(delta.job, "") + delta.text
            self.n_tokens[delta.job] = self.n_tokens.get(delta.job, 0) + 1
        # How many tokens were drafted is no part of an answer.
        self.ends |= {end.job: msgspec.structs.replace(end, n_drafted=0, n_accepted=0) for end in message.finished}
        self.ends |= {end.job: end for end in message.failed}

    def told(self) -> list[Told]:
        return [(self.texts[job], self.n_tokens[job], self.ends[job]) for job in sorted(self.ends)]


@pytest.fixture(scope="module")
def model(shallow_model: Path) -> Iterator[LoadedModel]:
    sizes: dict[str, Any] = {"ctx_size": 2048, "parallel": len(JOBS), "cache_type_k": "auto", "prompt_lookup": "off"}
    model = load_model(replace(CONFIG, model_path=str(shallow_model), **sizes), lambda _: None)
    assert isinstance(model.runner, LlamaRunner)
    yield model
    model.runner.close()


@pytest.fixture(scope="module")
def alone(model: LoadedModel) -> list[Told]:
    return answers(model).told()


def answers(
    model: LoadedModel, *, between: int = NEVER_TOGETHER, logprobs: int | None = None, **changes: Any
) -> Answers:
    """All jobs, one arriving every so many steps. `changes`: fields of EngineConfig to change."""
    heard = Answers()
    there = EngineConfig.of(replace(CONFIG, parallel=len(JOBS)), model)
    engine = Engine(model.runner, replace(there, **changes), emit=heard.take, clock=time.monotonic)
    for number, asked in enumerate(JOBS):
        job, sampling = JobKey(number), SamplingParams(seed=number, temperature=asked.temperature, logprobs=logprobs)
        constraint = model.constrain(asked.submit(job, sampling))
        assert not isinstance(constraint, Violation), constraint
        # No two prompts begin alike: what is shared leaves room that nobody was promised.
        prompt = tokens_of(model, f"{number}. {PROMPT}")
        engine.submit(queued(job, prompt, asked.max_tokens, sampling, asked.stop, constraint=constraint))
        run(engine, between)
    run(engine, NEVER_TOGETHER)
    put_away(engine)
    return heard


def run(engine: Engine, n_most: int) -> None:
    for _ in range(n_most):
        if engine.is_idle:
            return
        engine.step()


def test_the_answers_are_what_was_asked_for(alone: list[Told]) -> None:
    """Else they could be the same and empty."""
    texts = [text for text, _, _ in alone]
    ends = [end for _, _, end in alone]
    assert all(isinstance(end, Finished) for end in ends), ends
    for text in texts[:2]:
        jsonschema.validate(json.loads(text), PERSON)
    assert alone[2][1] == JOBS[2].max_tokens
    assert re.fullmatch(JSON_REGEX, texts[3])
    assert re.fullmatch(r'\["(red|green|blue)', texts[4])
    assert isinstance(ends[4], Finished)
    assert ends[4].reason == "STOP_SEQUENCE"
    assert json.loads(texts[6]) == json.loads(CONST)["const"]


@pytest.mark.parametrize("between", [0, 1, 5])
@pytest.mark.one_order
def test_an_answer_is_the_same_among_others(model: LoadedModel, alone: list[Told], between: int) -> None:
    assert answers(model, between=between).told() == alone


@pytest.mark.one_order
def test_an_answer_is_the_same_with_its_log_probabilities(model: LoadedModel, alone: list[Told]) -> None:
    """A step for each token then, as the forced ones have one too."""
    assert answers(model, logprobs=0).told() == alone
    assert answers(model, between=2, logprobs=2).told() == alone


@pytest.mark.one_order
def test_an_answer_is_the_same_with_prompt_lookup(model: LoadedModel, alone: list[Told]) -> None:
    for between in (0, NEVER_TOGETHER):
        heard = answers(model, between=between, row_costs=CHEAP_ROWS, itl_target_s=SLOW_S)
        assert heard.n_accepted > 0
        assert heard.told() == alone


def tokens_of(model: LoadedModel, text: str) -> list[TokenId]:
    read = model.prompts.read(text)
    assert isinstance(read, Read)
    return read.tokens


@pytest.mark.parametrize("scheduling", get_args(Scheduling))
@pytest.mark.one_order
def test_an_answer_is_the_same_where_jobs_are_paused(
    model: LoadedModel, alone: list[Told], scheduling: Scheduling
) -> None:
    """There is room for two prompts and a little more than one answer."""
    n_prompt = len(tokens_of(model, PROMPT))
    sizes = {"n_cells": 2 * n_prompt + 46, "context_length": n_prompt + 80}
    heard = answers(model, between=0, scheduling=scheduling, **sizes)
    assert heard.n_paused > 0
    assert heard.told() == alone


def test_an_answer_is_the_same_in_steps_of_fixed_shapes(model: LoadedModel, alone: list[Told]) -> None:
    """Those of --deterministic; this model's bits do not depend on them."""
    assert answers(model, between=1, is_deterministic=True, chunk=64).told() == alone


def test_text_that_is_forced_as_a_whole_takes_no_step(model: LoadedModel) -> None:
    heard = Answers()
    engine = Engine(
        model.runner, EngineConfig.of(replace(CONFIG, parallel=1), model), emit=heard.take, clock=lambda: 0.0
    )
    job, sampling = JobKey(6), SamplingParams(seed=0)
    constraint = model.constrain(JOBS[6].submit(job, sampling))
    assert not isinstance(constraint, Violation)
    engine.submit(queued(job, tokens_of(model, PROMPT), 64, sampling, constraint=constraint))
    engine.step()
    assert engine.is_idle
    assert heard.n_steps == 0
    assert json.loads(heard.texts[job]) == json.loads(CONST)["const"]
