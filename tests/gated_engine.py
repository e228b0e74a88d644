"""The real engine, which reports 0 % and then waits with loading until a test opens a gate.

    python -m tests.gated_engine GATE FD GENERATION

GATE is a named pipe, which `gated` of tests/worker_process.py makes; whoever opens it for writing opens the gate.
"""

import sys
from collections.abc import Callable
from pathlib import Path

from worker.config.engine_settings import Configure
from worker.engine.backend import LoadedModel
from worker.models.loading.load import load_model
from worker.server.process.main import main

if __name__ == "__main__":
    gate = Path(sys.argv.pop(1))

    def load(config: Configure, on_progress: Callable[[int], None]) -> LoadedModel:
        on_progress(0)
        gate.read_bytes()
        return load_model(config, on_progress)

    main(load)
