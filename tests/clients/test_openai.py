"""The `openai` package against a worker on the real model; `make clients-test` has it in an environment of its own."""

from collections.abc import Callable, Iterator

import openai
import pytest

from tests.clients.pages import blocks
from tests.clients.programs.openai_package import TRIED, client_of
from tests.worker_process import WorkerProcess

pytestmark = [pytest.mark.process, pytest.mark.model]


@pytest.fixture
def client(worker: WorkerProcess) -> Iterator[openai.OpenAI]:
    with client_of(worker.url) as client:
        yield client


@pytest.mark.parametrize("tried", TRIED, ids=lambda tried: tried.__name__)
def test_the_openai_package_works(tried: Callable[[openai.OpenAI], None], client: openai.OpenAI) -> None:
    tried(client)


def test_the_lines_of_the_readme_work_when_pasted(worker: WorkerProcess, capsys: pytest.CaptureFixture[str]) -> None:
    (lines,) = blocks("README.md", "Use it from your code", "python")
    exec(compile(lines.replace("http://127.0.0.1:8080", worker.url), "README.md", "exec"), {})  # noqa: S102
    assert "Paris" in capsys.readouterr().out
