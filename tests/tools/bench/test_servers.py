"""Servers found and started: ready or one line that says why not, and none left behind."""

import asyncio
import os
import sys
from pathlib import Path

import pytest

from tests.tools.bench.stand_in import MEMORY_BYTES, stand_in
from tools.bench.dialects import LlamaServer, Ours
from tools.bench.exchange import NotReached
from tools.bench.load import Server
from tools.bench.servers import NotStarted, Plan, found, llama_server, our_worker, served
from worker.errors import UsageError

SERVER = """
import http.server, sys
class Ready(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = b'{"build_info": "b7"}'
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
flags = sys.argv[1:]
http.server.HTTPServer((flags[flags.index("--host") + 1], int(flags[flags.index("--port") + 1])), Ready).serve_forever()
"""


def plan(script: str) -> Plan:
    return Plan(name="llama-server", dialect=LlamaServer(), program=(sys.executable, "-c", script), flags=("-t", "2"))


def opened(what: Plan, logs: Path) -> Server:
    async def look() -> Server:
        async with served(what, logs, os.environ) as server:
            return server

    return asyncio.run(look())


def test_a_started_server_is_ready_and_gone_afterwards(tmp_path: Path) -> None:
    server = opened(plan(SERVER), tmp_path)
    assert (server.name, server.version) == ("llama-server", "b7")
    with pytest.raises(ProcessLookupError):
        os.kill(server.pids["server"], 0)


def test_a_server_that_ends_at_once_is_reported_with_its_last_line(tmp_path: Path) -> None:
    with pytest.raises(NotStarted, match=r"^llama-server ended with 3 before it was ready: no such model$"):
        opened(plan("import sys; print('no such model', file=sys.stderr); sys.exit(3)"), tmp_path)


def test_a_program_that_is_not_there_is_reported(tmp_path: Path) -> None:
    missing = llama_server("llama-server", tmp_path / "missing", tmp_path / "m.gguf", [])
    with pytest.raises(NotStarted, match="llama-server cannot be started: "):
        opened(missing, tmp_path)


@pytest.mark.parametrize(
    ("name", "dialect"),
    [("llama-server", LlamaServer), ("llama-server-x", LlamaServer), ("ik-llama-server", LlamaServer), ("b", Ours)],
)
def test_a_running_server_speaks_what_its_name_says(name: str, dialect: type, tmp_path: Path) -> None:
    with stand_in() as running:
        server = opened(found(name, str(running.address)), tmp_path)
    assert isinstance(server.dialect, dialect)
    assert server.version == ("b1-stand-in" if dialect is LlamaServer else "")
    assert server.allocated_bytes == (0 if dialect is LlamaServer else MEMORY_BYTES)
    assert dict(server.pids) == {}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("vram_bytes", [0, 1])
def test_a_worker_with_device_memory_is_on_a_gpu(vram_bytes: int, tmp_path: Path) -> None:
    with stand_in(vram_bytes=vram_bytes) as running:
        assert opened(found("b", str(running.address)), tmp_path).is_on_gpu == (vram_bytes > 0)


def test_a_running_server_that_is_not_ready_is_refused(tmp_path: Path) -> None:
    with (
        stand_in(is_ready=False) as running,
        pytest.raises(NotReached, match=r"is not ready \(503\): wait until /health"),
    ):
        opened(found("llama-server", str(running.address)), tmp_path)


def test_a_running_server_that_speaks_no_http_is_refused(tmp_path: Path) -> None:
    with stand_in(is_no_http=True) as running, pytest.raises(NotReached, match=r"is not ready \(no HTTP"):
        opened(found("llama-server", str(running.address)), tmp_path)


def test_an_address_is_checked_when_it_is_given() -> None:
    with pytest.raises(UsageError, match="http://HOST:PORT"):
        found("llama-server", "localhost:80")


def test_how_it_was_started_names_no_place_of_this_machine(tmp_path: Path) -> None:
    ours = our_worker(tmp_path / "m.gguf", ["--threads", "2"]).with_flags(["--parallel", "8"])
    theirs = llama_server("llama-server-ngram", tmp_path / "bin" / "llama-server", tmp_path / "m.gguf", ["-t", "2"])
    assert ours.shown == "llorch-worker --threads 2 --parallel 8"
    assert theirs.shown == "llama-server -t 2"
    assert found("x", "http://127.0.0.1:1").shown == "already running"
