"""Lines on their way to a stderr that is read late, slowly, or never: nobody waits, and what is lost is counted."""

import contextlib
import fcntl
import json
import os
import sys
from collections.abc import Iterator
from typing import TextIO

import pytest

from tests.observe.log_lines import logging_is_put_back  # noqa: F401 - pytest finds the fixture by its name
from tests.worker_process import PATIENCE_S
from worker.observe.log_lines import Level, get_logger
from worker.observe.log_setup import configure
from worker.observe.log_writer import LogWriter, in_background

PIPE_BYTES = 4096
"""The smallest pipe Linux makes."""

LINE = f"line-{0:0>99}\n"
MOST, RESERVE = 20 * len(LINE), 1000


class Pipe:
    """A stderr that is read when the test says so."""

    def __init__(self) -> None:
        self.reader, writer = os.pipe()
        os.set_blocking(self.reader, False)
        if hasattr(fcntl, "F_SETPIPE_SZ"):
            fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        self.stream: TextIO = os.fdopen(writer, "w")

    def clog(self) -> None:
        """Leave no room: the next byte waits for a reader."""
        fd = self.stream.fileno()
        os.set_blocking(fd, False)
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(fd, b"\n" * PIPE_BYTES)
        os.set_blocking(fd, True)

    def read_all(self, writer: LogWriter) -> list[str]:
        """Everything that waits, read as it comes, without what clogged the pipe."""
        received = self._read()
        while not writer.drain(0.01):
            received += self._read()
        return (received + self._read()).decode().split()

    def close(self, writer: LogWriter) -> None:
        """Let what waits fail first: the next pipe gets the descriptor's number, and would get its lines too."""
        os.close(self.reader)
        assert writer.drain(PATIENCE_S)
        self.stream.close()

    def _read(self) -> bytes:
        try:
            return os.read(self.reader, 1024 * 1024)
        except BlockingIOError:
            return b""


@contextlib.contextmanager
def unread() -> Iterator[tuple[Pipe, LogWriter]]:
    pipe = Pipe()
    pipe.clog()
    writer = LogWriter(pipe.stream, most=MOST, reserve=RESERVE)
    writer.on_cleared = lambda n_lines: writer.info(f"gap-of-{n_lines}")
    try:
        yield pipe, writer
    finally:
        pipe.close(writer)


def fill(writer: LogWriter, *, at_least: int = 1) -> int:
    """Write numbered lines until so many were dropped; how many there were in all."""
    n_lines = 0
    while writer.n_dropped < at_least:
        writer.info(f"line-{n_lines:0>99}")
        n_lines += 1
    return n_lines


def read_of(controller: int, end: bytes) -> bytes:
    """Return what a terminal shows up to `end`; the kernel hands it over in pieces, and later than it was written."""
    shown = b""
    while not shown.endswith(end):
        shown += os.read(controller, 4096)
    return shown


def numbers(lines: list[str]) -> list[int]:
    return [int(line.removeprefix("line-")) for line in lines]


def test_a_reader_that_never_reads_delays_no_line_and_the_end_not_for_long() -> None:
    with unread() as (_, writer):
        assert fill(writer, at_least=1000) == 1000 + MOST // len(LINE)
        assert not writer.drain(0.01)


def test_what_is_lost_is_one_gap_with_its_number_and_the_next_counts_from_zero() -> None:
    with unread() as (pipe, writer):
        n_lines = fill(writer, at_least=5)
        *kept, last = pipe.read_all(writer)
        assert (numbers(kept), last) == (list(range(n_lines - 5)), "gap-of-5")
        writer.info("after")
        assert pipe.read_all(writer) == ["after"]
        pipe.clog()
        fill(writer, at_least=12)
        assert pipe.read_all(writer)[-1] == "gap-of-7"
        assert writer.n_dropped == 12


def test_an_error_comes_out_in_its_place_after_a_flood_that_did_not() -> None:
    with unread() as (pipe, writer):
        fill(writer, at_least=10)
        writer.error("the-reason-of-the-end")
        writer.info("one-more-of-the-flood")
        lines = pipe.read_all(writer)
        assert lines[-2:] == ["the-reason-of-the-end", "gap-of-11"]
        assert "one-more-of-the-flood" not in lines


def test_errors_too_have_a_bound() -> None:
    with unread() as (pipe, writer):
        fill(writer)
        for _ in range(100):
            writer.error("x" * 99)
        assert writer.n_dropped == 1 + 100 - RESERVE // 100
        assert pipe.read_all(writer).count("x" * 99) == RESERVE // 100


def test_a_bar_that_is_not_drawn_is_no_lost_line() -> None:
    with unread() as (pipe, writer):
        fill(writer)
        writer.write("\r40%")
        assert writer.n_dropped == 1
        assert "40%" not in pipe.read_all(writer)


def test_a_descriptor_that_another_made_non_blocking_loses_nothing() -> None:
    pipe = Pipe()
    os.set_blocking(pipe.stream.fileno(), False)
    writer = LogWriter(pipe.stream)
    long = "x" * 3 * PIPE_BYTES
    writer.info(long)
    writer.info("last")
    assert pipe.read_all(writer) == [long, "last"]
    pipe.close(writer)


def test_a_reader_that_has_left_or_never_was_does_no_harm() -> None:
    pipe = Pipe()
    os.close(pipe.reader)
    writer = LogWriter(pipe.stream)
    writer.info("into the void")
    assert writer.drain(PATIENCE_S)
    pipe.stream.close()
    writer = LogWriter(None)
    writer.error("x")
    assert writer.drain(PATIENCE_S)
    assert not writer.isatty()


def test_what_an_encoding_cannot_say_is_escaped() -> None:
    reader, fd = os.pipe()
    with os.fdopen(fd, "w", encoding="ascii") as stream:
        writer = LogWriter(stream)
        writer.info("ready: é")
        assert writer.drain(PATIENCE_S)
    assert os.read(reader, 100) == b"ready: \\xe9\n"
    os.close(reader)


def test_all_that_python_writes_to_stderr_goes_through_the_writer_and_is_out_at_the_end() -> None:
    pipe, before = Pipe(), sys.stderr
    with in_background(pipe.stream) as writer:
        assert sys.stderr is not before
        configure("json", "w-1", writer)
        sys.stderr.write("a traceback, say\n")
        get_logger().error("error", code="X")
    assert sys.stderr is before
    first, second = os.read(pipe.reader, PIPE_BYTES).decode().splitlines()
    assert first == "a traceback, say"
    assert json.loads(second)["code"] == "X"
    pipe.close(writer)


@contextlib.contextmanager
def on_a_terminal() -> Iterator[tuple[LogWriter, int]]:
    controller, terminal = os.openpty()
    with os.fdopen(terminal, "w") as stream:
        yield LogWriter(stream), controller
    os.close(controller)


def test_a_terminal_is_known_as_one_through_the_writer() -> None:
    with on_a_terminal() as (writer, controller):
        configure(None, "w-1", writer)
        get_logger().info("ready")
        shown = read_of(controller, b"\n")
    assert b"\x1b[" in shown
    assert not shown.startswith(b"{")


def test_a_line_takes_the_place_of_a_bar_and_a_bar_that_is_gone_is_not_missed() -> None:
    with on_a_terminal() as (writer, controller):
        writer.write("\x1b[32m40 %\x1b[0m")
        writer.info("first")
        writer.info("second")
        shown = read_of(controller, b"second\r\n")
    assert shown == b"\x1b[32m40 %\x1b[0m\r\x1b[2Kfirst\r\nsecond\r\n"


@pytest.mark.parametrize("level", ["info", "warning"])
def test_the_gap_is_reported_in_the_form_of_all_lines(level: Level) -> None:
    with unread() as (pipe, writer):
        configure("json", "w-1", writer, level=level)
        while not writer.n_dropped:
            get_logger().warning("ready", note="x" * 100)
        last = json.loads(pipe.read_all(writer)[-1])
        assert (last["event"], last["level"], last["lines"]) == ("log_lines_dropped", "warning", writer.n_dropped)
        assert last["worker_id"] == "w-1"
