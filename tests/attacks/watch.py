"""What an attack does to others: how long /health takes meanwhile, on a fresh connection each time, and memory."""

import argparse
import http.client
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from types import TracebackType
from typing import Self, TypeVar

import psutil

from tests.default_model import default_file
from tests.worker_process import WorkerProcess, serve_default

PERIOD_S = 0.05
GIVE_UP_S = 30.0

Said = TypeVar("Said")


class Watch:
    """Asks from when it is entered until it is left; `figures` then says how it was."""

    def __init__(self, worker: WorkerProcess) -> None:
        self._port = worker.port
        self._process = psutil.Process(worker.process.pid)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._ask_again_and_again, daemon=True)
        self.latencies_s: list[float] = []
        self.n_failed = 0
        self.rss_before = self.rss_at_most = self.rss

    @property
    def rss(self) -> int:
        """Of the front."""
        return int(self._process.memory_info().rss)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join(2 * GIVE_UP_S)

    def _ask_again_and_again(self) -> None:
        while not self._stop.wait(PERIOD_S):
            began_s = time.monotonic()
            try:
                connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=GIVE_UP_S)
                connection.request("GET", "/health")
                self.n_failed += connection.getresponse().status != http.HTTPStatus.OK
                connection.close()
            except (OSError, http.client.HTTPException):
                self.n_failed += 1
            self.latencies_s.append(time.monotonic() - began_s)
            self.rss_at_most = max(self.rss_at_most, self.rss)

    def figures(self) -> str:
        latencies_ms = [1000 * latency_s for latency_s in self.latencies_s]
        return (
            f"/health: {len(latencies_ms)} asked, {self.n_failed} failed, "
            f"median {statistics.median(latencies_ms):.1f} ms, worst {max(latencies_ms):.1f} ms\n"
            f"front: {_mb(self.rss_before)} MB before, at most {_mb(self.rss_at_most)}, {_mb(self.rss)} now"
        )


def apart(work: Callable[[int], Said], port: int) -> Said:
    """`work(port)` in a process of its own, so that it takes nothing from the watching."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(work, port).result()


def _mb(n_bytes: int) -> int:
    return round(n_bytes / 1e6)


def seconds(default: float) -> float:
    """The one argument of an attack that goes on for a while."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=default)
    given: float = parser.parse_args().seconds
    return given


@contextmanager
def attacked(*flags: str) -> Iterator[tuple[WorkerProcess, Watch]]:
    """A worker of the default model and what is watched of it; the figures are printed at the end."""
    with serve_default(default_file(), *flags) as worker:
        watch = Watch(worker.ready())
        with watch:
            yield worker, watch
        sys.stdout.write(watch.figures() + "\n")
