"""A command in a network that has this machine only: `python -m tests.loopback_only COMMAND …`.

The network is a namespace of the kernel's with nothing but the loopback interface. If the kernel does not allow one, a
line says so, and the command runs all the same.
"""

import fcntl
import os
import shutil
import socket
import struct
import subprocess
import sys

_IS_INSIDE = "--inside"
_SET_FLAGS = 0x8914
"""The kernel's SIOCSIFFLAGS."""
_UP = 1


def _unshare() -> list[str]:
    """The command that begins a namespace; empty if none is allowed."""
    as_root = [] if os.geteuid() == 0 else ["--map-root-user"]
    command = [shutil.which("unshare") or "unshare", "--net", *as_root, "--"]
    try:
        found = subprocess.run([*command, "true"], capture_output=True, check=False)
    except OSError:
        return []
    return command if found.returncode == 0 else []


def _raise_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SET_FLAGS, struct.pack("16sH22x", b"lo", _UP))


def main() -> None:
    command = sys.argv[1:]
    if command[0] == _IS_INSIDE:
        _raise_loopback()
        command = command[1:]
    elif begin := _unshare():
        command = [*begin, sys.executable, "-m", "tests.loopback_only", _IS_INSIDE, *command]
    else:
        sys.stderr.write("no network namespace is allowed here: the command could reach other machines\n")
    sys.stdout.flush()
    os.execvp(command[0], command)  # noqa: S606 - in this process's place


if __name__ == "__main__":
    main()
