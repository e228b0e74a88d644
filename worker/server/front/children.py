"""The children of the front: engines, with what they inherit and say last, and the child that downloads a missing
model."""

import asyncio
import contextlib
import os
import re
import signal
import socket
import sys
import tempfile
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from worker.config.environment import environment, environment_for_downloads
from worker.config.settings import Settings
from worker.errors import DownloadFailed
from worker.host import cpu_quota
from worker.observe.log_lines import escape, get_logger
from worker.observe.redaction import without_secrets

log = get_logger()

WAITING = {"GOMP_SPINCOUNT": "30000"}
"""The number of times that libgomp's threads look for work before they sleep; the costs of other numbers are in
docs/measurements/2026-11-steps.md#threads. clang's libomp ignores it: its threads give the processor up while they
wait, which is best."""

LAST_WORDS_BYTES = 4096
_LONGEST_LINE = 1024 * 1024
_END_TIMEOUT_S = 5.0


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


async def start_engine(
    command: Sequence[str], environment: Mapping[str, str], link: socket.socket, inherited_fds: Sequence[int]
) -> Process:
    """Start an engine at a socket, in its own session: a terminal's Ctrl-C reaches the front only. Raises: OSError."""
    return await asyncio.create_subprocess_exec(
        *command,
        str(link.fileno()),
        stdin=DEVNULL,
        stdout=DEVNULL,
        stderr=PIPE,
        pass_fds=[link.fileno(), *inherited_fds],
        start_new_session=True,
        env=dict(environment),
    )


def describe(code: int) -> str:
    if code >= 0:
        return f"it exited with code {code}"
    try:
        return f"it was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"it was ended by signal {-code}"


class StderrTail:
    """The engine's raw stderr, cut into lines, of which the last 4 KiB are kept. Pure: `feed` takes what the pipe gave.

    Lines are without their end, never empty, with invalid UTF-8 replaced and control characters escaped;
    one longer than 4 KiB is cut there.
    """

    _LINE: Final = re.compile(rb"[^\n]{1,%d}\n?|\n" % LAST_WORDS_BYTES)

    def __init__(self) -> None:
        self._unfinished = b""
        self._tail = b""

    def feed(self, chunk: bytes) -> list[str]:
        """The lines that `chunk` completes."""
        self._tail = (self._tail + chunk)[-LAST_WORDS_BYTES:]
        lines = self._LINE.findall(self._unfinished + chunk)
        self._unfinished = lines.pop() if lines and not lines[-1].endswith(b"\n") else b""
        return _readable(lines)

    @property
    def last_words(self) -> str:
        """The last lines, joined with ` | ` for a one-line report; an unfinished line counts."""
        half_a_character = bytes(range(0x80, 0xC0))
        return " | ".join(_readable(self._tail.lstrip(half_a_character).split(b"\n")))


def _readable(lines: list[bytes]) -> list[str]:
    return [escape(line.strip().decode(errors="replace")) for line in lines if line.strip()]


async def fetch_in_child(settings: Settings, reference: str) -> Path:
    """Run `models pull` for the model or draft model. Its progress goes to the terminal, or line by line to the log.

    When this is cancelled, the child is ended, and what it has downloaded stays for the next try.
    Raises: DownloadFailed.
    """
    is_served = reference == settings.model
    command = [sys.executable, "-P", "-m", "worker", "models", "pull", reference]
    command += ["--models-dir", str(settings.models_dir)]
    command += [] if settings.catalog is None else ["--catalog", str(settings.catalog)]
    log.info("model_load_start", model_ref=settings.reported_model_ref if is_served else reference, phase="download")
    child = await asyncio.create_subprocess_exec(
        *command,
        stdin=DEVNULL,
        stdout=PIPE,
        stderr=None if sys.stderr.isatty() else PIPE,
        limit=_LONGEST_LINE,
        env=environment_for_downloads(),
    )
    assert child.stdout is not None
    try:
        path, last_line = await asyncio.gather(child.stdout.read(), _relay(child))
        code = await child.wait()
    finally:
        await _end(child)
    if code != 0:
        raise DownloadFailed(last_line or f"{reference} could not be fetched; the lines above say why")
    return Path(path.decode().strip())


async def _end(child: Process) -> None:
    """End the child: ask it to, wait a little, then kill it."""
    for ask in (child.terminate, child.kill):
        with contextlib.suppress(ProcessLookupError):
            ask()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(child.wait(), _END_TIMEOUT_S)
            return


async def _relay(child: Process) -> str:
    """Log each line of the child's stderr as progress; the last one is the reason if it fails."""
    last_line = ""
    if child.stderr is not None:
        async for raw in child.stderr:
            last_line = escape(raw.decode(errors="replace").strip()).removeprefix("llorch-worker: error: ")
            log.info("model_load_progress", phase="download", detail=last_line)
    return last_line
