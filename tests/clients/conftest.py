"""What the tests of the `/v1` door share: one worker on the real model."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.worker_process import WorkerProcess, serve_default


@pytest.fixture(scope="package")
def worker(default_model: Path) -> Iterator[WorkerProcess]:
    """For every test that leaves the worker as it found it. Eight slots."""
    with serve_default(default_model, "--parallel", "8", "--ctx-size", "8192") as worker:
        yield worker.ready()
