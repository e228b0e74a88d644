"""`make agents-test`: CompatCanary's probes of OpenAI's API pass on the default model, all of them."""

import json
from pathlib import Path

import pytest

from tests.agents.programs import program
from tests.worker_process import WorkerProcess, serving

pytestmark = [pytest.mark.agents, pytest.mark.process, pytest.mark.model, pytest.mark.timeout(2400)]

worker = serving("default_model", "--served-model-name", "smollm2")
N_TRIES = 3
"""The probes draw at temperature 1 and set no length, and now and then the small model goes on to the context's end."""


def test_compatcanary_gives_every_point(worker: WorkerProcess, tmp_path: Path) -> None:
    options = f"--base-url {worker.url}/v1 --model smollm2 --profile modern --timeout 240 --fail-on any"
    reports = []
    for number in range(N_TRIES):
        command = f"compatcanary scan {options} --format json --output {number}.json"
        program("compatcanary").run(command, tmp_path, timeout_s=800)
        reports.append(json.loads((tmp_path / "work" / f"{number}.json").read_text()))
        if reports[-1]["score"] == 100:
            return
    raise AssertionError(reports)
