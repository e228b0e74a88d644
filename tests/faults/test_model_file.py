"""A model's file that is cut while the engine has it mapped: reading behind its end is SIGBUS."""

import os
from pathlib import Path

import pytest

from tests.worker_process import WorkerProcess
from tools.fire.models import model

pytestmark = pytest.mark.process


def test_a_model_file_that_is_cut_while_it_is_mapped_ends_the_worker_in_words(tmp_path: Path) -> None:
    """The engine dies, and no other can load what is left."""
    path = model(tmp_path, "attention")
    with WorkerProcess("--model", str(path), "--port", "0", "--device", "cpu") as worker:
        worker.ready()
        os.truncate(path, 4096)
        worker.engine.kill()
        assert worker.exit_code() == 1
        (error,) = (line for line in worker.log if line["event"] == "error")
        assert f"{path}: " in error["message"]
        assert "truncated" in error["message"]
