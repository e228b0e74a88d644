"""The fixtures of the HTTP tests: one worker, one with long answers, and a client without state."""

import sys
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from tests.gguf_files import tiny_model
from tests.worker_process import WorkerProcess, serve_default

FLAGS = ("--parallel", "4", "--ctx-size", "4096")


@pytest.fixture(scope="package")
def worker(any_model: Path) -> Iterator[WorkerProcess]:
    """A worker for every test that leaves it unchanged."""
    with serve_default(any_model, *FLAGS) as worker:
        yield worker.ready()


@pytest.fixture(scope="package")
def eloquent(default_model: Path) -> Iterator[WorkerProcess]:
    """The default model's, for tests that read what it says, or need it to take its time."""
    with serve_default(default_model, *FLAGS) as worker:
        yield worker.ready()


@pytest.fixture(scope="package")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerProcess]:
    """A worker whose engine has no model: for what the front does by itself."""
    model = tiny_model().write(tmp_path_factory.mktemp("toy") / "tiny.gguf")
    command = (sys.executable, "-m", "tests.fronted_by", "tests.toy_engine")
    with WorkerProcess("--model", str(model), "--port", "0", "--access-log", command=command) as worker:
        yield worker.ready()


@pytest.fixture(scope="package")
def client(worker: WorkerProcess) -> Iterator[httpx2.Client]:
    """A fresh connection for every request: an idle one may be closed just as it is used again."""
    with worker.client(limits=httpx2.Limits(max_keepalive_connections=0)) as client:
        yield client
