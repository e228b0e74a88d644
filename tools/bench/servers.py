"""The servers under load: found at a URL, or started on a free port of the loopback and ended again.

Runs on the load's event loop; a child writes its log into a file, so that reading it costs the measured machine
nothing.
"""

import asyncio
import secrets
import shlex
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import psutil

from client.child import START_S, end, free_port, without_settings
from tools.bench.dialects import Dialect, LlamaServer, Ours
from tools.bench.exchange import Address, NotReached, ask_once
from tools.bench.sides import Part, ServedSide
from worker.errors import WorkerError

OURS, LLAMA_SERVER = "llorch-worker", "llama-server"
NO_CACHE = f"{LLAMA_SERVER}-no-cache"
"""llama-server that keeps no finished jobs' cells in main memory."""
HOST = "127.0.0.1"
_LOOK_EVERY_S = 0.1
_OK = 200
_KEPT_OF_A_LOG = 400


class NotStarted(WorkerError):
    """A server did not come up: one line with the end of its log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A server to be started, or to be found."""

    name: str
    dialect: Dialect
    program: tuple[str, ...] = ()
    """The program to run, with the model."""
    flags: tuple[str, ...] = ()
    url: str = ""
    """The URL of a running server; then there is no program."""
    token: str | None = None

    def with_flags(self, name: str, flags: Sequence[str]) -> "Plan":
        """The same under another name with more flags, which win over those before."""
        return replace(self, name=name, flags=(*self.flags, *flags))

    @property
    def shown(self) -> str:
        """The command line without the parts that are specific to this machine."""
        if self.url:
            return "already running"
        return shlex.join([LLAMA_SERVER if isinstance(self.dialect, LlamaServer) else OURS, *self.flags])


def our_worker(model: Path, flags: Sequence[str]) -> Plan:
    """This package's worker."""
    program = (sys.executable, "-m", "worker", "--model", str(model.absolute()), "--log-format", "json")
    return Plan(name=OURS, dialect=_ours(), program=program, flags=tuple(flags))


def llama_server(name: str, binary: Path, model: Path, flags: Sequence[str]) -> Plan:
    program = (str(binary.absolute()), "-m", str(model.absolute()))
    return Plan(name=name, dialect=LlamaServer(), program=program, flags=tuple(flags))


def found(name: str, url: str, token: str | None = None) -> Plan:
    """A running server: llama-server where the name says so, else one that speaks as ours does. Raises: UsageError."""
    Address.of(url)
    dialect = LlamaServer() if name.startswith((LLAMA_SERVER, f"ik-{LLAMA_SERVER}")) else _ours()
    return Plan(name=name, dialect=dialect, url=url, token=token)


def _ours() -> Ours:
    return Ours(f"bench-{secrets.token_hex(4)}")


@asynccontextmanager
async def served(plan: Plan, part: Part, logs: Path) -> AsyncIterator[ServedSide]:
    """The server, ready; one that was started here has ended afterwards. `logs` is a folder.

    Raises: NotReached, NotStarted.
    """
    path = plan.dialect.health_path
    if plan.url:
        address = Address.of(plan.url, plan.token)
        exchange = await ask_once(address, "GET", path)
        if exchange.status != _OK:
            what = exchange.status or exchange.broken
            raise NotReached(f"{plan.name} at {address} is not ready ({what}): wait until {path} is 200")
        yield await _side(plan, part, address, {})
        return
    address = Address(HOST, free_port())
    log = logs / f"{plan.name}-{address.port}.log"
    command = [*plan.program, *plan.flags, "--host", address.host, "--port", str(address.port)]
    process = _started(command, log)
    try:
        give_up_s = time.monotonic() + START_S
        while not await _is_ready(address, path):
            if process.poll() is not None or time.monotonic() > give_up_s:
                words = " ".join(log.read_bytes()[-_KEPT_OF_A_LOG:].decode("utf-8", "replace").split())
                raise NotStarted(f"{plan.name} was not ready ({process.poll()}): {words or 'it said nothing'}")
            await asyncio.sleep(_LOOK_EVERY_S)
        # Our front has its engine for a child; llama-server is one process.
        engines = psutil.Process(process.pid).children()
        pids = {"front": process.pid, "engine": engines[0].pid} if engines else {"server": process.pid}
        yield await _side(plan, part, address, pids)
    finally:
        await asyncio.to_thread(end, process)


def _started(command: Sequence[str], log: Path) -> "subprocess.Popen[bytes]":
    with log.open("ab") as output:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=without_settings())


async def _is_ready(address: Address, path: str) -> bool:
    try:
        return (await ask_once(address, "GET", path)).status == _OK
    except NotReached:
        return False


class _Props(msgspec.Struct, frozen=True):
    build_info: str = ""


async def _side(plan: Plan, part: Part, address: Address, processes: Mapping[str, int]) -> ServedSide:
    """`version`: the build that a llama-server reports; "" where it says none."""
    version = ""
    if isinstance(plan.dialect, LlamaServer):
        with suppress(msgspec.DecodeError):
            version = msgspec.json.decode((await ask_once(address, "GET", "/props")).body, type=_Props).build_info
    return ServedSide(plan.name, part, address, plan.dialect, version, processes)
