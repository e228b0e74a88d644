"""The writer of the front's log lines: a bounded queue, and a thread that may wait for the reader of stderr.

A pipe that is not read blocks its writer after 64 KiB, a terminal after Ctrl-S; the event loop must never be that
writer. Any thread may write.
"""

import contextlib
import io
import os
import select
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final, TextIO

MAX_CHARACTERS: Final = 4 * 1024 * 1024
"""The most characters that may wait. At 500 characters a line they are 8,000 lines, enough while a log shipper
restarts."""

RESERVE_CHARACTERS: Final = 256 * 1024
"""Room for errors alone, so that the reason for the worker's end is logged also behind a flood of other lines."""

ERASE_LINE: Final = "\r\x1b[2K"

FLUSH_S: Final = 2.0
"""The longest that the exit waits for a reader of stderr, which may never come."""


class LogWriter(io.TextIOBase):
    """A stream whose `write` never waits, and structlog's logger: its `info`, `error` and so on take finished lines.

    Once something did not fit, everything but errors is dropped until all that waits has left, so that what is missing
    is one gap; when it ends, `on_cleared` gets the number of its lines, on the writer's thread.
    """

    def __init__(self, stream: TextIO | None, *, most: int = MAX_CHARACTERS, reserve: int = RESERVE_CHARACTERS) -> None:
        """`stream`: a file with a descriptor, to which nothing else writes from now on; None: everything is lost."""
        self._fd = None if stream is None else stream.fileno()
        self._encoding = (stream.encoding if stream is not None else None) or "utf-8"
        self._is_terminal = stream is not None and stream.isatty()
        self._most = most
        self._reserve = reserve
        self.on_cleared: Callable[[int], None] = lambda _: None
        self.n_dropped = 0
        """Lines lost since the start."""
        self._n_reported = 0
        self._is_full = False
        self._has_bar = False
        """True if a progress bar was drawn last; the cursor is then in its line."""
        self._waiting: deque[str] = deque()
        self._n_waiting = 0
        """The number of characters that have not left, with those that are being written."""
        # Reentrant: a signal handler may log in the middle of a write.
        self._changed = threading.Condition(threading.RLock())
        threading.Thread(target=self._run, name="log writer", daemon=True).start()

    # ── a stream ─────────────────────────────────────────────────────────────────────────────────

    @property
    def encoding(self) -> str:  # type: ignore[override] # TextIOBase declares an attribute
        return self._encoding

    def isatty(self) -> bool:
        return self._is_terminal

    def writable(self) -> bool:
        return True

    def write(self, text: str, /) -> int:
        self._has_bar = self._is_terminal and "\x1b" in text and not text.endswith("\n")
        self._put(text)
        return len(text)

    def flush(self) -> None:
        """Do nothing, because who calls this after each line must not wait. See `drain`."""

    # ── structlog's logger ───────────────────────────────────────────────────────────────────────

    def info(self, line: str) -> None:
        self._put_line(line)

    debug = warning = info

    def error(self, line: str) -> None:
        self._put_line(line, is_error=True)

    critical = error

    # ── the queue ────────────────────────────────────────────────────────────────────────────────

    def drain(self, timeout_s: float = FLUSH_S) -> bool:
        """Wait until everything has left; False when the time was up before."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._n_waiting and self._n_reported == self.n_dropped, timeout_s)

    def _put_line(self, line: str, *, is_error: bool = False) -> None:
        """Write a line in place of a progress bar, which is soon drawn again below."""
        place = ERASE_LINE if self._has_bar else ""
        self._has_bar = False
        self._put(f"{place}{line}\n", is_error=is_error)

    def _put(self, text: str, *, is_error: bool = False) -> None:
        with self._changed:
            most = self._most + self._reserve if is_error else self._most
            if self._n_waiting + len(text) > most or (self._is_full and not is_error):
                self._is_full = True
                self.n_dropped += text.count("\n")
                return
            self._waiting.append(text)
            self._n_waiting += len(text)
            self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting)
                text = self._waiting.popleft()
            # OSError: the reader has left, or the disk is full. There is no place to report it.
            with contextlib.suppress(OSError):
                self._write_out(text.encode(self._encoding, "backslashreplace"))
            with self._changed:
                self._n_waiting -= len(text)
                if self._is_full and not self._waiting:
                    # Under the lock, so that this line is the first one after the gap.
                    self._is_full, gap, self._n_reported = False, self.n_dropped - self._n_reported, self.n_dropped
                    if gap:
                        self.on_cleared(gap)
                self._changed.notify_all()

    def _write_out(self, data: bytes) -> None:
        """Write to the descriptor itself, because Python aborts when a thread waits inside its buffered stderr."""
        while data and self._fd is not None:
            try:
                data = data[os.write(self._fd, data) :]
            except BlockingIOError:  # another user of the descriptor has made it non-blocking
                select.select([], [self._fd], [])


@contextlib.contextmanager
def in_background(stream: TextIO | None) -> Iterator[LogWriter]:
    """A writer to `stream` in place of sys.stderr; at the end what waits has FLUSH_S to leave.

    Everything that Python writes there goes through it: log lines, a progress bar, the traceback of a thread.
    """
    writer = LogWriter(stream)
    with contextlib.redirect_stderr(writer):
        try:
            yield writer
        finally:
            writer.drain()
