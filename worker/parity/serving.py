"""A running worker as its clients see it: started as a child process or found at a URL, asked over HTTP.

Owns the child's life (its start, its address from its log, that it is ready, its end) and the exchange. Refuses to
know what the answers should be. Any thread may ask; a thread of its own reads the child's log.
"""

import queue
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx2
import msgspec

from worker.config.settings import environment
from worker.errors import WorkerError
from worker.parity.answers import Answer, Event, Request, answer_of, events, unanswered

N_NEIGHBOURS = 8

_START_S = 600.0
"""A large model is read from a disk."""
_END_S = 30.0
"""An idle worker ends at once; its own limit for jobs is 25 s."""
_TIMEOUT_S = 120.0
"""Of a silence on the wire; a job may wait in the queue behind others."""
_KEPT_LINES = 20
_SELF_TEST_S = 10.0
"""An idle worker takes up to 5 s for its self-test."""
_ASK_AGAIN_S = 0.25


class NotServed(WorkerError):
    """There is no worker to ask: one line that says why."""


UNANSWERED = (NotServed, httpx2.HTTPError, msgspec.DecodeError)
"""What an exchange can fail with: a refusal, the network, bytes that are no event."""


class Facts(msgspec.Struct, frozen=True):
    """What `/health` tells that the questions depend on."""

    quant_kind: str
    context_length: int
    slots_total: int
    vram_bytes: int
    """0 on a CPU."""

    @property
    def kind(self) -> str:
        """`Q4_1_cpu`, `Q8_0_gpu`: what decides whether rows are the same bits in any company."""
        return f"{self.quant_kind}_{'gpu' if self.vram_bytes else 'cpu'}"


class SelfTest(msgspec.Struct, frozen=True):
    """What `/health` tells of the worker's own test of determinism; an older worker has none."""

    determinism: str = "untested"
    determinism_differences: tuple[str, ...] = ()

    @property
    def told(self) -> str:
        """For people: `same`; `differs beside 7 others`."""
        return " ".join((self.determinism, ", ".join(self.determinism_differences))).strip()


class ServedWorker:
    """A worker to ask; use as a context manager. Made by `of` (a child process) or `at` (somebody else's worker)."""

    def __init__(self, child: "_Child | None", url: str, token: str | None) -> None:
        self._child = child
        self.url = url
        self._headers = {"authorization": f"Bearer {token}"} if token else {}

    @classmethod
    def of(cls, model: Path, *arguments: str) -> Self:
        """A worker on `model`, on a free port of the loopback; `arguments` are further flags of `serve`.

        It has a slot for one job and its eight neighbours. Of the environment it gets all but LLORCH_*.
        """
        return cls(_Child(model, arguments), "", None)

    @classmethod
    def at(cls, url: str, token: str | None = None) -> Self:
        """The worker that listens at `url`, as it is; it is not ended."""
        return cls(None, url, token)

    def __enter__(self) -> Self:
        """Raises: NotServed when it does not start, or is not ready."""
        self.url = self._child.start() if self._child else self.url
        self._client = httpx2.Client(base_url=self.url, timeout=_TIMEOUT_S, trust_env=False, headers=self._headers)
        try:
            self.facts = self._read_facts()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()
        if self._child:
            self._child.end()

    def ask(self, request: Request) -> Answer:
        """The whole answer to one job. A refusal or a broken connection is an answer without a terminal event."""
        told: list[Event] = []
        try:
            with self.stream(request) as stream:
                told.extend(stream)
        except UNANSWERED as error:
            return unanswered(request.job_id, str(error) or type(error).__name__)
        return answer_of(request.job_id, told)

    @contextmanager
    def stream(self, request: Request) -> Iterator[Iterator[Event]]:
        """The events of one job as they come; leaving early closes the connection, which cancels the job.

        Raises: UNANSWERED; NotServed is a refusal.
        """
        body = msgspec.json.encode(request)
        headers = {"content-type": "application/json"}
        with self._client.stream("POST", "/execute", content=body, headers=headers) as response:
            if response.status_code != httpx2.codes.OK:
                raise NotServed(f"job {request.job_id} was refused: {response.status_code} {response.read().decode()}")
            yield events(response.iter_bytes())

    def cancel(self, job_id: str) -> None:
        """Ask for the job's end; its stream then ends with CANCELLED. Raises: httpx2.HTTPError."""
        self._client.post("/cancel", json={"job_id": job_id}).raise_for_status()

    def self_test(self) -> SelfTest:
        """The self-test's verdict, waited for: it is made when the worker is idle. `untested` when it does not come."""
        give_up_s = time.monotonic() + _SELF_TEST_S
        found = self._read_self_test()
        while found.determinism == "untested" and time.monotonic() < give_up_s:
            time.sleep(_ASK_AGAIN_S)
            found = self._read_self_test()
        return found

    def _read_self_test(self) -> SelfTest:
        try:
            return msgspec.json.decode(self._client.get("/health").content, type=SelfTest)
        except (httpx2.HTTPError, msgspec.DecodeError):
            return SelfTest()

    def _read_facts(self) -> Facts:
        try:
            ready = self._client.get("/readyz")
            if ready.status_code != httpx2.codes.OK:
                raise NotServed(
                    f"the worker at {self.url} is not ready ({ready.status_code}): wait until /readyz says 200"
                )
            return msgspec.json.decode(self._client.get("/health").content, type=Facts)
        except (httpx2.HTTPError, msgspec.DecodeError) as error:
            raise NotServed(f"{self.url} is no worker that can be asked: {error}") from None


_AWAITED = ("listening", "ready")


class _LogLine(msgspec.Struct, frozen=True):
    event: str
    url: str = ""
    message: str = ""


class _Child:
    """`python -m worker` with JSON logs, and the thread that reads them."""

    def __init__(self, model: Path, arguments: tuple[str, ...]) -> None:
        self._argv = [
            *(sys.executable, "-m", "worker", "--model", str(model.absolute()), "--host", "127.0.0.1", "--port", "0"),
            *("--log-format", "json", "--parallel", str(N_NEIGHBOURS + 1), *arguments),
        ]
        self._lines: queue.SimpleQueue[_LogLine | None] = queue.SimpleQueue()
        self._last: deque[str] = deque(maxlen=_KEPT_LINES)

    def start(self) -> str:
        """The URL at which it takes jobs. Raises: NotServed."""
        kept = {name: value for name, value in environment().items() if not name.startswith("LLORCH_")}
        self._process = subprocess.Popen(
            self._argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=kept
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        try:
            give_up_s = time.monotonic() + _START_S
            url = self._wait_for("listening", give_up_s).url
            self._wait_for("ready", give_up_s)
        except BaseException:
            self.end()
            raise
        return url

    def end(self) -> None:
        """Idempotent; it is gone afterwards."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(_END_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self._process.wait(_END_S)
        self._reader.join(_END_S)
        assert self._process.stderr is not None
        self._process.stderr.close()

    def _read(self) -> None:
        """Until its end: a pipe that nobody reads would stop the worker."""
        assert self._process.stderr is not None
        decoder = msgspec.json.Decoder(_LogLine)
        for raw in self._process.stderr:
            try:
                line = decoder.decode(raw)
            except msgspec.DecodeError:
                line = _LogLine("", message=raw.decode("utf-8", "replace").strip())
            if line.message or line.event in _AWAITED:
                self._lines.put(line)
        self._lines.put(None)

    def _wait_for(self, event: str, give_up_s: float) -> _LogLine:
        while True:
            try:
                line = self._lines.get(timeout=max(0.0, give_up_s - time.monotonic()))
            except queue.Empty:
                raise NotServed(f"the worker was not {event} after {_START_S:g} s") from None
            if line is None:
                raise NotServed(f"the worker ended before it was {event}: {' | '.join(self._last) or 'no word'}")
            if line.message:
                self._last.append(line.message)
            if line.event == event:
                return line
