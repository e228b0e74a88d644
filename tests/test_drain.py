"""Drain: a worker that was told to stop finishes what it accepted, takes nothing new, and says so while it does.

One slot, so that jobs queue. A job of LONG tokens never ends by itself within a test.
"""

import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests.worker_process import ONE_SLOT, Stream, WorkerProcess, check_order, eventually, serve_default

pytestmark = [pytest.mark.process, pytest.mark.model]

STORY = "Once upon a time, in a small village by the sea, there lived"
LONG = 2000

WORKER = (sys.executable, "-m", "worker")
NEW_NAMESPACE = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")


@contextmanager
def one_slot(model: Path, *flags: str, **options: tuple[str, ...]) -> Iterator[WorkerProcess]:
    """A job that waits does so until the one before has ended."""
    with serve_default(model, *ONE_SLOT, *flags, **options) as worker:
        yield worker.ready()


def last_of(stream: Stream) -> dict[str, object]:
    return list(stream)[-1]


# ── what goes on ─────────────────────────────────────────────────────────────────────────────────


def test_every_accepted_job_is_finished_before_exit_0(shallow_model: Path) -> None:
    with one_slot(shallow_model, "--prompt-lookup", "off") as worker:
        with (
            worker.stream(prompt=STORY, max_tokens=1000, ignore_eos=True) as running,
            worker.stream(prompt="Hello", max_tokens=4) as queued,
            worker.stream(prompt="1, 2, 3,", max_tokens=4) as last,
        ):
            seen = running.until("token")
            worker.terminate()
            worker.wait_for("shutdown", jobs=3)
            answers = [[*seen, *running], list(queued), list(last)]
        assert worker.exit_code() == 0
    for events, n_tokens in zip(answers, (1000, 4, 4), strict=True):
        check_order(events)
        assert (events[-1]["stop_reason"], events[-1]["tokens_sampled"]) == ("MAX_TOKENS", n_tokens)
    assert worker.log[-1]["exit_code"] == 0
    outcomes = [entry["outcome"] for entry in worker.log if entry["event"] == "execute_end"]
    assert outcomes == ["success"] * 3


# The answer and the two other paths of /shutdown are in server/web/test_other_pages.py.
@pytest.mark.parametrize("way", ["SIGTERM", "SIGINT", "/shutdown"])
def test_while_draining_the_worker_answers_but_takes_nothing_new(way: str, shallow_model: Path) -> None:
    with one_slot(shallow_model) as worker:
        engine = worker.engine
        with (
            worker.stream(prompt=STORY, max_tokens=LONG) as running,
            worker.stream(prompt=STORY, max_tokens=LONG) as unwanted,
            worker.stream(prompt="Hello", max_tokens=2) as queued,
        ):
            running.until("token")
            assert "connection" not in worker.get("/health").headers
            if way == "/shutdown":
                assert worker.post(way).status_code == 202
            else:
                worker.process.send_signal(signal.Signals[way])
            worker.wait_for("shutdown", jobs=3)
            check_answers_of_a_draining(worker)
            check_refusal(worker)
            assert worker.post("/cancel", json={"job_id": unwanted.job_id}).status_code == 202
            assert worker.post(f"/cancel/{running.job_id}").status_code == 202
            for cancelled in (last_of(unwanted), last_of(running)):
                assert (cancelled["code"], cancelled["retriable"]) == ("CANCELLED", False)
            assert last_of(queued)["stop_reason"] == "MAX_TOKENS"
        assert worker.exit_code() == 0
        assert not engine.is_running()


def check_answers_of_a_draining(worker: WorkerProcess) -> None:
    """A client that keeps its connection would otherwise find it closed without a word."""
    eventually(lambda: worker.get("/health").headers.get("connection") == "close")
    health = worker.get("/health")
    assert (health.status_code, health.json()["status"], health.json()["state"]) == (200, "healthy", "draining")
    assert worker.get("/v1/ready").json() == {"ready": False, "state": "draining", "model_loaded": True}
    assert (worker.get("/readyz").status_code, worker.get("/livez").status_code) == (503, 200)
    assert worker.metrics()["worker_requests_running"] == 1


def check_refusal(worker: WorkerProcess) -> None:
    """It comes after the fields and before the deadline."""
    late, unreadable = {"job_id": "late", "prompt": "Hi", "max_tokens": 1}, {"x-deadline": "soon"}
    fields = worker.post("/execute", json=late | {"max_tokens": 0}, headers=unreadable)
    assert (fields.status_code, list(fields.json())) == (400, ["errors"])
    refusal = worker.post("/execute", json=late, headers=unreadable)
    assert (refusal.status_code, list(refusal.json())) == (503, ["code", "message", "retriable"])
    assert (refusal.json()["code"], refusal.json()["retriable"]) == ("WORKER_DRAINING", True)


# ── how it ends ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("timeout", "exit_code"), [("0.5", 0), ("600", 1)], ids=["time-out", "second signal"])
def test_the_time_out_ends_the_rest_with_exit_0_and_a_second_signal_at_once_with_exit_1(
    shallow_model: Path, timeout: str, exit_code: int
) -> None:
    with one_slot(shallow_model, "--shutdown-timeout-sec", timeout) as worker:
        engine = worker.engine
        with worker.stream(prompt=STORY, max_tokens=LONG) as running, worker.stream(prompt=STORY) as queued:
            seen = running.until("token")
            worker.terminate()
            worker.wait_for("shutdown", jobs=2)
            if exit_code:
                worker.process.send_signal(signal.SIGINT)
            answers = [[*seen, *running], list(queued)]
        assert worker.exit_code() == exit_code
        assert not engine.is_running()
    for events in answers:
        check_order(events)
        assert (events[-1]["code"], events[-1]["retriable"]) == ("CANCELLED", True)
    assert [event["type"] for event in answers[1]] == ["started", "error"]
    assert worker.log[-1]["exit_code"] == exit_code


def test_an_engine_that_does_not_move_does_not_hold_up_the_exit(shallow_model: Path) -> None:
    with one_slot(shallow_model, "--shutdown-timeout-sec", "0.5") as worker:
        engine = worker.engine
        with worker.stream(prompt=STORY, max_tokens=LONG) as running:
            running.until("token")
            engine.suspend()
            worker.terminate()
            assert last_of(running)["code"] == "CANCELLED"
        assert worker.exit_code() == 0
        assert not engine.is_running()


def test_282_an_idle_worker_leaves_at_once_whatever_is_connected(shallow_model: Path) -> None:
    """An idle connection, and one whose request never becomes complete."""
    with one_slot(shallow_model, "--shutdown-timeout-sec", "600") as worker:
        with worker.connect() as idle, worker.connect() as slow:
            idle.sendall(b"GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
            assert idle.recv(12) == b"HTTP/1.1 200"
            slow.sendall(b"POST /execute HTTP/1.1\r\nHost: x\r\nContent-Le")
            worker.terminate()
            assert worker.exit_code() == 0
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", worker.port))


# ── as the first process of a container ──────────────────────────────────────────────────────────


@pytest.fixture
def as_pid_1() -> tuple[str, ...]:
    """A command prefix that makes the worker process 1, for whom signals without a handler do not exist."""
    if shutil.which("unshare") is None:
        pytest.skip("there is no unshare to make a PID namespace with")
    attempt = subprocess.run([*NEW_NAMESPACE, "true"], capture_output=True, text=True, check=False)
    if attempt.returncode != 0:
        pytest.skip(f"no PID namespace may be made here: {attempt.stderr.strip()}")
    return NEW_NAMESPACE


def pid_1_of(worker: WorkerProcess) -> psutil.Process:
    (process,) = psutil.Process(worker.process.pid).children()
    return process


@pytest.mark.parametrize("signals", [[signal.SIGTERM], [signal.SIGINT, signal.SIGTERM]])
def test_as_pid_1_a_signal_drains_with_exit_0_and_a_second_one_is_exit_1(
    as_pid_1: tuple[str, ...], shallow_model: Path, signals: list[signal.Signals]
) -> None:
    is_second = len(signals) == 2
    with one_slot(shallow_model, command=(*as_pid_1, *WORKER)) as worker:
        with worker.stream(prompt=STORY, max_tokens=LONG if is_second else 400) as stream:
            pid_1_of(worker).send_signal(signals[0])
            worker.wait_for("shutdown", jobs=1)
            for number in signals[1:]:
                pid_1_of(worker).send_signal(number)
            assert last_of(stream).get("code") == ("CANCELLED" if is_second else None)
        assert worker.exit_code() == int(is_second)


def test_as_pid_1_the_other_exit_codes_are_the_same(as_pid_1: tuple[str, ...], shallow_model: Path) -> None:
    command = (*as_pid_1, *WORKER)
    with WorkerProcess("--model", "no-such-model", command=command) as worker:
        assert worker.failure()["code"] == "MODEL_NOT_FOUND"
    with WorkerProcess("--port", "none", command=command) as worker:
        assert worker.exit_code() == 2
    with serve_default(shallow_model, command=command) as worker:
        worker.wait_for("model_load_start")
        pid_1_of(worker).terminate()
        assert worker.exit_code() == 0
