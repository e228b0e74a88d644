"""Stopped before it was ready: nothing was promised, so exit 0, no callback, and no process left behind."""

import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests.gguf_files import tiny_model
from tests.hub_stand_in import HubStandIn
from tests.models.downloads.puller import Puller, stocked_hub
from tests.receiver import Receiver
from tests.worker_process import WorkerProcess, eventually, gated

pytestmark = pytest.mark.process

SIGNALS = [signal.SIGTERM, signal.SIGINT]
SLOW_IMPORT = """
import os, signal, sys

os.write(2, b'{"event": "importing"}\\n')
while True:
    signal.pause()
"""
"""Stands in for a library that takes its time; the worker imports it first thing."""

WORKER = (sys.executable, "-m", "worker")
LIKE_A_SHELL = "import os, sys; os.setsid(); os.execv(sys.executable, [sys.executable, '-m', 'worker', *sys.argv[1:]])"
"""A shell gives what it starts a process group of its own, and Ctrl-C goes to all of it."""


@pytest.fixture(scope="module")
def receiver() -> Iterator[Receiver]:
    """Nobody in this file may call it."""
    with Receiver() as receiver:
        yield receiver
        assert receiver.requests() == []


def is_named_by_a_process(path: Path) -> bool:
    return any(str(path) in " ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"]))


def ends_well(worker: WorkerProcess) -> None:
    assert worker.exit_code() == 0
    assert not {"ready", "callback_sent", "error"} & {entry["event"] for entry in worker.log}, worker.log


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_while_importing_ends_the_worker_at_once(number: signal.Signals, tmp_path: Path) -> None:
    (tmp_path / "rich_click.py").write_text(SLOW_IMPORT)
    with WorkerProcess("--model", "x", environment={"PYTHONPATH": str(tmp_path)}) as worker:
        worker.wait_for("importing")
        worker.process.send_signal(number)
        ends_well(worker)


# ── while loading ────────────────────────────────────────────────────────────────────────────────


@contextmanager
def loading(folder: Path, receiver: Receiver) -> Iterator[WorkerProcess]:
    """A worker whose engine waits before it loads; afterwards no process knows of its folder any more."""
    _, command = gated(folder)
    model = tiny_model().write(folder / "tiny.gguf")
    flags = ["--model", str(model), "--port", "0", "--callback-url", receiver.url]
    with WorkerProcess(*flags, command=command) as worker:
        yield worker
    eventually(lambda: not is_named_by_a_process(folder))


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_while_loading_ends_worker_and_engine(
    number: signal.Signals, tmp_path: Path, receiver: Receiver
) -> None:
    with loading(tmp_path, receiver) as worker:
        worker.wait_for("model_load_progress")
        engine = worker.engine
        worker.process.send_signal(number)
        ends_well(worker)
        assert not engine.is_running()


def test_a_signal_while_the_engine_is_being_started_leaves_none(tmp_path: Path, receiver: Receiver) -> None:
    with loading(tmp_path, receiver) as worker:
        worker.wait_for("model_load_start")
        worker.terminate()
        ends_well(worker)


def test_signals_without_end_do_not_change_the_exit_code(tmp_path: Path, receiver: Receiver) -> None:
    """This holds in the last moments of the process too, when Python has given up its handlers."""
    with loading(tmp_path, receiver) as worker:
        worker.wait_for("model_load_progress")
        while worker.process.poll() is None:
            worker.terminate()
        ends_well(worker)


def test_shutdown_while_loading_is_obeyed(tmp_path: Path, receiver: Receiver) -> None:
    with loading(tmp_path, receiver) as worker:
        worker.listening().wait_for("model_load_progress")
        assert worker.post("/shutdown").status_code == 202
        ends_well(worker)


# ── while downloading ────────────────────────────────────────────────────────────────────────────


@contextmanager
def downloading(
    folder: Path, receiver: Receiver, hub: HubStandIn, command: Sequence[str] = WORKER
) -> Iterator[WorkerProcess]:
    """A worker that has half of its model; afterwards none of it lies under the final name."""
    hub.gate_after = 1_000_000
    models_dir = folder / "models"
    source = f'{{ kind = "url", url = "{hub.url}/files/tiny.gguf" }}'
    catalog = Puller(hub.url, models_dir, folder).catalog(source=source)
    flags = ["--model", "tiny", "--models-dir", str(models_dir), "--catalog", catalog, "--port", "0"]
    with WorkerProcess(*flags, "--callback-url", receiver.url, command=command) as worker:
        worker.listening()
        assert hub.at_gate.wait(30)
        yield worker
    eventually(lambda: not is_named_by_a_process(models_dir))
    assert not (models_dir / "tiny.gguf").exists()


@pytest.mark.parametrize("way", ["SIGTERM", "SIGINT", "Ctrl-C", "/shutdown"])
def test_a_stop_while_downloading_ends_worker_and_download(way: str, tmp_path: Path, receiver: Receiver) -> None:
    """The downloading child gets Ctrl-C too, and its end is not mistaken for a failed download."""
    command = (sys.executable, "-c", LIKE_A_SHELL) if way == "Ctrl-C" else WORKER
    with stocked_hub() as hub, downloading(tmp_path, receiver, hub, command) as worker:
        assert (worker.get("/health").status_code, worker.get("/livez").status_code) == (503, 200)
        if way == "/shutdown":
            assert worker.post(way).status_code == 202
        elif way == "Ctrl-C":
            os.killpg(worker.process.pid, signal.SIGINT)
        else:
            worker.process.send_signal(signal.Signals[way])
        ends_well(worker)
