"""`make agents-test`: real coding agents against a worker, over the three protocols.

They are set up as `llorch-worker launch` does. The engine is a real process with a scripted model
(tests/scripted_engine.py), because an agent's turn is to be the same each time. Each agent reads a note by a tool call
of its own and repeats it. It also says what happened when its instructions do not fit the context, and when the engine
is killed in mid-answer.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from shlex import quote

import pytest

from tests.agents.programs import Program, Said, program
from tests.gguf_files import tiny_model
from tests.scripted_engine import CRASH, RECOVERED, SAYS
from tests.worker_process import WorkerProcess, altered
from worker.commands.launch import ask, configuration_of, write_to

pytestmark = [pytest.mark.agents, pytest.mark.process, pytest.mark.timeout(900)]

NOTE = "the word is kumquat"
ASKED = "Read note.txt and tell me the word."
SMALL_CONTEXT = 256
"""The context that no agent's instructions fit."""
BELIEVED = 8192
"""The context that agents are set up for in that case, so that they ask the worker all the same."""


@dataclass(frozen=True, slots=True)
class Agent:
    """An agent, as a test runs it."""

    name: str
    """Its name in `AGENTS`."""
    ask: str
    """The command: START is what `launch` prints, less the program's own name, and PROMPT the question."""
    overflow: str
    """A pattern of what it says if the context is full."""
    crash: str
    """A pattern of what it says if the engine dies in mid-answer: what happened; empty if it asks again by itself."""
    api: str = ""
    """pi's name of the protocol, if it is another than chat completions."""
    extra: dict[str, str] = field(default_factory=dict)
    """Variables."""


AT_WORK = {
    name: Agent(**told) for name, told in json.loads((Path(__file__).parent / "programs.json").read_text()).items()
}
every_agent = pytest.mark.parametrize("agent", AT_WORK.values(), ids=AT_WORK)


def scripted_worker(folder: Path, *arguments: str) -> WorkerProcess:
    """A worker whose model follows the script."""
    model = str(tiny_model().write(folder / "tiny.gguf"))
    flags = ("--model", model, "--served-model-name", "m", "--port", "0", *arguments)
    return WorkerProcess(*flags, command=altered("tests.scripted_engine"))


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerProcess]:
    with scripted_worker(tmp_path_factory.mktemp("scripted")) as worker:
        yield worker.ready()


@pytest.fixture(scope="module")
def small_worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerProcess]:
    with scripted_worker(tmp_path_factory.mktemp("small"), "--ctx-size", str(SMALL_CONTEXT)) as worker:
        yield worker.ready()


def said(agent: Agent, worker: WorkerProcess, home: Path, prompt: str, timeout_s: float = 240) -> Said:
    """The agent's output in a new home, where it is set up as `launch --write` does."""
    (home / "work").mkdir()
    (home / "work" / "note.txt").write_text(f"{NOTE}\n")
    served = ask(worker.url, None)
    configuration = configuration_of(agent.name, replace(served, context=max(served.context, BELIEVED)))
    path = home / configuration.path
    write_to(path, configuration)
    if agent.api:
        text = path.read_text().replace("openai-completions", agent.api)
        path.write_text(text.replace("/v1", "") if agent.api == "anthropic-messages" else text)
    if agent.name == "pi":
        (path.parent / "settings.json").write_text('{"retry": {"enabled": false}}')
    variables, start = re.match(r"((?:[A-Z_]+=\S+ )*)\S+ ?(.*)", configuration.start).groups()  # type: ignore[union-attr]
    command = agent.ask.format(variables=variables, start=start, prompt=quote(prompt))
    runner: Program = program(agent.name)
    return runner.run(command, home, agent.extra, timeout_s)


@every_agent
def test_an_agent_calls_a_tool_and_repeats_its_result(agent: Agent, worker: WorkerProcess, tmp_path: Path) -> None:
    found = said(agent, worker, tmp_path, ASKED)
    assert re.search(rf"{SAYS}[\s\S]*{NOTE}", found.text), found
    assert found.code == 0, found


@every_agent
def test_an_agent_says_that_the_context_is_full(agent: Agent, small_worker: WorkerProcess, tmp_path: Path) -> None:
    found = said(agent, small_worker, tmp_path, ASKED)
    assert re.search(agent.overflow, found.text), found
    assert not re.search(NOTE, found.text), found


@every_agent
def test_an_agent_says_that_the_engine_died_in_mid_answer_or_asks_again(agent: Agent, tmp_path: Path) -> None:
    """Each agent has its own worker, whose engine dies once."""
    home = tmp_path / "home"
    home.mkdir()
    with scripted_worker(tmp_path) as worker:
        found = said(agent, worker.ready(), home, f"Please {CRASH}.")
    assert re.search(agent.crash or RECOVERED, found.text), found
