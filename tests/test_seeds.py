"""Seeds: the same request gives the same tokens alone, beside others, and after a restart; over real processes."""

from collections.abc import Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path

import pytest

from tests import proof
from tests.worker_process import Event, WorkerProcess, eventually, serve_default, serving, text_of

pytestmark = [pytest.mark.process, pytest.mark.model]

LONG = "The fisherman mended his nets while the gulls cried over the harbour and the tide went out. " * 16
"""More than 256 cells: from there on llama.cpp has another attention kernel for a row that is alone."""

HAIKU = "<|im_start|>user\nWrite a haiku about the sea.<|im_end|>\n<|im_start|>assistant\n"

REQUESTS: tuple[Event, ...] = (
    {"prompt": "Once upon a time", "max_tokens": 40, "temperature": 0.0},
    {"prompt": HAIKU, "max_tokens": 40, "temperature": 0.8, "seed": 0},
    {"prompt": LONG, "max_tokens": 24, "temperature": 0.8, "seed": 2**64 - 1, "top_p": 0.95},
    {"prompt": LONG[: len(LONG) // 2], "max_tokens": 24, "temperature": 0.0, "repetition_penalty": 1.1},
)

PEOPLE = {
    "type": "array",
    "items": {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "minimum": 0}},
        "required": ["name", "age"],
        "additionalProperties": False,
    },
    "minItems": 3,
    "maxItems": 3,
}
CONSTRAINED: Event = {"prompt": HAIKU, "max_tokens": 80, "temperature": 0.8, "seed": 3, "json_schema": PEOPLE}
"""Three objects alike: forced text, choices, and repetitions that prompt lookup guesses."""

FLAGS = ("--ctx-size", "2048")
NEIGHBOUR_WORDS = (5, 60, 200)


worker = serving("model_path", *FLAGS)


@pytest.fixture(scope="module")
def alone(worker: WorkerProcess) -> list[str]:
    return answers(worker)


def answers(worker: WorkerProcess) -> list[str]:
    return [worker.text(**request) for request in REQUESTS]


def test_the_same_seed_writes_the_same_haiku_and_another_seed_another(worker: WorkerProcess, model_path: Path) -> None:
    """It leaves a proof bundle, too."""
    requests = [{"prompt": HAIKU, "max_tokens": 32, "temperature": 0.8, "seed": seed} for seed in (42, 42, 43)]
    answers = [worker.run(**request) for request in requests]
    worker.wait_for("execute_end", job_id=answers[-1][0]["job_id"])
    proof.keep(proof.haiku(proof.Scene.of(worker, model_path), requests, answers))
    haiku = [text_of(events) for events in answers]
    assert haiku[0] == haiku[1]
    assert haiku[2] not in ("", haiku[0])


def answer_in_company(worker: WorkerProcess, request: Event, numbers: Iterator[int]) -> str:
    """Neighbours of every kind: reading a prompt, generating, ending, given up while they stream."""
    with ExitStack() as neighbours:
        for n_words in NEIGHBOUR_WORDS:
            other = {"prompt": f"{next(numbers)} " + "word " * n_words, "max_tokens": 100, "temperature": 1.0}
            stream = neighbours.enter_context(worker.stream(**other))
            stream.until("started")
        with worker.stream(**request) as stream:
            begun = stream.until("token")
            neighbours.pop_all().close()
            with worker.stream(prompt="Another one comes", max_tokens=8) as late:
                text = text_of([*begun, *stream])
                assert text_of(list(late))
    eventually(worker.is_idle)
    return text


def test_each_answer_among_others_that_come_and_go_is_the_one_alone(
    worker: WorkerProcess, alone: list[str], model_path: Path
) -> None:
    """It leaves a proof bundle, too."""
    numbers = count()
    beside = [answer_in_company(worker, request, numbers) for request in REQUESTS]
    config = {"flags": FLAGS, "neighbours": {"words": NEIGHBOUR_WORDS, "max_tokens": 100, "temperature": 1.0}}
    scene = proof.Scene.of(worker, model_path)
    proof.keep(proof.determinism(scene, config, REQUESTS, alone, beside))
    assert beside == alone


def test_a_constrained_answer_is_the_same_alone_among_others_and_without_prompt_lookup(
    worker: WorkerProcess, model_path: Path
) -> None:
    expected = worker.text(**CONSTRAINED)
    assert worker.text(**CONSTRAINED) == expected
    assert worker.text(**{**CONSTRAINED, "seed": 4}) != expected
    assert answer_in_company(worker, CONSTRAINED, count()) == expected
    with serve_default(model_path, *FLAGS, "--prompt-lookup", "off") as other:
        assert other.ready().text(**CONSTRAINED) == expected


def test_answers_are_the_same_after_an_engine_restart(worker: WorkerProcess, alone: list[str]) -> None:
    worker.revive()
    assert answers(worker) == alone


def test_answers_are_the_same_from_another_worker_of_another_shape(model_path: Path, alone: list[str]) -> None:
    with serve_default(model_path, "--ctx-size", "4096", "--parallel", "2", "--ubatch-size", "64") as other:
        assert answers(other.ready()) == alone


@pytest.mark.parametrize("seed", [0, 1, 2**53 + 1, 2**63, 12345678901234567890, 2**64 - 1])
def test_every_u64_is_an_ordinary_seed(worker: WorkerProcess, seed: int) -> None:
    events = worker.run(prompt=HAIKU, max_tokens=8, seed=seed)
    assert events[0]["seed"] == seed
    assert text_of(events) == worker.text(prompt=HAIKU, max_tokens=8, seed=seed)
