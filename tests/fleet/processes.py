"""Two workers behind one address, as their users start them: replicas of Ray Serve, or behind vllm-router.

Ray lives in `.clients/fleet` and the router in `.clients/router`, environments without the worker; the workers in the
one of the tests.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx2
import psutil

from client.child import free_port
from tests.clients.environments import environment
from tests.clients.v1 import ask, content, user
from tests.worker_process import PATIENCE_S, WorkerProcess, eventually, own_environment

ROOT = Path(__file__).parents[2]
START_S = 600.0
"""A dozen processes start, each of which imports Ray."""
FLAGS = ("--ctx-size", "8192", "--device", "cpu", "--threads", "1")


LONG = 2000
"""Tokens of a job that lasts for seconds."""
SYSTEM = "You are one of many assistants, and the one for gardens. " * 8


class Fleet(WorkerProcess):
    """It answers at `url` as a worker does; `process` is the one that was started."""

    def __init__(self, url: str, process: "subprocess.Popen[bytes]") -> None:
        self.url = url
        self.process = process

    def workers(self) -> list[psutil.Process]:
        """The fronts of all workers that it has started, in no order that matters."""
        return [child for child in self._children() if _is_worker(child)]

    def answers(self, path: str) -> bool:
        """True if it is 200."""
        try:
            return self.get(path).status_code == httpx2.codes.OK
        except httpx2.HTTPError:
            return False

    def wait_for_workers(self, n_workers: int) -> None:
        """Wait until this number of workers take jobs."""
        eventually(lambda: self.answers("/metrics") and len(self.worker_ids()) == n_workers, START_S)

    def worker_ids(self) -> set[str]:
        """The names of all workers that its metrics are about."""
        lines = self.get("/metrics").text.splitlines()
        return {line.split('worker_id="')[1].split('"')[0] for line in lines if 'worker_id="' in line}


def check_conversations_stay(fleet: Fleet, n_conversations: int) -> None:
    """Each of two prompts in turn stays where its beginning was read; round robin or chance would move them."""
    said = [[{"role": "system", "content": f"{number} {SYSTEM}"}] for number in range(n_conversations)]
    known = [0] * len(said)
    for turn in range(4):
        for number, messages in enumerate(said):
            messages.extend(user(f"Question {turn}: what is {turn} and {number}?"))
            answer = ask(fleet, messages=messages, max_tokens=8)
            assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] >= known[number] - 1, (turn, number)
            known[number] = answer["usage"]["prompt_tokens"]
            messages.append({"role": "assistant", "content": content(answer)})


@contextmanager
def ray_fleet(model: Path, *flags: str, workers: dict[str, Any] | None = None, **options: Any) -> Iterator[Fleet]:
    """Ready. `workers` are options of the deployment `Worker`, `options` the application's."""
    port = free_port()
    arguments = {
        "command": f"{sys.executable} -m worker",
        "flags": " ".join(["--model", str(model), *FLAGS, *flags]),
        "cpus": 0,
        **options,
    }
    config = {
        "http_options": {"host": "127.0.0.1", "port": port},
        "applications": [
            {
                "name": "fleet",
                "route_prefix": "/",
                "import_path": "deploy.ray.fleet:app",
                "args": arguments,
                "deployments": [{"name": "Worker", **(workers or {})}],
            }
        ],
    }
    # The path of a socket has at most 107 bytes, and Ray keeps some in this folder.
    with TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        file = Path(folder) / "serve.yaml"
        file.write_text(json.dumps(config))
        command = ("serve", "run", str(file), "--address", "local")
        with _started(
            "fleet",
            command,
            f"http://127.0.0.1:{port}",
            PYTHONPATH=_search(ROOT),
            RAY_TMPDIR=folder,
            RAY_USAGE_STATS_ENABLED="0",
        ) as fleet:
            eventually(lambda: fleet.answers("/readyz"), START_S)
            yield fleet


@contextmanager
def router(workers: list[WorkerProcess], *flags: str) -> Iterator[Fleet]:
    """vllm-router before these workers, which asks after their health each second."""
    port = free_port()
    own = ("--host", "127.0.0.1", "--port", str(port), "--prometheus-port", str(free_port()))
    checks = ("--health-check-interval-secs", "1", "--worker-startup-check-interval", "1")
    urls = ("--worker-urls", *(worker.url for worker in workers))
    with _started("router", ("vllm-router", *own, *checks, *urls, *flags), f"http://127.0.0.1:{port}") as fleet:
        eventually(lambda: fleet.answers("/health"))
        yield fleet


@contextmanager
def _started(name: str, command: tuple[str, ...], url: str, **variables: str) -> Iterator[Fleet]:
    """The process runs in the environment of that name. SIGTERM ends it; all that it has started is gone afterwards."""
    binaries = environment(name).folder / "bin"
    search = os.pathsep.join([str(binaries), os.environ.get("PATH", os.defpath)])
    process = subprocess.Popen(
        [str(binaries / command[0]), *command[1:]], env={**own_environment(), **variables, "PATH": search}
    )
    children: list[psutil.Process] = []
    try:
        yield Fleet(url, process)
    finally:
        children = psutil.Process(process.pid).children(recursive=True)
        process.terminate()
        try:
            process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
        _, alive = psutil.wait_procs(children, timeout=PATIENCE_S)
        for left in alive:
            left.kill()
        assert not alive, f"children outlived it: {alive}"


def _search(folder: Path) -> str:
    """The path on which Python looks for modules: there first."""
    return os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])


def _is_worker(process: psutil.Process) -> bool:
    try:
        return "--worker-id" in process.cmdline()
    except psutil.NoSuchProcess:
        return False
