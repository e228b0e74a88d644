"""Step 0 of the process: standard descriptors, signal handlers and core files before anything heavy is imported, then
the command.

As PID 1 a signal without a handler is ignored, so a container could not be stopped while it starts.
"""

import math
import os
import resource
import signal
import sys
from types import FrameType
from typing import NoReturn

from worker.argv import means_serve

MIN_ADDRESS_SPACE_BYTES = 56 * 1024 * 1024
"""A command's imports do not fit into less; Python then fails with some error, or hangs within an import."""

_NO_CORE = 1
"""The kernel writes a core file only if a page fits. It starts the program of a piped core_pattern for a limit of 0,
and not for a limit of 1. Source: core(5), and fs/coredump.c, where 1 is "a special value".
"""


def main() -> None:
    """Entry of the script `llorch-worker` and of `python -m worker`; exit codes: docs/protocol.md#command-line."""
    open_standard_descriptors()
    if _address_space_bytes() < MIN_ADDRESS_SPACE_BYTES:
        _refuse_address_space(f"at least {MIN_ADDRESS_SPACE_BYTES // 1024} KiB are needed")
    arguments = sys.argv[1:]
    # A worker that has accepted nothing yet has nothing to drain: 0. Other commands unwind: 143, and 130 by Ctrl-C.
    is_serving = means_serve(arguments)
    signal.signal(signal.SIGTERM, _leave_at_once if is_serving else _unwind)
    if is_serving:
        signal.signal(signal.SIGINT, _leave_at_once)
    leave_no_core()
    try:
        from worker.cli import run  # noqa: PLC0415 - the handlers come first

        code = run(arguments)
    except KeyboardInterrupt:
        code = 128 + signal.SIGINT
    except Exception as error:
        if _address_space_bytes() == math.inf:
            raise
        # Without memory Python fails with anything, a SyntaxError in the middle of an import too.
        _refuse_address_space(" ".join(str(error).split()) or type(error).__name__)
    raise SystemExit(code)


def open_standard_descriptors() -> None:
    """Put /dev/null in the place of a descriptor 0, 1 or 2 that the parent closed.

    The next thing opened would get its number: libuv aborts when that is a socket of the event loop's, and a library
    that writes to stderr would write into a file or a connection.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number, which is this one
            os.set_inheritable(number, True)
            setattr(sys, name, os.fdopen(number, mode, closefd=False))


def leave_no_core() -> None:
    """Have this process and its children write no core file: the front's would hold the token, the engine's prompts.

    `prlimit --core=unlimited --pid PID` raises the limit again.
    """
    _, most = resource.getrlimit(resource.RLIMIT_CORE)
    limit = _NO_CORE if most == resource.RLIM_INFINITY else min(_NO_CORE, most)
    resource.setrlimit(resource.RLIMIT_CORE, (limit, most))


def _address_space_bytes() -> float:
    """The limit of this process (ulimit -v)."""
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    return math.inf if soft == resource.RLIM_INFINITY else soft


def _refuse_address_space(reason: str) -> NoReturn:
    sys.stderr.write(f"llorch-worker: error: the address space is too small (ulimit -v): {reason}\n")
    raise SystemExit(1)


def _leave_at_once(_signum: int, _frame: FrameType | None) -> None:
    os._exit(0)


def _unwind(signum: int, _frame: FrameType | None) -> None:
    raise SystemExit(128 + signum)


if __name__ == "__main__":
    main()
