"""The image on other hosts: on processors of 2008 and 2013, and behind the real docker client.

qemu emulates a processor instruction by instruction: what is newer is an illegal one. It stands in for the image's
Python, so that the engine, which Python starts, is emulated too. Podman answers the docker client on a socket as
Docker's engine would; the engine itself is not what is tried.
"""

import json
import platform
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
from tools.images.container import PROMPT, once
from tools.images.store import Skipped, Store

_OLDEST = "Nehalem"
"""The first with SSE4.2, which numpy needs; no AVX, no FMA."""
_VARIANTS = {_OLDEST: "sse42", "SandyBridge": "sandybridge", "Haswell": "haswell"}
"""Processors that qemu can emulate, and the module that is made for each; it knows neither AVX-512 nor AMX."""
_BIN = "/opt/llorch-worker/bin"
_N_TOKENS, _ANSWER = 3, "Paris."
_CRASHED_AT_THE_END = 139
"""qemu 7 itself ends so when threads end, once the answer is written and before it is summed up."""
_PORT = 8080


def its_code_is_chosen_for_the_processor(built: Built) -> str:
    seen = []
    for processor, variant in _VARIANTS.items():
        code, out, err = _emulated(built, processor, "devices", "--json")
        assert code == 0, f"{processor}, exit {code}: {err}"
        (cpu,) = [backend for backend in json.loads(out)["backends"] if backend["name"] == "cpu"]
        assert cpu["variant"] == variant, cpu
        seen.append(f"{processor}: {variant} ({', '.join(cpu['features'])})")
    return "; ".join(seen)


def it_answers_on_an_old_processor(built: Built) -> str:
    small = ("--ctx-size", "256", "--threads", "2", "--max-tokens", str(_N_TOKENS), "--temperature", "0")
    code, out, err = _emulated(built, _OLDEST, "generate", "--model", default_file().name, *small, PROMPT)
    assert code in (0, _CRASHED_AT_THE_END), f"exit {code}: {err}"
    assert out.strip() == _ANSWER, f"exit {code}: {out!r}, {err}"
    assert code or f"[{_N_TOKENS} tokens" in err, err
    return f"{_OLDEST}: {out.strip()!r}{', then qemu crashed' if code else ''}"


def the_documented_docker_line_serves_and_stops(built: Built) -> str:
    """The first `docker run … TAG …` of docs/images.md, word for word, beside a folder `models`."""
    text = (CHECKOUT / "docs" / "images.md").read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [shlex.split(line) for line in re.findall(r"^docker run .*$", text, re.MULTILINE)]
    line = next((words for words in lines if built.image.tag in words), None)
    if line is None or "--gpus" in line:
        raise Skipped(f"images.md has no `docker run` line for {built.image.tag}, or one that asks for a GPU")
    docker = built.store.need("docker")
    with socket.socket() as asked:
        if asked.connect_ex(("127.0.0.1", _PORT)) == 0:
            raise Skipped(f"something listens on port {_PORT} here")
    with _engine(built.store), _folder_with_models() as folder:
        process = subprocess.Popen(
            [docker, *(word.replace("$PWD", ".") for word in line[1:])],
            env=built.store.environment,
            cwd=folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        try:
            return _ask_and_stop(process)
        finally:
            process.kill()
            process.wait(PATIENCE_S)


def _emulated(built: Built, processor: str, *arguments: str) -> tuple[int, str, str]:
    """The exit code, stdout and stderr, like container.once."""
    if platform.machine() != "x86_64" or not built.image.is_for_every_processor:
        raise Skipped("this image is not for x86-64, or not built for every processor")
    qemu = built.store.need("qemu-x86_64-static")
    with TemporaryDirectory() as folder:
        # It lies over the image's own: its `python3` runs the system's Python in qemu, under its own name.
        python = Path(folder, "python3")
        python.write_text(f'#!/bin/sh\nexec /qemu -cpu {processor} -0 {_BIN}/python3 /usr/bin/python3 "$@"\n')
        for path in (python, python.parent):
            path.chmod(0o755)
        # Not as PID 1, which qemu's signal for an illegal instruction would not end.
        options = (f"--volume={qemu}:/qemu:ro", f"--volume={folder}:{_BIN}:ro", "--pid=host")
        return once(built, "-m", "worker", *arguments, program=f"{_BIN}/python3", options=options)


def _ask_and_stop(docker: subprocess.Popen[bytes]) -> str:
    url = f"http://127.0.0.1:{_PORT}"
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
    command = [store.need("podman"), "system", "service", "--time=0", f"unix://{store.socket}"]
    service = subprocess.Popen(command, env=store.environment)
    try:
        eventually(store.socket.exists)
        yield
    finally:
        service.terminate()
        service.wait(PATIENCE_S)
