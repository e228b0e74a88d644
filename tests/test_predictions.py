"""A text that an answer will repeat makes it faster and changes no token of it: on the default model, over the engine
and llama.cpp as the engine process puts them together.
"""

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.queued import put_away, queued
from tests.server.front.rehearsal import CONFIG
from tests.test_earlier_answers import CHEAP_ROWS, SLOW_S, Heard, heard
from worker.engine.backend import LoadedModel, Read
from worker.engine.config import EngineConfig
from worker.engine.loop import Engine
from worker.llama.runner import LlamaRunner
from worker.models.loading.load import load_model
from worker.wire.jobs import JobKey, SamplingParams
from worker.wire.messages import Outbound

pytestmark = [pytest.mark.model, pytest.mark.usefixtures("default_model")]

ASK = "<|im_start|>user\nTell a short story about a lighthouse.<|im_end|>\n<|im_start|>assistant\n"


@pytest.fixture(scope="module")
def model(any_model: Path) -> Iterator[LoadedModel]:
    sizes: dict[str, Any] = {"ctx_size": 1024, "parallel": 2, "cache_type_k": "auto", "prompt_lookup": "off"}
    model = load_model(replace(CONFIG, model_path=str(any_model), **sizes), lambda _: None)
    assert isinstance(model.runner, LlamaRunner)
    yield model
    model.runner.close()


def tokens_of(model: LoadedModel, text: str, *, is_prompt: bool) -> Read:
    read = model.prompts.read(text, add_special=is_prompt, parse_special=is_prompt)
    assert isinstance(read, Read)
    return read


def told(model: LoadedModel, sampling: SamplingParams, prediction: str) -> Heard:
    frames: list[Outbound] = []
    there = EngineConfig.of(replace(CONFIG, parallel=2), model)
    config = replace(there, itl_target_s=SLOW_S, row_costs=CHEAP_ROWS, history_bytes=0)
    engine = Engine(model.runner, config, emit=frames.append, clock=time.monotonic)
    predicted = tokens_of(model, prediction, is_prompt=False).tokens if prediction else ()
    engine.submit(queued(JobKey(1), tokens_of(model, ASK, is_prompt=True).tokens, 100, sampling, prediction=predicted))
    while not engine.is_idle:
        engine.step()
    put_away(engine)
    return heard(frames)


@pytest.mark.parametrize("temperature", [0.0, 0.5])
@pytest.mark.one_order
def test_an_answer_that_was_predicted_takes_fewer_steps_and_is_the_same(model: LoadedModel, temperature: float) -> None:
    sampling = SamplingParams(seed=3, temperature=temperature)
    plain = told(model, sampling, "")
    assert len(plain.text) > 200
    words = plain.text.split(" ")
    edited = " ".join([*words[:10], "entirely", "new", "words", *words[14:30], *words[34:]])
    for text, share in ((plain.text, 0.4), (edited, 0.7), ("Something else.", 1.1)):
        found = told(model, sampling, text)
        assert found.text == plain.text
        assert found.n_steps <= share * plain.n_steps
