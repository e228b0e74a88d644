"""A worker whose engine waits with loading until a test opens a gate.

    python -P gated_engine.py serve GATE --model …         the front, as `python -m worker` would run it
    python -P gated_engine.py engine GATE FD GENERATION    its engine: reports 0 %, then waits

GATE is a named pipe; whoever opens it for writing opens the gate. Its path is in both command lines.
"""

import sys
from collections.abc import Callable
from pathlib import Path

from worker.cli import parse
from worker.engine.backend import LoadedModel
from worker.process import main as engine_process
from worker.serve import run
from worker.wire.load import Configure


def front_command(gate: Path) -> list[str]:
    """The command of a gated worker; its flags follow."""
    return [sys.executable, "-P", __file__, "serve", str(gate)]


def _load_behind(gate: Path) -> Callable[[Configure, Callable[[int], None]], LoadedModel]:
    def load(config: Configure, on_progress: Callable[[int], None]) -> LoadedModel:
        from worker.loading.load import load_model  # noqa: PLC0415 - the front never loads llama.cpp

        on_progress(0)
        gate.read_bytes()
        return load_model(config, on_progress)

    return load


def main() -> None:
    role, gate = sys.argv[1:3]
    if role == "engine":
        del sys.argv[1:3]
        engine_process.main(_load_behind(Path(gate)))
    else:
        engine_command = [sys.executable, "-P", __file__, "engine", gate]
        raise SystemExit(run(parse(sys.argv[3:]), engine_command=engine_command))


if __name__ == "__main__":
    main()
