"""The fixtures of the HTTP tests: one worker, one with long answers, and a client without state."""

from collections.abc import Iterator

import httpx2
import pytest

from tests.worker_process import WorkerProcess, serving, serving_toy

FLAGS = ("--parallel", "4", "--ctx-size", "4096")


worker = serving("any_model", *FLAGS, scope="package")
"""A worker for every test that leaves it unchanged."""
eloquent = serving("default_model", *FLAGS, scope="package")
"""The default model's, for tests that read what it says, or need it to take its time."""
toy = serving_toy("--access-log", scope="package")
"""A worker whose engine has no model: for what the front does by itself."""


@pytest.fixture(scope="package")
def client(worker: WorkerProcess) -> Iterator[httpx2.Client]:
    """A fresh connection for every request: an idle one may be closed just as it is used again."""
    with worker.client(limits=httpx2.Limits(max_keepalive_connections=0)) as client:
        yield client
