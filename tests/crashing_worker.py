"""A real front before `tests.crashing_engine`, and its gates, for tests of engine deaths."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.crashing_engine import STALL
from tests.gates import Gates
from tests.worker_process import Event, Stream, WorkerProcess, gated, serve_default

QUESTION = "The capital of France is"


class CrashingWorker:
    """A worker that some prompts make die. `worker` speaks to it; `gates` say when."""

    def __init__(self, worker: WorkerProcess, gates: Gates) -> None:
        self.worker = worker
        self.gates = gates

    @property
    def n_restarts(self) -> int:
        return int(self.worker.metrics()["worker_engine_restarts_total"])

    def answer(self) -> str:
        """The greedy answer to the one question; every engine gives the same."""
        return self.worker.text(prompt=QUESTION, max_tokens=8)

    @contextmanager
    def streaming_job(self) -> Iterator[Stream]:
        """A job that has sent a token and sends the next when the gate `decode` opens."""
        self.gates.shut("decode")
        with self.worker.stream(prompt=f"{STALL}{QUESTION}") as stream:
            stream.until("token")
            yield stream

    def replaced(self) -> Event:
        """Wait for the next death and the new engine's model; the log line of the death."""
        death = self.worker.wait_for("engine_restarted")
        self.worker.wait_for("model_load_complete")
        return death


@contextmanager
def crashing_worker(model: Path, *arguments: str, shut: tuple[str, ...] = ()) -> Iterator[CrashingWorker]:
    """A worker that has just been started; its gates are open but for those that are `shut`."""
    with TemporaryDirectory() as folder:
        gates, command = gated(Path(folder))
        gates.open("load")
        gates.shut(*shut)
        with serve_default(model, "--ctx-size", "2048", *arguments, command=command) as worker:
            yield CrashingWorker(worker, gates)


def check_interrupted(events: list[Event]) -> None:
    """The end of a job that had sent a token when the engine died."""
    assert (events[-1]["type"], events[-1]["code"]) == ("error", "ENGINE_RESTARTED")
    assert events[-1]["retriable"] is True
