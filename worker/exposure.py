"""The face of this process to other users: its arguments, which anybody can read, and a core file.

Owns the bytes of /proc/self/cmdline and the limit of core files. Refuses to know what a secret is
(observe/covering.py). The front has no ctypes, so memory is written through /proc. Runs on the main thread, before the
command does.
"""

import os
import resource
from contextlib import suppress
from pathlib import Path

from worker.observe.covering import cover_arguments

_PROC = Path("/proc/self")
_ARG_START, _ARG_END = 45, 46
"""The places of the first argument's address, and of the address behind the last one, among the fields of
/proc/self/stat that follow the name. Source: proc_pid_stat(5), fields 48 and 49.
"""
_NO_CORE = 1
"""The kernel writes a core file only if a page fits. It starts the program of a piped core_pattern for a limit of 0,
and not for a limit of 1. Source: core(5), and fs/coredump.c, where 1 is "a special value".
"""


def cover_secrets() -> None:
    """Overwrite the secrets among this process's arguments. Where there is no /proc, as on macOS, they stay."""
    with suppress(OSError, ValueError, IndexError):  # `shows_secrets` finds what stays, and serve says so
        words = _arguments(_PROC)
        covered = cover_arguments(words)
        if covered != words:
            _overwrite("\0".join(covered).encode("latin-1"))


def shows_secrets(arguments: list[str], proc: Path = _PROC) -> bool:
    """Return whether other users can read a secret among the arguments that this process was started with."""
    with suppress(OSError):
        arguments = _arguments(proc)
    return cover_arguments(arguments) != arguments


def leave_no_core() -> None:
    """Have this process and its children write no core file: the front's would hold the token, the engine's prompts.

    `prlimit --core=unlimited --pid PID` raises the limit again.
    """
    _, most = resource.getrlimit(resource.RLIMIT_CORE)
    limit = _NO_CORE if most == resource.RLIM_INFINITY else min(_NO_CORE, most)
    resource.setrlimit(resource.RLIMIT_CORE, (limit, most))


def _arguments(proc: Path) -> list[str]:
    """One character for each byte. Raises: OSError."""
    return (proc / "cmdline").read_bytes().decode("latin-1").split("\0")


def _overwrite(arguments: bytes) -> None:
    """Raises: OSError; ValueError or IndexError if the system's idea of /proc is another one."""
    fields = (_PROC / "stat").read_text().rpartition(")")[2].split()
    begin, end = int(fields[_ARG_START]), int(fields[_ARG_END])
    if end - begin != len(arguments):
        raise ValueError(f"{end - begin} bytes of arguments, not {len(arguments)}")
    memory = os.open(_PROC / "mem", os.O_WRONLY)
    try:
        os.pwrite(memory, arguments, begin)
    finally:
        os.close(memory)
