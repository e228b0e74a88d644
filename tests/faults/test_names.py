"""A resolver that never answers: the only name that the front looks up is the callback's."""

import sys
from pathlib import Path

import pytest

from tests.faults.shim import Switch, built
from tests.worker_process import serve_default

pytestmark = [
    pytest.mark.process,
    pytest.mark.model,
    pytest.mark.skipif(sys.platform != "linux", reason="the shim is Linux's"),
]

LOOKED_UP_S = 600
"""The test's patience ends before."""


def test_a_name_that_is_looked_up_without_end_costs_only_the_callback(shallow_model: Path, tmp_path: Path) -> None:
    """Streams go on, and a worker that is asked to stop does not wait for the name."""
    switch = Switch(built(tmp_path), tmp_path / "on", f"resolve={LOOKED_UP_S}")
    switch.on()
    url = "http://manager.invalid:1234/ready"
    with serve_default(shallow_model, "--callback-url", url, environment=switch.environment) as worker:
        worker.ready()
        for _ in range(3):
            assert worker.run(prompt="One", max_tokens=4)[-1]["type"] == "end"
            assert worker.get("/readyz").status_code == 200
        worker.terminate()
        assert worker.exit_code() == 0
