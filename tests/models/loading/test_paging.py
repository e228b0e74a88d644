"""Progress while the library reports none: pages of the file that arrive are reported, and nothing else is."""

import mmap
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.models.loading.paging import MAPPED_SHARE, MIN_BYTES, Paging, mapped_bytes, paging

PATIENCE_S = 60.0
FILE_BYTES = 100 * MIN_BYTES


class Machine:
    """Its memory has what the test puts there; `reported` is what the front hears."""

    def __init__(self, before_bytes: int = 5 * MIN_BYTES) -> None:
        self.mapped_bytes = before_bytes
        self.reported: list[int] = []
        self.progress = Paging(self.reported.append, FILE_BYTES, lambda: self.mapped_bytes)

    def page_in(self, share: float) -> None:
        self.mapped_bytes += int(share * FILE_BYTES)
        self.progress.look()


def test_the_bar_moves_with_the_pages_that_come() -> None:
    machine = Machine()
    for _ in range(4):
        machine.page_in(0.25)
    assert machine.reported == [MAPPED_SHARE * n // 4 for n in (1, 2, 3, 4)]


def test_a_disk_that_hangs_is_no_progress() -> None:
    machine = Machine()
    machine.page_in(0.5)
    for _ in range(100):
        machine.progress.look()
    machine.mapped_bytes += MIN_BYTES - 1
    machine.progress.look()
    assert len(machine.reported) == 1


def test_pages_of_a_very_large_file_are_progress_before_they_are_a_percent() -> None:
    reported: list[int] = []
    mapped = iter(range(0, 10 * MIN_BYTES, MIN_BYTES))
    progress = Paging(reported.append, 1000 * FILE_BYTES, lambda: next(mapped))
    for _ in range(5):
        progress.look()
    assert reported == [0] * 5


def test_the_library_has_what_the_pages_left_of_the_bar() -> None:
    """All of it where it reads the file itself, or where all was there at once."""
    mapped, read = Machine(), Machine()
    mapped.page_in(1.0)
    for machine in (mapped, read):
        for percent in (0, 50, 100):
            machine.progress.hear(percent)
    assert mapped.reported == [90, 90, 95, 100]
    assert read.reported == [0, 50, 100]


def test_pages_that_come_at_the_first_steps_are_a_sign_of_life_and_move_nothing() -> None:
    machine = Machine()
    machine.progress.hear(100)
    machine.page_in(0.1)
    assert machine.reported == [100, 100]


@given(st.lists(st.floats(-0.5, 0.5)), st.lists(st.integers(0, 100), unique=True).map(sorted))
def test_the_bar_never_falls_and_ends_with_100(shares: list[float], percents: list[int]) -> None:
    """Pages also leave memory, when there is little of it."""
    machine = Machine(before_bytes=FILE_BYTES)
    for share in shares:
        machine.page_in(share)
    for percent in percents:
        machine.progress.hear(percent)
        machine.page_in(0.1)
    machine.progress.hear(100)
    assert machine.reported == sorted(machine.reported)
    assert machine.reported[-1] == 100


def test_pages_are_reported_from_another_thread_for_as_long_as_the_block_lasts() -> None:
    """The thread that loads is inside the library meanwhile."""
    reported: list[int] = []
    is_told = threading.Event()

    def report(percent: int) -> None:
        reported.append(threading.get_ident())
        is_told.set()

    n_bytes = iter(range(0, 10**15, MIN_BYTES))
    with paging(report, FILE_BYTES, count_bytes=lambda: next(n_bytes)):
        assert is_told.wait(PATIENCE_S)
    assert threading.get_ident() not in reported
    assert not any(thread.name == "paging" for thread in threading.enumerate())


@pytest.fixture
def sparse(tmp_path: Path) -> Iterator[int]:
    with (tmp_path / "weights").open("wb+") as file:
        file.truncate(32 * MIN_BYTES)
        yield file.fileno()


@pytest.mark.skipif(sys.platform != "linux", reason="other systems read no file while they map it")
def test_a_map_that_is_populated_is_counted(sparse: int) -> None:
    before_bytes = mapped_bytes()
    with mmap.mmap(sparse, 0, mmap.MAP_SHARED | mmap.MAP_POPULATE, mmap.PROT_READ):
        grown_bytes = mapped_bytes() - before_bytes
    assert 31 * MIN_BYTES < grown_bytes < 40 * MIN_BYTES
