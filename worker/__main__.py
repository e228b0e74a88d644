"""Step 0 of the process: signal handlers before anything heavy is imported, then the command line.

Owns: what SIGTERM and SIGINT do until a command installs its own handling. As PID 1 a signal without a handler is
ignored, so a container could not be stopped while it starts. Runs on the main thread; imports nothing else at the top.
"""

import os
import signal
import sys
from types import FrameType


def main() -> None:
    """Entry of the script `llorch-worker` and of `python -m worker`; exit codes: docs/protocol.md 1."""
    arguments = sys.argv[1:]
    _handle_signals(is_serving=_means_serve(arguments))
    try:
        from worker.cli import run  # noqa: PLC0415 - the handlers come first

        code = run(arguments)
    except KeyboardInterrupt:
        code = 128 + signal.SIGINT
    raise SystemExit(code)


def _means_serve(arguments: list[str]) -> bool:
    """Flags without a subcommand mean `serve`."""
    return not arguments or arguments[0] == "serve" or arguments[0].startswith("-")


def _handle_signals(*, is_serving: bool) -> None:
    """A worker that has accepted nothing yet has nothing to drain: 0. Other commands unwind: 143, and 130 by Ctrl-C."""
    if is_serving:
        signal.signal(signal.SIGTERM, _leave_at_once)
        signal.signal(signal.SIGINT, _leave_at_once)
    else:
        signal.signal(signal.SIGTERM, _unwind)


def _leave_at_once(_signum: int, _frame: FrameType | None) -> None:
    os._exit(0)


def _unwind(signum: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + signum)


if __name__ == "__main__":
    main()
