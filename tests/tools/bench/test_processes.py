"""What the kernel says of processes, asked about this one and a child."""

import os
import subprocess
import sys
import time

from tools.bench.processes import children, cpu_s, resident_bytes

NOBODY = 2**22 + 1
"""Beyond the highest process id that Linux gives."""


def test_this_process_has_memory_and_used_a_processor() -> None:
    resident = resident_bytes(os.getpid())
    assert resident is not None
    assert 10_000_000 < resident < 10**11
    before_s = cpu_s([os.getpid()])
    while time.process_time() < before_s + 0.1:
        pass
    assert cpu_s([os.getpid()]) > before_s


def test_a_process_that_is_gone_has_nothing() -> None:
    assert resident_bytes(NOBODY) is None
    assert cpu_s([NOBODY]) == 0.0
    assert children(NOBODY) == []


def test_a_child_is_found_whatever_it_is_called() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        assert child.pid in children(os.getpid())
        assert os.getpid() not in children(child.pid)
    assert child.pid not in children(os.getpid())
