"""The kernel's numbers of processes are asked for this one and for a child."""

import mmap
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tools.bench.processes import children, cpu_s, memory_of

NO_PROCESS = 2**22 + 1
"""Beyond the highest process id that Linux gives."""


def test_this_process_has_memory_and_used_a_processor() -> None:
    memory = memory_of(os.getpid())
    assert memory is not None
    assert 10_000_000 < memory.anonymous_bytes <= memory.resident_bytes < 10**11
    before_s = cpu_s([os.getpid()])
    while time.process_time() < before_s + 0.1:
        pass
    assert cpu_s([os.getpid()]) > before_s


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux separates mapped files from other memory")
def test_pages_of_a_mapped_file_are_resident_and_not_anonymous(tmp_path: Path) -> None:
    n_bytes = 32 * 2**20
    (tmp_path / "file").write_bytes(bytes(n_bytes))
    before = memory_of(os.getpid())
    with (tmp_path / "file").open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        assert all(mapped[place] == 0 for place in range(0, n_bytes, mmap.PAGESIZE))
        after = memory_of(os.getpid())
    assert before is not None
    assert after is not None
    assert after.resident_bytes - before.resident_bytes > 0.9 * n_bytes
    assert after.anonymous_bytes - before.anonymous_bytes < 0.1 * n_bytes


def test_a_process_that_is_gone_has_nothing() -> None:
    assert memory_of(NO_PROCESS) is None
    assert cpu_s([NO_PROCESS]) == 0.0
    assert children(NO_PROCESS) == []


def test_a_child_is_found_whatever_it_is_called() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert child.pid in children(os.getpid())
        assert os.getpid() not in children(child.pid)
    assert child.pid not in children(os.getpid())
