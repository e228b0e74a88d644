"""A worker as a child process: its start, its log as it is written, and its end.

Owns the child's life. Refuses to know what a worker is asked. The log is read by a thread of its own, so that the child
never waits for its reader.
"""

import queue
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import msgspec

from worker.config.environment import environment
from worker.errors import WorkerError

COMMAND = (sys.executable, "-m", "worker")

Event = dict[str, Any]

START_S = 600.0
"""A large model is read from a disk."""
END_S = 30.0
"""An idle worker ends at once; its own limit for jobs is 25 s."""
_N_LAST_WORDS = 20


class NotServed(WorkerError):
    """There is no worker to ask: one line that says why."""


def without_settings() -> dict[str, str]:
    """The environment without what sets a worker's settings: its flags alone decide what it does."""
    return {name: value for name, value in environment().items() if not name.startswith("LLORCH_")}


def free_port() -> int:
    """A free port of the loopback, for a program that does not report its port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    return port


def end(process: "subprocess.Popen[bytes]") -> None:
    """SIGTERM, patience, SIGKILL. Idempotent; the process is gone afterwards."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
    process.wait(END_S)


class Child:
    """`python -m worker` with JSON logs. Use as a context manager; `ready()` waits until jobs are taken."""

    patience_s = START_S
    """The longest silence of the log while the caller waits for an event."""

    def __init__(
        self,
        *arguments: str,
        command: Sequence[str] = COMMAND,
        environment: Mapping[str, str] | None = None,
        has_own_session: bool = False,
    ) -> None:
        """`environment` is added to this process's, without its LLORCH_*. With a session of its own the child does not
        get a terminal's Ctrl-C.
        """
        self._argv = [*command, *arguments, "--log-format", "json"]
        self._environment = {**without_settings(), **(environment or {})}
        self._has_own_session = has_own_session
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self.log: list[Event] = []
        """The lines that were read; one that is no JSON is `{"event": "", "line": …}`."""
        self.stderr: list[str] = []

    def __enter__(self) -> Self:
        self.process = subprocess.Popen(
            self._argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=self._environment,
            start_new_session=self._has_own_session,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        end(self.process)
        self._reader.join(self.patience_s)
        assert self.process.stderr is not None
        self.process.stderr.close()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for raw in self.process.stderr:
            self._lines.put(raw.decode("utf-8", "replace"))
        self._lines.put(None)

    def wait_for(self, event: str, **fields: object) -> Event:
        """The next log line of that event, with those fields. Raises: NotServed where none comes."""
        while (line := self._next_line(event)) is not None:
            entry = self._note(line)
            if entry.get("event") == event and fields.items() <= entry.items():
                return entry
        self._lines.put(None)
        raise NotServed(f"the worker ended before it was {event}: {self._last_words() or 'it wrote nothing'}")

    def listening(self) -> Self:
        """Wait until it has an address."""
        self.url: str = self.wait_for("listening")["url"]
        return self

    def ready(self) -> Self:
        """Wait until it takes jobs. Raises: NotServed."""
        self.listening()
        self.wait_for("ready")
        return self

    def drain_log(self) -> None:
        """Forget the lines that were written so far: a child that runs for days writes many."""
        while not self._lines.empty() and (line := self._lines.get()) is not None:
            self._note(line)
        self.log.clear()
        self.stderr.clear()

    @property
    def port(self) -> int:
        match = re.fullmatch(r"http://.+:(\d+)", self.url)
        assert match is not None
        return int(match[1])

    def _next_line(self, event: str) -> str | None:
        try:
            return self._lines.get(timeout=self.patience_s)
        except queue.Empty:
            raise NotServed(f"the worker was not {event}, and wrote nothing for {self.patience_s:g} s") from None

    def _note(self, line: str) -> Event:
        self.stderr.append(line)
        try:
            entry: Event = msgspec.json.decode(line, type=dict[str, Any])
        except msgspec.DecodeError:
            entry = {"event": "", "line": line}
        self.log.append(entry)
        return entry

    def _last_words(self) -> str:
        words = [str(entry.get("message") or entry.get("line", "")).strip() for entry in self.log]
        return " | ".join([word for word in words if word][-_N_LAST_WORDS:])
