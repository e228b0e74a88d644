"""The commands of the documentation work as a reader pastes them: marked blocks run on a real worker.

`<!-- tested -->` marks the block of sh or python behind it, and `<!-- tested: TEXT -->` also wants TEXT in its output.
The blocks of a page run in one shell, in their order, with free ports in the place of the page's. The page's reader has
started a worker on port 8080, which `make run` does, and so has the test.
"""

import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from client.child import free_port
from tests.clients.environments import OFFLINE, environment
from tests.worker_process import WorkerProcess, own_environment, serving

pytestmark = [pytest.mark.process, pytest.mark.model, pytest.mark.timeout(1200)]

ROOT = Path(__file__).parents[1]
MARKED = re.compile(r"^<!-- tested(?::(?P<wanted>[^\n]*?))? -->\n```(?P<language>\w+)\n(?P<text>.*?)^```$", re.M | re.S)
PORT = re.compile(r"\b(8000|808\d)\b")
END = "=== the end of block"
ENVIRONMENTS = {"two-workers.md": "router"}
"""page → the environment of tests/clients in which its reader has installed something"""

worker = serving("default_model", "--ctx-size", "4096", "--served-model-name", "smollm2-135m-instruct")


@dataclass(frozen=True, slots=True)
class Block:
    language: str
    text: str
    wanted: str


def blocks(page: Path) -> list[Block]:
    found = MARKED.finditer(page.read_text(encoding="utf-8"))
    return [Block(each["language"], each["text"], (each["wanted"] or "").strip()) for each in found]


PAGES = [page for page in sorted((ROOT / "docs").rglob("*.md")) if "<!-- tested" in page.read_text(encoding="utf-8")]


# A page whose reader installs something is of `make clients-test`.
CASES = [pytest.param(page, id=page.name, marks=[pytest.mark.clients] * (page.name in ENVIRONMENTS)) for page in PAGES]


def script_of(found: list[Block], folder: Path, ports: dict[str, int]) -> str:
    """The page as one script, which says where the output of each block ends."""
    parts = ["set -eu", "trap 'kill $(jobs -p) 2>/dev/null || true; wait || true' EXIT"]
    for number, block in enumerate(found):
        text = PORT.sub(lambda port: str(ports[port[0]]), block.text)
        if block.language == "python":
            (folder / f"{number}.py").write_text(text, encoding="utf-8")
            text = f"python3 {number}.py\n"
        parts.append(f"{text}echo; echo '{END}'")
    return "\n".join(parts)


def commands_in(folder: Path, *more: Path) -> str:
    """A search path whose `llorch-worker` and `python3` are this tree and this interpreter."""
    folder.mkdir()
    for name, words in {"llorch-worker": "-m worker", "python3": ""}.items():
        (folder / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {words} "$@"\n')
        (folder / name).chmod(0o755)
    return os.pathsep.join([str(folder), *map(str, more), os.environ.get("PATH", os.defpath)])


@pytest.mark.parametrize("page", CASES)
def test_the_blocks_of_a_page_work_when_pasted(page: Path, worker: WorkerProcess, tmp_path: Path) -> None:
    found = blocks(page)
    ports = {port: free_port() for block in found for port in PORT.findall(block.text)} | {"8080": worker.port}
    installed = [environment(ENVIRONMENTS[page.name]).folder / "bin"] if page.name in ENVIRONMENTS else []
    variables = {**own_environment(), **OFFLINE, "PYTHONPATH": str(ROOT), "HOME": str(tmp_path)}
    variables |= {"PATH": commands_in(tmp_path / "bin", *installed), "XDG_CACHE_HOME": str(Path.home() / ".cache")}
    process = subprocess.Popen(
        ["/bin/bash", "-c", script_of(found, tmp_path, ports)],
        cwd=tmp_path,
        env=variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        written, complaints = process.communicate(timeout=900)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    outputs = written.split(END)
    assert process.returncode == 0, f"block {len(outputs)}: {outputs[-1]}\n{complaints}"
    missing = [
        (block.wanted, output) for block, output in zip(found, outputs, strict=False) if block.wanted not in output
    ]
    assert missing == []


def test_every_mark_is_before_a_block_that_can_run() -> None:
    """A mark that the pattern does not read would be a block that is never tried."""
    for page in PAGES:
        found = blocks(page)
        assert len(found) == page.read_text(encoding="utf-8").count("<!-- tested"), page
        assert {block.language for block in found} <= {"sh", "python"}, page


def test_every_tutorial_is_tried() -> None:
    assert {page.name for page in (ROOT / "docs" / "tutorial").iterdir()} <= {page.name for page in PAGES}
