"""A real worker process for tests: started, watched through its log, talked to over real sockets, always stopped."""

import json
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import httpx2
import psutil
import pytest

from client.child import COMMAND, Child, without_settings
from client.sse import data_of, frames_in
from tests.backends.choice import chosen
from tests.gates import Gates
from tests.gguf_files import tiny_model

Event = dict[str, Any]

PATIENCE_S = 280.0
"""The safety stop of every wait, below the limit of a test; no verdict depends on it being short."""

ONE_THREAD = {"LLORCH_THREADS": "1"}
"""Workers are started with this, unless a test says otherwise: tests run at the same time, and the two threads of a
step wait for one another at every barrier when another worker takes a processor."""


def own_environment() -> dict[str, str]:
    """This process's, without what sets a worker's settings, and with ONE_THREAD."""
    return without_settings() | ONE_THREAD


class WorkerProcess(Child):
    """A child that is killed at the end, if it has not ended by itself. It leaves no process behind."""

    patience_s = PATIENCE_S

    def __init__(
        self, *arguments: str, command: Sequence[str] = COMMAND, environment: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(*arguments, command=command, environment={**ONE_THREAD, **(environment or {})})

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        children = self._children()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
        super().__exit__(kind, error, trace)
        _, alive = psutil.wait_procs(children, timeout=PATIENCE_S)
        assert not alive, f"children outlived the worker: {alive}"

    def _children(self) -> list[psutil.Process]:
        try:
            return psutil.Process(self.process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []

    # ── the process ──────────────────────────────────────────────────────────────────────────────

    @property
    def engine(self) -> psutil.Process:
        """The engine process of the moment, real or one of the tests' (toy_engine, crashing_engine)."""
        (engine,) = (
            child
            for child in self._children()
            if any("worker.server.process.main" in word or "engine" in word for word in child.cmdline())
        )
        return engine

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def revive(self, event: str = "engine_restarted") -> Event:
        """Kill the engine and wait for the next one; the line of the event."""
        self.engine.kill()
        told: Event = self.wait_for(event)
        eventually(lambda: self.get("/readyz").status_code == httpx2.codes.OK)
        return told

    def exit_code(self) -> int:
        """Wait for the end; the rest of the log is then in `log`."""
        code = self.process.wait(PATIENCE_S)
        self._reader.join(PATIENCE_S)
        while (line := self._lines.get(timeout=PATIENCE_S)) is not None:
            self._note(line)
        self._lines.put(None)
        return code

    def failure(self) -> Event:
        """Wait for an end with exit 1; the log's one error line. Nothing but log lines was written."""
        code = self.exit_code()
        errors = [entry for entry in self.log if entry.get("level") == "error"]
        assert code == 1, (code, self.stderr)
        assert len(errors) == 1, self.stderr
        assert all(entry["event"] for entry in self.log), self.stderr
        return errors[0]

    # ── HTTP ─────────────────────────────────────────────────────────────────────────────────────

    @contextmanager
    def client(self, **options: Any) -> Iterator[httpx2.Client]:
        with httpx2.Client(base_url=self.url, timeout=PATIENCE_S, trust_env=False, **options) as client:
            yield client

    def get(self, path: str, **options: Any) -> httpx2.Response:
        with self.client() as client:
            return client.get(path, **options)

    def post(self, path: str, **options: Any) -> httpx2.Response:
        with self.client() as client:
            return client.post(path, **options)

    def health(self) -> Event:
        body: Event = self.get("/health").json()
        return body

    def metrics(self) -> dict[str, float]:
        """Samples without their worker_id label: name, or name{other="label"}."""
        samples = {}
        for line in self.get("/metrics").text.splitlines():
            if line and not line.startswith("#"):
                name, value = line.rsplit(" ", 1)
                name = re.sub(r'worker_id="[^"]*",?', "", name).replace(",}", "}").replace("{}", "")
                samples[name] = float(value)
        return samples

    def is_idle(self) -> bool:
        """No job runs or waits, and every KV cell is free."""
        health = self.health()
        return not any((health["slots_busy"], health["queue_depth"], self.metrics()["worker_kv_cells_used"]))

    def stream(self, **request: Any) -> "Stream":
        """Start a job; read it as events come. Use as a context manager."""
        return Stream(self.url, {"job_id": f"job-{next(_numbers)}", "max_tokens": 16, "temperature": 0.0, **request})

    def run(self, **request: Any) -> list[Event]:
        """A whole job: all its events."""
        with self.stream(**request) as stream:
            return list(stream)

    def text(self, **request: Any) -> str:
        return text_of(self.run(**request))

    def connect(self) -> socket.socket:
        """A bare connection, for exchanges no client library would make."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE_S)


_numbers = count(1)


class Stream:
    """One /execute exchange, event by event."""

    def __init__(self, url: str, request: Event, headers: Mapping[str, str] | None = None) -> None:
        self.job_id: str = request["job_id"]
        self._client = httpx2.Client(timeout=PATIENCE_S, trust_env=False)
        self._exchange = self._client.stream("POST", f"{url}/execute", json=request, headers=headers)

    def __enter__(self) -> "Stream":
        self.response = self._exchange.__enter__()
        self.frames = frames_in(self.response.iter_bytes())
        """Those that were not read yet, comments among them."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._exchange.__exit__(kind, error, trace)
        self._client.close()

    def __iter__(self) -> Iterator[Event]:
        if self.response.status_code != httpx2.codes.OK:
            raise AssertionError(f"{self.response.status_code}: {self.response.read().decode()}")
        for data in filter(None, map(data_of, self.frames)):
            yield json.loads(data)

    def until(self, kind: str) -> list[Event]:
        """Events up to and with the first of that type."""
        seen = []
        for event in self:
            seen.append(event)
            if event["type"] == kind:
                return seen
        raise AssertionError(f"the stream ended without {kind}: {seen}")


def eventually(predicate: Callable[[], object], patience_s: float = PATIENCE_S) -> None:
    """Ask again until the answer is true: the one place where tests pause, for state that nothing announces."""
    give_up_s = time.monotonic() + patience_s
    while not predicate():
        assert time.monotonic() < give_up_s, "it never came true"
        time.sleep(0.02)


def ended_by(send: Callable[[], object], process: subprocess.Popen[bytes]) -> int:
    """The exit code. Python notes a signal right before it waits for input, and acts on it afterwards: then it is sent
    once more.
    """
    for _ in range(10):
        send()
        with suppress(subprocess.TimeoutExpired):
            return process.wait(5)
    raise AssertionError("it did not end")


def text_of(events: Sequence[Event]) -> str:
    return "".join(event["t"] for event in events if event["type"] == "token")


def check_order(events: Sequence[Event]) -> None:
    """started first, tokens numbered 0, 1, 2, …, exactly one terminal event, last."""
    kinds = [event["type"] for event in events]
    assert kinds[0] == "started", kinds
    assert kinds[-1] in {"end", "error"}, kinds
    assert all(kind in {"token", "metrics"} for kind in kinds[1:-1]), kinds
    indexes = [event["i"] for event in events if event["type"] == "token"]
    assert indexes == list(range(len(indexes)))
    if kinds[-1] == "end":
        assert events[-1]["tokens_out"] == len(indexes)


# ── starting workers ─────────────────────────────────────────────────────────────────────────────

ONE_SLOT = ("--parallel", "1", "--scheduling", "first-come")
"""Flags with which the second job waits until the first has ended."""


def serve_default(model: Path, *arguments: str, **options: Any) -> WorkerProcess:
    """A worker on a real model, on a free port, where `.llorch-test.toml` has them run."""
    where = ("--device", chosen().backend.test_backend)
    return WorkerProcess("--model", str(model), "--port", "0", *where, *arguments, **options)


Scope = Literal["function", "module", "package"]


def serving(
    model: str,
    *arguments: str,
    scope: Scope = "module",
    environment: Mapping[str, str] | None = None,
    constants: Mapping[str, float] | None = None,
) -> Any:
    """A fixture: a ready worker on the model of the fixture that `model` names. `constants` are those of `altered`."""

    @pytest.fixture(scope=scope)
    def serving_worker(request: pytest.FixtureRequest) -> Iterator[WorkerProcess]:
        command = altered(constants=constants) if constants else COMMAND
        path = request.getfixturevalue(model)
        with serve_default(path, *arguments, command=command, environment=environment) as worker:
            yield worker.ready()

    return serving_worker


def serving_toy(*arguments: str, scope: Scope = "module", **options: Any) -> Any:
    """A fixture: a ready toy worker. `options` are those of `toy_worker`."""

    @pytest.fixture(scope=scope)
    def serving_worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerProcess]:
        with toy_worker(tmp_path_factory.mktemp("toy"), *arguments, **options) as worker:
            yield worker.ready()

    return serving_worker


def toy_worker(
    folder: Path,
    *arguments: str,
    kind: str = "",
    failing: str = "",
    constants: Mapping[str, float] | None = None,
    is_open: bool = False,
    **options: Any,
) -> WorkerProcess:
    """A worker whose engine has no model, of a kind of tests/toy_engine.py: for what the front does by itself."""
    flags = ("--model", str(tiny_model().write(folder / "tiny.gguf")), "--port", "0")
    command = altered("tests.toy_engine", *filter(None, [kind]), failing=failing, constants=constants, is_open=is_open)
    return WorkerProcess(*flags, *arguments, command=command, **options)


def altered(
    *engine: str, constants: Mapping[str, float] | None = None, failing: str = "", is_open: bool = False
) -> tuple[str, ...]:
    """The command of a real worker in which something is changed (tests/altered_worker.py); its flags follow.

    `engine` is run as `python -m` in the engine's place. `constants` have other values, each named by its module
    within `worker` and its own name. `failing` is a key of FAILURES: that part fails once the model is loaded. A worker
    that `is_open` answers what browsers send for any page, under any host.
    """
    changes = {"engine": engine, "constants": constants or {}, "failing": failing, "is_open": is_open}
    return (sys.executable, "-m", "tests.altered_worker", json.dumps(changes))


def gated(folder: Path) -> tuple[Gates, tuple[str, ...]]:
    """Gates of which `load` is shut, and the command of a worker whose engines stop there."""
    gates = Gates(folder)
    gates.shut("load")
    return gates, altered("tests.crashing_engine", str(folder))
