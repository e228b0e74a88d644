"""GGUF headers that hold very much of what a header may hold. `python -m tests.attacks.header_bombs`."""

import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil

N_KEYS = 5_400_000
N_ARRAYS, N_ELEMENTS = 93_000, 1024

U8, ARRAY = 0, 9
"""GGUF's numbers of these types."""


def many_keys() -> Iterator[bytes]:
    yield _beginning(N_KEYS)
    for number in range(N_KEYS):
        yield _key(number) + struct.pack("<IB", U8, 0)


def many_arrays() -> Iterator[bytes]:
    yield _beginning(N_ARRAYS)
    for number in range(N_ARRAYS):
        yield _key(number) + struct.pack("<IIQ", ARRAY, U8, N_ELEMENTS) + bytes(N_ELEMENTS)


def _beginning(n_keys: int) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", 3, 0, n_keys)


def _key(number: int) -> bytes:
    name = b"%07d" % number
    return struct.pack("<Q", len(name)) + name


def explode(bomb: Callable[[], Iterator[bytes]], folder: Path) -> str:
    """A worker that is to serve the file: how it ended, after how long, and how much memory it took."""
    path = folder / f"{bomb.__name__}.gguf"
    with path.open("wb") as file:
        file.writelines(bomb())
    began_s = time.monotonic()
    peak = 0
    command = [sys.executable, "-m", "worker", "--model", str(path), "--port", "0", "--log-format", "json"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        watched = psutil.Process(process.pid)
        while process.poll() is None:
            peak = max(peak, watched.memory_info().rss)
            time.sleep(0.01)
        assert process.stderr is not None
        last = process.stderr.read().splitlines()[-2:]
    taken_s = time.monotonic() - began_s
    return f"{bomb.__name__}: exit {process.returncode} after {taken_s:.1f} s, {peak / 1e6:.0f} MB; {last[0]}"


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for bomb in (many_keys, many_arrays):
            sys.stdout.write(explode(bomb, Path(folder)) + "\n")


if __name__ == "__main__":
    main()
