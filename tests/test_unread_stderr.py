"""A worker with much to say to a stderr that nobody reads (docs/protocol.md#metrics-and-logs)."""

import threading
from pathlib import Path
from types import TracebackType

import pytest

from tests.gguf_files import tiny_model
from tests.toy_engine import TALKATIVE
from tests.worker_process import PATIENCE_S, WorkerProcess, altered, check_order

pytestmark = pytest.mark.process

N_TOKENS = 6
"""The engine writes as many MiB to its stderr, more than the front keeps."""


class UnreadWorker(WorkerProcess):
    """Its log is read until it is ready, and then when the test says so."""

    def __init__(self, *arguments: str) -> None:
        super().__init__(*arguments, command=altered("tests.toy_engine", TALKATIVE))
        self._may_read = threading.Event()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for raw in self.process.stderr:
            self._lines.put(raw.decode())
            if b'"event":"ready"' in raw:
                self._may_read.wait()
        self._lines.put(None)

    def read_on(self) -> None:
        self._may_read.set()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.read_on()
        super().__exit__(kind, error, trace)


def test_a_worker_whose_log_is_not_read_answers_and_a_reader_that_comes_back_learns_how_many_lines_it_has_missed(
    tmp_path: Path,
) -> None:
    """It has said more than its pipe and its queue hold."""
    model = tiny_model().write(tmp_path / "tiny.gguf")
    with UnreadWorker("--model", str(model), "--port", "0") as unread:
        unread.ready()
        for _ in range(2):
            events = unread.run(prompt="abc", max_tokens=N_TOKENS)
            check_order(events)
            assert events[-1]["type"] == "end"
        assert unread.metrics()["worker_log_lines_dropped_total"] > 0
        assert unread.health()["status"] == "healthy"
        unread.read_on()
        missed = unread.wait_for("log_lines_dropped")
        assert missed["level"] == "warning"
        assert missed["lines"] == unread.metrics()["worker_log_lines_dropped_total"]
        unread.terminate()
        assert unread.exit_code() == 0
        told = [entry["event"] for entry in unread.log]
        assert told[-2:] == ["shutdown", "shutdown"]
        assert all(told), "half a line, or none of ours"


def test_it_ends_though_its_log_is_never_read(tmp_path: Path) -> None:
    model = tiny_model().write(tmp_path / "tiny.gguf")
    with UnreadWorker("--model", str(model), "--port", "0") as unread:
        unread.ready().run(prompt="abc", max_tokens=N_TOKENS)
        unread.terminate()
        assert unread.process.wait(PATIENCE_S) == 0
