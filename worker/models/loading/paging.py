"""The progress of reading the model's file into memory, also while one call of the library maps all of it.

Linux maps a file by reading it whole (MAP_POPULATE), for minutes from a slow disk. A thread of ours then counts the
pages of files that this process has. Only pages that came count, so that a disk that hangs is not hidden.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

PERIOD_S = 0.5
"""The time between two counts, in seconds."""

MIN_BYTES = 1 << 20
"""The least growth that counts as progress: a thread's code and tables also come in page by page, but they are
small."""

MAPPED_SHARE = 90
"""The percents of the bar for a file that is mapped; the library copies weights to a device, or passes over them, in
the rest."""

_STATUS = Path("/proc/self/status")
_PAGES_OF_FILES = (b"RssFile:", b"RssShmem:")
"""Shared memory is where the files of a tmpfs are counted."""


class Paging:
    """One rising bar of whole percents from two sources. `report` is called once for each progress, and may get the
    same percent again as a sign of life. Called on the thread that loads and on the one that counts, never at once.
    """

    def __init__(self, report: Callable[[int], None], file_bytes: int, count_bytes: Callable[[], int]) -> None:
        self._report, self._file_bytes, self._count_bytes = report, file_bytes, count_bytes
        self._lock = threading.Lock()
        self._before_bytes = self._seen_bytes = count_bytes()
        self._percent = 0
        self._base: int | None = None
        """The bar's position at the library's first progress report; from then on the library moves it."""

    def look(self) -> None:
        """Report the pages that have come since the last look, if any have."""
        with self._lock:
            now_bytes = self._count_bytes()
            if now_bytes < self._seen_bytes + MIN_BYTES:
                return
            self._seen_bytes = now_bytes
            if self._base is None:
                share = min(1.0, (now_bytes - self._before_bytes) / self._file_bytes)
                self._percent = max(self._percent, int(MAPPED_SHARE * share))
            self._report(self._percent)

    def hear(self, percent: int) -> None:
        """The library's own percents, rising to 100."""
        with self._lock:
            if self._base is None:
                self._base = self._percent
            self._percent = self._base + (100 - self._base) * percent // 100
            self._report(self._percent)


def mapped_bytes() -> int:
    """Pages of files in this process's memory. 0 on other systems, whose maps read nothing in advance."""
    try:
        lines = _STATUS.read_bytes().splitlines()
    except OSError:
        return 0
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith(_PAGES_OF_FILES))


@contextmanager
def paging(
    report: Callable[[int], None], file_bytes: int, *, count_bytes: Callable[[], int] = mapped_bytes
) -> Iterator[Paging]:
    progress = Paging(report, file_bytes, count_bytes)
    is_over = threading.Event()

    def watch() -> None:
        while not is_over.wait(PERIOD_S):
            progress.look()

    thread = threading.Thread(target=watch, name="paging", daemon=True)
    thread.start()
    try:
        yield progress
    finally:
        is_over.set()
        thread.join()
