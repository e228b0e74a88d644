"""Texts that an answer repeats make it faster and change no token of it: its own, one that its client predicts, and
earlier answers. On the default model.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.queued import queued
from tests.real_engine import NEVER_TOGETHER, SLOW_S, Told, answered, config_of, served, tokens_of
from tests.server.front.rehearsal import CHEAP_ROWS
from worker.engine.backend import LoadedModel
from worker.engine.drafting.lookups import HISTORY_BYTES
from worker.engine.sequence import Queued
from worker.wire.jobs import JobKey, SamplingParams

pytestmark = [pytest.mark.model, pytest.mark.usefixtures("default_model")]

CODE = "def area(width, height):\n    return width * height\n\n\n"
TOLD = "<|im_start|>user\nTell a short story about a lighthouse.<|im_end|>\n<|im_start|>assistant\n"
ASK = (
    "<|im_start|>user\nWrite the name, the city and the order as JSON: {name} from {city} orders a red bicycle."
    "<|im_end|>\n<|im_start|>assistant\n"
)
PEOPLE = (("Anna Meyer", "Berlin"), ("John Smith", "London"), ("Maria Garcia", "Madrid"), ("Peter Novak", "Prague"))


@pytest.fixture(scope="module")
def model(any_model: Path) -> Iterator[LoadedModel]:
    with served(any_model, parallel=2) as model:
        yield model


def told(model: LoadedModel, *jobs: Queued, drafts: bool = True, **changes: Any) -> Told:
    """The answers, one after another, on one engine."""
    costs = {"row_costs": CHEAP_ROWS} if drafts else {}
    config = config_of(model, 2, itl_target_s=SLOW_S, **costs, **changes)
    return answered(model.runner, config, jobs, between=NEVER_TOGETHER)


@pytest.mark.parametrize(("temperature", "n_tokens"), [(0.0, 96), (0.5, 64)])
def test_an_answer_that_repeats_itself_is_drafted_from_its_own_text(
    model: LoadedModel, temperature: float, n_tokens: int
) -> None:
    sampling = SamplingParams(seed=7, temperature=temperature, ignore_eos=True)
    job = queued(JobKey(0), tokens_of(model, CODE * 3), n_tokens, sampling)
    plain, drafted = told(model, job, drafts=False), told(model, job)
    assert drafted.texts == plain.texts
    assert drafted.n_accepted > n_tokens / 4


@pytest.mark.parametrize("temperature", [0.0, 0.5])
@pytest.mark.one_order
def test_an_answer_that_was_predicted_takes_fewer_steps_and_is_the_same(model: LoadedModel, temperature: float) -> None:
    sampling = SamplingParams(seed=3, temperature=temperature)
    job = queued(JobKey(1), tokens_of(model, TOLD), 100, sampling)
    plain = told(model, job, history_bytes=0)
    text = plain.texts[JobKey(1)]
    assert len(text) > 200
    words = text.split(" ")
    edited = " ".join([*words[:10], "entirely", "new", "words", *words[14:30], *words[34:]])
    for prediction, share in ((text, 0.4), (edited, 0.7), ("Something else.", 1.1)):
        predicted = tokens_of(model, prediction, is_prompt=False)
        found = told(model, Queued(job.submit, job.prompt, None, predicted), history_bytes=0)
        assert found.texts == plain.texts
        assert found.n_decodes <= share * plain.n_decodes


def test_answers_like_earlier_ones_take_fewer_steps_and_are_the_same(model: LoadedModel) -> None:
    sampling = SamplingParams(seed=3, temperature=0.0)
    jobs = [
        queued(JobKey(number), tokens_of(model, ASK.format(name=name, city=city)), 48, sampling)
        for number, (name, city) in enumerate(PEOPLE)
    ]
    plain, own = told(model, *jobs, drafts=False), told(model, *jobs, history_bytes=0)
    both, first = (told(model, *each, history_bytes=HISTORY_BYTES) for each in (jobs, jobs[:1]))
    assert all(len(text) > 40 for text in plain.texts.values())
    assert own.texts == both.texts == plain.texts
    alone = told(model, *jobs[:1], history_bytes=0)
    assert first.n_decodes == alone.n_decodes, "the first has no answer before it"
    assert both.n_decodes - first.n_decodes < 0.8 * (own.n_decodes - alone.n_decodes)
