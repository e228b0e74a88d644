"""Real coding agents with a small trained model: it calls their tools by itself, and they answer with the results.

`make models-test` runs this. The model's last words are its own affair, and so is the number of calls: it draws, and a
try may go wrong.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agents.test_programs import ASKED, AT_WORK, NOTE, said
from tests.worker_process import WorkerProcess

pytestmark = [pytest.mark.models, pytest.mark.model, pytest.mark.process, pytest.mark.timeout(7200)]

MODEL = "qwen2.5-coder-1.5b-instruct"
N_TRIES = 3
MOST_S = 1500
"""Instructions of several thousand tokens take minutes on a CPU."""

CALLED = {
    "pi, chat completions": rf'"role":"toolResult"[^\n]*{NOTE}',
    "opencode": r"→[^\n]*Read note\.txt",
}
"""A pattern of what each agent shows of the call that the model wrote, and of its result."""


@pytest.fixture(scope="module")
def worker() -> Iterator[WorkerProcess]:
    with WorkerProcess("--model", MODEL, "--port", "0", "--parallel", "2") as worker:
        yield worker.ready()


@pytest.mark.parametrize("name", CALLED)
def test_the_model_calls_an_agents_tool_and_goes_on_with_the_result(
    name: str, worker: WorkerProcess, tmp_path: Path
) -> None:
    tries = []
    for number in range(N_TRIES):
        home = tmp_path / str(number)
        home.mkdir()
        tries.append(said(AT_WORK[name], worker, home, ASKED, timeout_s=MOST_S))
        if re.search(CALLED[name], tries[-1].text) and tries[-1].code == 0:
            return
    raise AssertionError(tries)
