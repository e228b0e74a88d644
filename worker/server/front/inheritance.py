"""The environment that an engine process inherits from the front, and the memory that outlives it."""

import contextlib
import os
import tempfile
from collections.abc import Iterator

from worker.config.environment import environment
from worker.host import cpu_quota
from worker.observe.redaction import without_secrets

WAITING = {"GOMP_SPINCOUNT": "30000"}
"""The number of times that libgomp's threads look for work before they sleep; the costs of other numbers are in
docs/measurements/2026-11-steps.md#threads. clang's libomp ignores it: its threads give the processor up while they
wait, which is best."""


@contextlib.contextmanager
def shared_memory() -> Iterator[int]:
    """Open memory that lives as long as this process has the descriptor, whatever becomes of an engine that maps it.

    If the system has no memory without a name (macOS), it is a file without a name. Raises: OSError.
    """
    fd = -1
    if hasattr(os, "memfd_create"):
        with contextlib.suppress(OSError):  # a sandbox may forbid it
            fd = os.memfd_create("llorch-prefix-cache", os.MFD_CLOEXEC)
    if fd < 0:
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    try:
        yield fd
    finally:
        os.close(fd)


def engine_environment() -> dict[str, str]:
    """Return the environment of an engine: ours with its own defaults, and without secrets and variables that may
    belong to a trace collector.

    ggml must not start a debugger for a backtrace when it aborts. Threads of libgomp that wait for each other spin for
    some microseconds and then sleep (its own count is 300,000): on an idle machine that makes no difference, and other
    processes need the processor meanwhile. If ggml lets OpenMP choose the number of threads, as when it puts weights
    into tiles of AMX, it would be one for each processor, whatever the quota. An explicit OMP_WAIT_POLICY,
    GOMP_SPINCOUNT or OMP_NUM_THREADS is respected. glibc's malloc has one arena, so that the step thread reuses memory
    that the intake thread has freed (tests/test_hostile_jobs.py grew the engine by 81 MiB with two arenas, by 51 with
    one).
    """
    kept = {name: value for name, value in without_secrets(environment()).items() if not name.startswith("OTEL_")}
    waiting = {} if "OMP_WAIT_POLICY" in kept else WAITING
    return {"MALLOC_ARENA_MAX": "1", "OMP_NUM_THREADS": str(cpu_quota())} | waiting | kept | {"GGML_NO_BACKTRACE": "1"}
