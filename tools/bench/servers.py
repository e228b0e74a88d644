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
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from client.child import START_S, end, free_port
from tools.bench.dialects import Dialect, LlamaServer, Ours
from tools.bench.exchange import Address, Exchange, NotReached, ask_once
from tools.bench.load import Server
from tools.bench.processes import children
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

    def with_flags(self, flags: Sequence[str]) -> "Plan":
        """The same with more flags, which win over those before."""
        return replace(self, flags=(*self.flags, *flags))

    @property
    def shown(self) -> str:
        """The command line without the parts that are specific to this machine."""
        if self.url:
            return "already running"
        return shlex.join([LLAMA_SERVER if isinstance(self.dialect, LlamaServer) else OURS, *self.flags])

    def named(self, name: str) -> "Plan":
        """The same under another name."""
        return replace(self, name=name)


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
async def served(plan: Plan, logs: Path, environment: Mapping[str, str]) -> AsyncIterator[Server]:
    """The server, ready; one that was started here has ended afterwards.

    `logs` is a folder, `environment` the child's. Raises: NotReached, NotStarted.
    """
    if plan.url:
        address = Address.of(plan.url, plan.token)
        await _check_ready(plan, address)
        yield await _server(plan, address, {})
        return
    address = Address(HOST, free_port())
    log = logs / f"{plan.name}-{address.port}.log"
    process = _start(plan, address, log, environment)
    try:
        await _until_ready(plan, address, process, log)
        yield await _server(plan, address, _parts(process.pid))
    finally:
        await asyncio.to_thread(end, process)


def _start(plan: Plan, address: Address, log: Path, environment: Mapping[str, str]) -> "subprocess.Popen[bytes]":
    command = [*plan.program, *plan.flags, "--host", address.host, "--port", str(address.port)]
    try:
        with log.open("ab") as output:
            return subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=dict(environment)
            )
    except OSError as error:
        raise NotStarted(f"{plan.name} cannot be started: {plan.program[0]}: {error.strerror or error}") from None


async def _until_ready(plan: Plan, address: Address, process: "subprocess.Popen[bytes]", log: Path) -> None:
    give_up_s = time.monotonic() + START_S
    while (await _asked(address, plan.dialect.health_path)).status != _OK:
        if process.poll() is not None:
            raise NotStarted(f"{plan.name} ended with {process.returncode} before it was ready: {_last_words(log)}")
        if time.monotonic() > give_up_s:
            raise NotStarted(f"{plan.name} was not ready after {START_S:g} s: {_last_words(log)}")
        await asyncio.sleep(_LOOK_EVERY_S)


async def _asked(address: Address, path: str) -> Exchange:
    """What a server that may not listen yet says."""
    try:
        return await ask_once(address, "GET", path)
    except NotReached:
        return Exchange(sent_s=0.0)


async def _check_ready(plan: Plan, address: Address) -> None:
    path = plan.dialect.health_path
    exchange = await ask_once(address, "GET", path)
    if exchange.status != _OK:
        what = exchange.status or exchange.broken
        raise NotReached(f"{plan.name} at {address} is not ready ({what}): wait until {path} is 200")


class _Props(msgspec.Struct, frozen=True):
    build_info: str = ""


async def _server(plan: Plan, address: Address, pids: Mapping[str, int]) -> Server:
    version = await _version(address) if isinstance(plan.dialect, LlamaServer) else ""
    return Server(name=plan.name, address=address, dialect=plan.dialect, version=version, pids=pids)


async def _version(address: Address) -> str:
    """The build that a llama-server reports; "" where it says none."""
    try:
        return msgspec.json.decode((await ask_once(address, "GET", "/props")).body, type=_Props).build_info
    except msgspec.DecodeError:
        return ""


def _parts(pid: int) -> dict[str, int]:
    """Our front has its engine for a child; llama-server is one process."""
    engines = children(pid)
    return {"front": pid, "engine": engines[0]} if engines else {"server": pid}


def _last_words(log: Path) -> str:
    return " ".join(log.read_bytes()[-_KEPT_OF_A_LOG:].decode("utf-8", "replace").split()) or "it said nothing"
