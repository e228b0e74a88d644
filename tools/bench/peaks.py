"""The peak rates of this machine: reading as many bytes as a model has, and multiplying and adding 8-bit integers.

Owns the small program that tries it (peaks.c), which the C compiler at hand makes for this processor. Nothing else may
run meanwhile. Runs on whichever thread calls.
"""

import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

_PROGRAM = Path(__file__).with_suffix(".c")
_COMPILERS = ("cc", "gcc", "clang")
_FLAGS = ("-O3", "-funroll-loops", "-march=native", "-pthread")
_N_TRIES, _TRY_S = 3, 0.3
_END_S = 120.0
_READ = "read"
_MAX_BYTES = 1_000_000_000
"""More than the caches of any processor hold."""


@dataclass(frozen=True, slots=True)
class Peaks:
    """The best of a few tries, all threads together."""

    n_bytes: int
    """The bytes that were read repeatedly; part of them is in the caches, as for a model."""
    read_bytes_per_s: float
    multiply_adds_per_s: float
    """The rate for 8-bit integers."""
    instructions: str
    """The fastest instructions for multiplying and adding: amx, avx512-vnni, …"""


def peaks(n_threads: int, n_bytes: int) -> Peaks | None:
    """The peak rates; at most a billion bytes are read. None without a C compiler for this processor, or if none of its
    instructions is known."""
    n_bytes = min(n_bytes, _MAX_BYTES)
    with tempfile.TemporaryDirectory(prefix="llorch-peaks-") as folder:
        program = Path(folder) / "peaks"
        if not _compile(program):
            return None
        tries = [_rates(program, n_threads, n_bytes) for _ in range(_N_TRIES)]
    best = {name: max(rates[name] for rates in tries) for name in tries[0]}
    read_bytes_per_s = best.pop(_READ)
    if not best:
        return None
    fastest = max(best, key=best.__getitem__)
    return Peaks(n_bytes, read_bytes_per_s, best[fastest], fastest)


def _compile(program: Path) -> bool:
    for compiler in filter(shutil.which, _COMPILERS):
        command = [compiler, *_FLAGS, str(_PROGRAM), "-o", str(program)]
        if subprocess.run(command, capture_output=True, check=False, timeout=_END_S).returncode == 0:
            return True
    return False


def _rates(program: Path, n_threads: int, n_bytes: int) -> dict[str, float]:
    """The rates by name. Raises: CalledProcessError if there is not enough memory."""
    command = [str(program), str(n_threads), str(n_bytes), str(_TRY_S)]
    found = subprocess.run(command, capture_output=True, text=True, check=True, timeout=_END_S)
    return {name: float(rate) for name, _, rate in (line.partition(" ") for line in found.stdout.splitlines())}
