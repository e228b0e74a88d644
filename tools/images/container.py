"""A worker in a container, driven as one on the host is (tests/worker_process.py): its log read, asked over sockets.

The container has the host's network, so that the worker's own port and the tests' receivers are where they say.
"""

import itertools
import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType

from tests.default_model import default_file
from tests.worker_process import WorkerProcess, eventually
from tools.images.building import Built
from tools.images.store import Store

HARDENED = ("--read-only", "--read-only-tmpfs=false", "--cap-drop=ALL", "--security-opt=no-new-privileges")
"""Docker's --read-only gives no writable /tmp; podman's does by default."""

PROMPT = "The capital of France is"

STOP_PATIENCE_S = 35
"""The timeout for `docker stop` in docs/images.md: the worker's own 25 s and a margin."""

ONCE_PATIENCE_S = 900.0
"""The patience for a run that ends by itself; an emulated answer takes most of a minute, one of a GPU in software
minutes."""

_numbers = itertools.count()


def once(
    built: Built, *arguments: str, program: str | None = None, options: Sequence[str] = (), volume: str = ""
) -> tuple[int, str, str]:
    """Run a container to its end: its exit code, stdout and stderr. `program` replaces the entry point, and
    `volume` the folder of this machine's models.

    Raises: subprocess.TimeoutExpired; the container is gone then too.
    """
    name = _new_name()
    entry = (f"--entrypoint={program}",) if program else ()
    run = _podman_run(name, "--no-healthcheck", *HARDENED, *entry, *options, volume=volume)
    try:
        done = built.store.run(*run, built.image.tag, *arguments, timeout_s=ONCE_PATIENCE_S)
    finally:
        _remove(built.store, name)
    return done.returncode, done.stdout, done.stderr


def python(built: Built, script: str, *, options: Sequence[str] = (), volume: str = "") -> str:
    """The output of a script in the image's own environment."""
    code, out, err = once(built, "-c", script, program="python3", options=options, volume=volume)
    assert code == 0, err
    return out.strip()


class Container(WorkerProcess):
    """Use as a context manager. `options`: podman's; by default everything that can be taken away is."""

    def __init__(self, built: Built, *arguments: str, options: Sequence[str] = HARDENED) -> None:
        self.name = _new_name()
        self._store = built.store
        # The check itself is run by hand: its timer would be systemd's, which may not be there.
        run = _podman_run(self.name, "--health-interval=disable", *built.image.here, *options)
        super().__init__(
            *("--model", default_file().name, *arguments),
            command=(*run, built.image.tag),
            environment=built.store.environment,
        )

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            super().__exit__(kind, error, trace)
        finally:
            _remove(self._store, self.name)

    def inside(self, script: str) -> str:
        """The output of a Python script that runs next to the worker as the same user."""
        return self._store.ask("podman", "exec", self.name, "python3", "-c", script).strip()

    def stop(self) -> int:
        """Stop like `docker stop`: SIGTERM, patience, SIGKILL. Returns the container's exit code."""
        self._store.ask("podman", "stop", f"--time={STOP_PATIENCE_S}", self.name)
        return self.exit_code()

    def is_healthy(self) -> bool:
        """True if the image's own HEALTHCHECK succeeds."""
        return self._store.run("podman", "healthcheck", "run", self.name).returncode == 0

    def changes(self) -> list[str]:
        """The differences from the image that `podman diff` lists, without the mounts of the runtime."""
        listed = self._store.ask("podman", "diff", self.name).splitlines()
        return [line for line in listed if line.split(maxsplit=1)[1] not in _RUNTIMES_OWN]

    def kill_engine(self) -> None:
        """SIGKILL for the engine; returns when another one serves."""
        self.inside(_KILL_ENGINE.format(signal.SIGKILL.value))
        self.wait_for("engine_restarted")
        eventually(lambda: self.get("/readyz").status_code == 200)

    def zombies(self) -> list[str]:
        """The zombie processes: they ended, and no parent has read their exit code."""
        return [line for line in self.inside(_STATES).splitlines() if line.endswith(" Z")]


_RUNTIMES_OWN = frozenset({"/etc", "/run", "/models", "/dev", "/proc", "/sys"})

_STATES = """
import pathlib
for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
    name, _, rest = path.read_text().rpartition(")")
    print(name, rest.split()[0])
"""

_KILL_ENGINE = """
import os, pathlib
for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
    if b"worker.server.process.main" in path.read_bytes().split(b"\\0"):
        os.kill(int(path.parent.name), {})
"""


def _new_name() -> str:
    return f"llorch-images-{os.getpid()}-{next(_numbers)}"


def _remove(store: Store, name: str) -> None:
    store.run("podman", "rm", "--force", "--time=0", "--ignore", name)


def _podman_run(name: str, *options: str, volume: str = "") -> tuple[str, ...]:
    models = f"{volume}:/models" if volume else f"{default_file().parent}:/models:ro"
    return ("podman", "run", "--rm", "--network=host", f"--name={name}", "--volume", models, *options)


@contextmanager
def new_volume(store: Store) -> Iterator[str]:
    """The name of a volume that no container has used."""
    name = _new_name()
    store.ask("podman", "volume", "create", name)
    try:
        yield name
    finally:
        store.run("podman", "volume", "rm", "--force", name)
