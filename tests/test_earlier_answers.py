"""Earlier answers make like answers faster, and change none: on the default model, over the engine
and llama.cpp as the engine process puts them together.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.queued import put_away, queued
from tests.server.front.rehearsal import CONFIG
from worker.engine.backend import LoadedModel, Read
from worker.engine.config import EngineConfig
from worker.engine.drafting.lookups import HISTORY_BYTES
from worker.engine.loop import Engine
from worker.llama.runner import LlamaRunner
from worker.models.loading.load import load_model
from worker.wire.jobs import JobKey, SamplingParams, StepDone
from worker.wire.messages import Outbound

pytestmark = pytest.mark.model

CHEAP_ROWS = ((1, 1.0), (32, 1.1))
"""(tokens in a step, seconds): drafts nearly always pay."""
SLOW_S = 60.0
"""An inter-token target that no machine misses: a prompt is read in one step."""
ASK = (
    "<|im_start|>user\nWrite the name, the city and the order as JSON: {name} from {city} orders a red bicycle."
    "<|im_end|>\n<|im_start|>assistant\n"
)
PEOPLE = (("Anna Meyer", "Berlin"), ("John Smith", "London"), ("Maria Garcia", "Madrid"), ("Peter Novak", "Prague"))


@dataclass(frozen=True)
class Heard:
    """The answer of one job."""

    text: str
    n_steps: int
    """The number of steps in which it generated."""


@pytest.fixture(scope="module")
def model(any_model: Path) -> Iterator[LoadedModel]:
    sizes: dict[str, Any] = {"ctx_size": 1024, "parallel": 2, "cache_type_k": "auto", "prompt_lookup": "off"}
    model = load_model(replace(CONFIG, model_path=str(any_model), **sizes), lambda _: None)
    assert isinstance(model.runner, LlamaRunner)
    yield model
    model.runner.close()


def one_after_another(model: LoadedModel, sampling: SamplingParams, **changes: Any) -> list[Heard]:
    """An answer for each person, on one engine. `changes`: fields of EngineConfig to change."""
    there = EngineConfig.of(replace(CONFIG, parallel=2), model)
    frames: list[Outbound] = []
    config = replace(there, itl_target_s=SLOW_S, **changes)
    engine = Engine(model.runner, config, emit=frames.append, clock=time.monotonic)
    told = []
    for number, (name, city) in enumerate(PEOPLE):
        read = model.prompts.read(ASK.format(name=name, city=city))
        assert isinstance(read, Read)
        engine.submit(queued(JobKey(number), read.tokens, 48, sampling))
        while not engine.is_idle:
            engine.step()
        told.append(heard(frames))
        frames.clear()
    put_away(engine)
    return told


def heard(frames: list[Outbound]) -> Heard:
    steps = [frame for frame in frames if isinstance(frame, StepDone)]
    text = "".join(delta.text for step in steps for delta in step.deltas)
    return Heard(text, sum(step.kind == "decode" for step in steps))


@pytest.mark.usefixtures("default_model")
def test_answers_like_earlier_ones_take_fewer_steps_and_are_the_same(model: LoadedModel) -> None:
    sampling = SamplingParams(seed=3, temperature=0.0)
    plain = one_after_another(model, sampling)
    own = one_after_another(model, sampling, row_costs=CHEAP_ROWS, history_bytes=0)
    both = one_after_another(model, sampling, row_costs=CHEAP_ROWS, history_bytes=HISTORY_BYTES)
    texts = [one.text for one in plain]
    assert all(len(text) > 40 for text in texts)
    assert [one.text for one in own] == texts
    assert [one.text for one in both] == texts
    assert both[0].n_steps == own[0].n_steps, "the first has nobody before it"
    assert sum(one.n_steps for one in both[1:]) < 0.8 * sum(one.n_steps for one in own[1:])
