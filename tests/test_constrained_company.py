"""A constrained answer is the same alone, among others, with prompt lookup or log-probabilities, and without.

On two layers of the default model, over the engine and llama.cpp as the engine process puts them together.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import jsonschema
import msgspec
import pytest

from tests.real_engine import NEVER_TOGETHER, SLOW_S, Told, answered, config_of, served, tokens_of
from tests.server.front.rehearsal import CHEAP_ROWS
from worker.config.engine_settings import Scheduling
from worker.engine.backend import LoadedModel
from worker.engine.sequence import Queued
from worker.wire.jobs import Failed, Finished, JobKey, SamplingParams, Submit
from worker.wire.messages import Violation

pytestmark = pytest.mark.model

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


Heard = tuple[str, int, Finished | Failed]
"""An answer's text, how many tokens it has, and how it ended."""


@dataclass(frozen=True)
class Asked:
    field: str | None
    text: str = ""
    temperature: float = 0.0
    max_tokens: int = 64
    stop: tuple[str, ...] = ()

    def queued(self, model: LoadedModel, job: JobKey, prompt: str, sampling: SamplingParams) -> Queued:
        limits = {"max_tokens": self.max_tokens, "stop": self.stop}
        constraint = {} if self.field is None else {self.field: self.text}
        submit = Submit(job=job, prompt="", sampling=msgspec.structs.replace(sampling, **limits, **constraint))
        enforced = model.constrain(submit)
        assert not isinstance(enforced, Violation), enforced
        return Queued(submit, tokens_of(model, prompt), enforced)


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


def heard_of(told: Told) -> list[Heard]:
    return [(told.texts[job], told.n_tokens[job], told.ends[job]) for job in sorted(told.ends)]


@pytest.fixture(scope="module")
def model(shallow_model: Path) -> Iterator[LoadedModel]:
    with served(shallow_model, ctx_size=2048, parallel=len(JOBS)) as model:
        yield model


@pytest.fixture(scope="module")
def alone(model: LoadedModel) -> list[Heard]:
    return heard_of(answers(model))


def answers(model: LoadedModel, *, between: int = NEVER_TOGETHER, logprobs: int | None = None, **changes: Any) -> Told:
    """All jobs, one arriving every so many steps. `changes`: fields of EngineConfig to change."""

    def jobs() -> Iterator[Queued]:
        for number, asked in enumerate(JOBS):
            sampling = SamplingParams(seed=number, temperature=asked.temperature, logprobs=logprobs)
            # No two prompts begin alike: what is shared leaves room that nobody was promised.
            yield asked.queued(model, JobKey(number), f"{number}. {PROMPT}", sampling)

    return answered(model.runner, config_of(model, len(JOBS), **changes), jobs(), between=between)


def test_the_answers_are_what_was_asked_for(alone: list[Heard]) -> None:
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
def test_an_answer_is_the_same_among_others(model: LoadedModel, alone: list[Heard], between: int) -> None:
    assert heard_of(answers(model, between=between)) == alone


@pytest.mark.one_order
def test_an_answer_is_the_same_with_its_log_probabilities(model: LoadedModel, alone: list[Heard]) -> None:
    """A step for each token then, as the forced ones have one too."""
    assert heard_of(answers(model, logprobs=0)) == alone
    assert heard_of(answers(model, between=2, logprobs=2)) == alone


@pytest.mark.one_order
def test_an_answer_is_the_same_with_prompt_lookup(model: LoadedModel, alone: list[Heard]) -> None:
    for between in (0, NEVER_TOGETHER):
        heard = answers(model, between=between, row_costs=CHEAP_ROWS, itl_target_s=SLOW_S)
        assert heard.n_accepted > 0
        assert heard_of(heard) == alone


@pytest.mark.parametrize("scheduling", get_args(Scheduling))
@pytest.mark.one_order
def test_an_answer_is_the_same_where_jobs_are_paused(
    model: LoadedModel, alone: list[Heard], scheduling: Scheduling
) -> None:
    """There is room for two prompts and a little more than one answer."""
    n_prompt = len(tokens_of(model, PROMPT))
    sizes = {"n_cells": 2 * n_prompt + 46, "context_length": n_prompt + 80}
    heard = answers(model, between=0, scheduling=scheduling, **sizes)
    assert heard.n_paused > 0
    assert heard_of(heard) == alone


def test_an_answer_is_the_same_in_steps_of_fixed_shapes(model: LoadedModel, alone: list[Heard]) -> None:
    """Those of --deterministic; this model's bits do not depend on them."""
    assert heard_of(answers(model, between=1, is_deterministic=True, chunk=64)) == alone


def test_text_that_is_forced_as_a_whole_takes_no_step(model: LoadedModel) -> None:
    job, sampling = JobKey(6), SamplingParams(seed=0)
    heard = answered(model.runner, config_of(model, 1), [JOBS[6].queued(model, job, PROMPT, sampling)])
    assert heard.n_steps == 0
    assert json.loads(heard.texts[job]) == json.loads(CONST)["const"]
