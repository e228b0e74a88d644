"""A worker whose parent closed descriptors 0, 1 or 2, as some supervisors and `<&- >&- 2>&-` do."""

import os
import sys
from pathlib import Path

import psutil
import pytest

from tests.worker_process import eventually, serve_default

pytestmark = [pytest.mark.process, pytest.mark.model]


def listening_port(process: psutil.Process) -> int:
    """The port of a worker whose log cannot be read; 0 before it listens."""
    return next((c.laddr.port for c in process.net_connections("tcp4") if c.status == psutil.CONN_LISTEN), 0)


def is_open(process: psutil.Process, number: int) -> bool:
    """True if that descriptor is a file; the next socket or pipe would otherwise have taken its number."""
    held = {file.fd for file in process.open_files()}
    target = Path(f"/proc/{process.pid}/fd/{number}")
    return number in held or (target.exists() and target.readlink() == Path(os.devnull))


@pytest.mark.parametrize("closed", [(0,), (1,), (2,), (0, 1, 2)], ids=str)
def test_a_worker_without_standard_descriptors_starts_answers_and_ends(
    shallow_model: Path, closed: tuple[int, ...]
) -> None:
    """Left closed, one of them became the event loop's own, and libuv aborted the process (SIGABRT)."""
    closing = " ".join(f"{number}{'<' if number == 0 else '>'}&-" for number in closed)
    shell = ("sh", "-c", f'exec "$@" {closing}', "sh", sys.executable, "-m", "worker")
    with serve_default(shallow_model, command=shell) as worker:
        process = psutil.Process(worker.process.pid)
        eventually(lambda: process.status() == psutil.STATUS_ZOMBIE or listening_port(process))
        worker.url = f"http://127.0.0.1:{listening_port(process)}"
        assert worker.get("/livez").status_code == 200
        if sys.platform == "linux":
            eventually(process.children)
            assert all(is_open(process, number) for number in closed)
        worker.terminate()
        assert worker.process.wait(60) == 0
