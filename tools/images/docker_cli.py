"""The line that the documentation gives users, word for word, in the real docker client.

Podman answers on a socket as Docker's engine would; the engine itself is not what is tried.
"""

import re
import shlex
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx2

from tests.default_model import default_file
from tests.worker_process import PATIENCE_S, Stream, check_order, eventually
from tools import CHECKOUT
from tools.images.building import Built
from tools.images.container import PROMPT
from tools.images.outcome import Check, Skipped
from tools.images.store import Store, missing_programs

DOCUMENT = CHECKOUT / "docs" / "images.md"
PORT = 8080


def the_documented_docker_line_serves_and_stops(built: Built) -> str:
    line = documented_line(built.image.tag)
    if missing := missing_programs(["docker"]):
        raise Skipped(f"{missing[0]} is not installed")
    if _is_taken(PORT):
        raise Skipped(f"something listens on port {PORT} here")
    if "--gpus" in line:
        raise Skipped("the line asks for a GPU")
    with _engine(built.store), _folder_with_models() as folder:
        docker = subprocess.Popen(
            [shutil.which("docker") or "docker", *line[1:]],
            env=built.store.environment,
            cwd=folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        try:
            return _ask_and_stop(docker)
        finally:
            docker.kill()
            docker.wait(PATIENCE_S)


def documented_line(tag: str) -> list[str]:
    """The first `docker run … TAG …` of docs/images.md, in words, the shell's variables not yet filled in."""
    text = DOCUMENT.read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [shlex.split(line) for line in re.findall(r"^docker run .*$", text, re.MULTILINE)]
    found = next((words for words in lines if tag in words), None)
    if found is None:
        raise Skipped(f"{DOCUMENT.name} has no `docker run` line for {tag}")
    return [word.replace("$PWD", ".") for word in found]


def _ask_and_stop(docker: subprocess.Popen[bytes]) -> str:
    url = f"http://127.0.0.1:{PORT}"
    eventually(lambda: docker.poll() is not None or _is_ready(url))
    assert docker.poll() is None, f"docker run ended: {docker.communicate()[1].decode()}"
    with Stream(url, {"job_id": "docker", "prompt": PROMPT, "max_tokens": 4, "temperature": 0}) as stream:
        events = list(stream)
    check_order(events)
    docker.send_signal(signal.SIGTERM)
    _, said = docker.communicate(timeout=PATIENCE_S)
    assert docker.returncode == 0, said.decode()
    return f"{len(events)} events, exit 0 after SIGTERM"


def _is_ready(url: str) -> bool:
    try:
        return httpx2.get(f"{url}/readyz", trust_env=False).status_code == httpx2.codes.OK
    except httpx2.HTTPError:
        return False


def _is_taken(port: int) -> bool:
    with socket.socket() as asked:
        return asked.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def _folder_with_models() -> Iterator[Path]:
    """The working directory of the documentation: `models` with the default model."""
    with TemporaryDirectory() as name:
        models = Path(name) / "models"
        models.mkdir()
        shutil.copy(default_file(), models)
        for path in (Path(name), models):
            path.chmod(0o755)
        yield Path(name)


@contextmanager
def _engine(store: Store) -> Iterator[None]:
    """Podman at the socket that the store's DOCKER_HOST names."""
    store.socket.unlink(missing_ok=True)
    podman = shutil.which("podman") or "podman"
    service = subprocess.Popen(
        [podman, "system", "service", "--time=0", f"unix://{store.socket}"], env=store.environment
    )
    try:
        eventually(store.socket.exists)
        yield
    finally:
        service.terminate()
        service.wait(PATIENCE_S)


CHECKS: tuple[Check[Built], ...] = (the_documented_docker_line_serves_and_stops,)
