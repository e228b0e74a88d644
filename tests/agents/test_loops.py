"""`make agents-test`: frameworks of agents run two tools in a loop, whole and streamed, over each protocol they speak.

The model follows the script of tests/scripted_engine.py: it calls one tool, calls the other with the first one's
result, and repeats the second one's result.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.agents.programs import Program, program
from tests.agents.test_programs import scripted_worker
from tests.clients.environments import environment
from tests.scripted_engine import DAYS, FIND, FIND_ARGUMENTS, FORECAST, SAYS
from tests.worker_process import WorkerProcess

pytestmark = [pytest.mark.agents, pytest.mark.process, pytest.mark.timeout(900)]

LOOPS = Path(__file__).parent / "loops"
CITY = "London"
"""The result of the first tool."""
CALLED = [[FIND, FIND_ARGUMENTS], [FORECAST, {"city": CITY, "days": DAYS}]]
TEXT = f"{SAYS}Rain in {CITY} for {DAYS} days"
PROTOCOLS = {
    "openai-agents": ("chat completions", "Responses"),
    "pydantic-ai": ("chat completions", "Responses", "Messages"),
    "ai-sdk": ("chat completions", "Responses", "Messages"),
}


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerProcess]:
    with scripted_worker(tmp_path_factory.mktemp("scripted")) as worker:
        yield worker.ready()


def in_python(name: str, url: str, _: Path) -> str:
    source = LOOPS / f"of_{name.replace('-', '_')}.py"
    return environment(name).run("python", str(source), url)


def in_node(name: str, url: str, home: Path) -> str:
    runner: Program = program(name)
    # Node looks for packages next to the program.
    source = runner.folder / "loop.mjs"
    source.write_text((LOOPS / f"of_{name.replace('-', '_')}.mjs").read_text())
    said = runner.run(f"node {source} {url}", home)
    assert said.code == 0, said.text
    return said.text


@pytest.mark.parametrize(
    ("name", "run"), [("openai-agents", in_python), ("pydantic-ai", in_python), ("ai-sdk", in_node)]
)
def test_a_framework_calls_both_tools_with_the_right_arguments_and_ends_with_the_text(
    name: str, run: Callable[[str, str, Path], str], worker: WorkerProcess, tmp_path: Path
) -> None:
    told: list[dict[str, Any]] = [json.loads(line) for line in run(name, worker.url, tmp_path).splitlines()]
    ways = [f"{protocol}, {how}" for protocol in PROTOCOLS[name] for how in ("whole", "streamed")]
    assert told == [{"way": way, "called": CALLED, "text": TEXT} for way in ways]
