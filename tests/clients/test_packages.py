"""`make clients-test`: real client packages, each in an environment of its own, and the recipes of docs/clients.md."""

import json
import re
import shutil
from pathlib import Path

import pytest

from tests.clients.environments import PROGRAMS, environment
from tests.clients.pages import blocks
from tests.worker_process import Event, WorkerProcess

pytestmark = [pytest.mark.process, pytest.mark.model, pytest.mark.clients, pytest.mark.timeout(1800)]

PAGE = "docs/clients.md"
ADDRESS = "http://127.0.0.1:8080"
"""The worker's address, wherever the page shows it."""


def pasted(heading: str, language: str, worker: WorkerProcess) -> str:
    """The code under a heading of the page, with this worker's address."""
    found = "\n".join(blocks(PAGE, heading, language))
    assert ADDRESS in found, f"{PAGE}, {heading}: there is nothing to run"
    return found.replace(ADDRESS, worker.url)


@pytest.mark.parametrize("package", ["openai", "litellm", "protocols"])
def test_a_package_works(package: str, worker: WorkerProcess) -> None:
    environment(package).run("python", str(PROGRAMS / f"{package}_package.py"), worker.url)


@pytest.mark.parametrize(
    ("heading", "package"), [("openai", "openai"), ("LangChain", "langchain"), ("LiteLLM", "litellm")]
)
def test_a_recipe_in_python_works_when_pasted(heading: str, package: str, worker: WorkerProcess) -> None:
    assert "Paris" in environment(package).run("python", "-c", pasted(heading, "python", worker))


def test_langchains_standard_tests_pass(worker: WorkerProcess, tmp_path: Path) -> None:
    """Snapshots of how the package writes itself down are its own business: they are made where it runs. Schemas of
    pydantic 1 need tools.
    """
    program = tmp_path / "test_standard.py"
    shutil.copy(PROGRAMS / "langchain_standard.py", program)
    options = (
        *("-q", "-ra", "--snapshot-update", "-o", "asyncio_mode=auto", "-o"),
        *("asyncio_default_test_loop_scope=session", "-k", "not pydantic_2_v1"),
    )
    told = environment("langchain").run(
        *("python", "-m", "pytest", *options, str(program)),
        cwd=tmp_path,
        extra={"LLORCH_V1": f"{worker.url}/v1", "OPENAI_API_KEY": "none"},
    )
    n_passed = re.search(r"(\d+) passed", told)
    assert n_passed is not None, told
    assert int(n_passed[1]) >= 20, told


def test_a_load_generator_runs_without_errors(worker: WorkerProcess, tmp_path: Path) -> None:
    prompts = [{"prompt": f"Tell me about the number {number}."} for number in range(40)]
    (tmp_path / "prompts.jsonl").write_text("\n".join(json.dumps(prompt) for prompt in prompts))
    environment("guidellm").run("sh", "-ec", pasted("guidellm", "sh", worker), cwd=tmp_path)
    report: Event = json.loads((tmp_path / "benchmarks.json").read_text())
    for benchmark in report["benchmarks"]:
        totals = benchmark["metrics"]["request_totals"]
        assert totals["errored"] == 0, totals
        assert totals["successful"] > 0
