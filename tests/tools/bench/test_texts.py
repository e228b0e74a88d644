"""Repetitive prompts are continued with what they hold already, by the default model itself."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.worker_process import WorkerProcess
from tools.bench.texts import code_edit, quotation
from tools.bench.words import Prompts

pytestmark = [pytest.mark.process, pytest.mark.model]


@pytest.fixture(scope="module")
def worker(model_path: Path) -> Iterator[WorkerProcess]:
    with WorkerProcess("--model", str(model_path), "--port", "0", "--ctx-size", "2048", "--parallel", "1") as process:
        yield process.ready()


@pytest.mark.usefixtures("default_model")
def test_a_passage_is_quoted_to_the_letter(worker: WorkerProcess) -> None:
    prompt = quotation(Prompts(1))
    quoted = worker.text(prompt=prompt, max_tokens=120, ignore_eos=True)
    assert quoted in prompt
    assert len(quoted) > 300


@pytest.mark.usefixtures("default_model")
def test_a_file_is_repeated_line_by_line_but_for_its_edit(worker: WorkerProcess) -> None:
    prompt = code_edit(Prompts(2))
    _, *lines = worker.text(prompt=prompt, max_tokens=120, ignore_eos=True).splitlines()[:-1]
    known = [line for line in lines if line in prompt.splitlines()]
    assert len(lines) > 10
    assert len(known) / len(lines) > 0.7
