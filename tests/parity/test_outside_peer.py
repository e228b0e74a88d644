"""llama-server as it is judged from outside: the same file, the same reference, what it does not offer said.

`make parity-peer` builds llama-server of the same llama.cpp and runs this; nothing else does.
"""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from parity.bounds import Bounds
from parity.outside import Outside
from parity.report import Level
from parity.servers import opened
from parity.subject import Subject
from tests.parity.golden_logits import GOLDEN
from tests.worker_process import PATIENCE_S

pytestmark = [pytest.mark.model, pytest.mark.peer]


@pytest.fixture(scope="module")
def peer(default_model: Path) -> Iterator[str]:
    """The URL at which llama-server serves the default model."""
    script = Path(__file__).parents[2] / "scripts" / "build_llama_tool.sh"
    command, environment = [str(script), "llama-server"], {**os.environ, "PYTHON": sys.executable}
    tool = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment).stdout.strip()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    where = ["--host", "127.0.0.1", "--port", port, "-m", str(default_model)]
    served = subprocess.Popen([tool, *where, "-t", "2", "-c", "1024", "-np", "1"], stderr=subprocess.DEVNULL)
    try:
        url = f"http://127.0.0.1:{port}"
        wait_for(url, served)
        yield url
    finally:
        served.terminate()
        served.wait(PATIENCE_S)


def wait_for(url: str, served: "subprocess.Popen[bytes]") -> None:
    give_up_s = time.monotonic() + PATIENCE_S
    with httpx2.Client(base_url=url, trust_env=False) as client:
        while time.monotonic() < give_up_s and served.poll() is None:
            try:
                if client.get("/health").status_code == httpx2.codes.OK:
                    return
            except httpx2.TransportError:
                pass
            time.sleep(0.1)
    raise AssertionError("llama-server is not ready")


def test_llama_server_is_judged_at_the_levels_that_it_reports_enough_for(
    peer: str, default_model: Path, bounds: Bounds, tmp_path: Path
) -> None:
    subject = Subject.of(default_model, n_threads=2, work=tmp_path)
    with opened(peer) as server:
        outside = Outside.of(server, GOLDEN, subject, bounds, n_tokens=512)
        names = ("tokenizer", "weights", "checkpoints", "logits", "generation", "serving", "sampling")
        found: dict[str, Level] = {level.name: level for level in outside.levels(names, say=lambda _: None)}
    for level in found.values():
        sys.stdout.write(f"{level.name}: {level.verdict}: {level.summary}\n")
    assert {name for name, level in found.items() if level.verdict == "not run"} == {
        *("weights", "checkpoints", "serving", "sampling")
    }
    assert {found[name].verdict for name in ("tokenizer", "logits", "generation")} == {"pass"}
    assert "llama-server b" in found["serving"].summary
    assert outside.model.file == default_model.name
