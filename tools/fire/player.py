"""A trace at a real worker: started for each life, asked as the trace says, left idle and clean at the end."""

import asyncio
import re
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import psutil

from client.child import Child, NotServed
from tools.bench.exchange import Address, Connection, Exchange, NotReached, ask_once, connect
from tools.fire.asks import EXECUTE, Ask
from tools.fire.models import Name, model
from tools.fire.trace import Act, Cancel, Cut, Life, Pause, Trace

LAW_FLAGS = ("--batch-invariant", "on")
"""Under these an answer has one right form, in any traffic."""
_SILENCE_S = 300.0
"""A queue that is full empties slowly at a real model."""
_ASK_AGAIN_S = 0.1
_NO_ROOM = 503
"""The status of a full queue, and of a worker whose engine is being replaced: the client asks again."""
_IDLE_S = 30.0
_LOOK_AGAIN_S = 0.02
_LONGEST_REUSE_S = 60.0
"""A client that closes unused connections first loses no request to a worker that closes them
(server/web/server.py)."""
_COUNTED = {
    "paused for want of cells": "worker_preemptions_total",
    "paused for their share": "worker_yields_total",
    "prompt tokens reused": "worker_prefix_tokens_reused_total",
    "drafts accepted": "worker_draft_tokens_accepted_total",
    "engines replaced": "worker_engine_restarts_total",
}
"""The worker's own counts of what makes an answer's computation another one."""
_ID = re.compile(rb'"id":\s?"([\w-]+)"')
_ALONE = {"--prefix-cache-mb": "0", "--prompt-lookup": "off", "--parallel": "1", "--threads": "1", "--ctx-size": "2048"}
"""A worker that has one job at a time and keeps nothing of it."""


@dataclass(slots=True)
class Outcome:
    """The answer to an act, as far as it arrived."""

    life: int
    act: Act
    ask: Ask
    status: int
    body: bytes
    broken: str
    """The reason why the answer is not whole; empty if it is."""
    may_fail: bool = False
    """True if an engine was killed while the answer was on its way."""


@dataclass(slots=True)
class Run:
    """The outcomes of a trace."""

    outcomes: list[Outcome] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    """The counts of what traces are made to meet."""
    complaints: list[str] = field(default_factory=list)
    """The worker itself was not as it should be."""


def flags_of(trace: Trace, models: Path, cache: Path) -> list[str]:
    flags = [*base_flags(models, trace.model), *trace.flags]
    if trace.has_cache_dir:
        flags += ["--prefix-cache-dir", str(cache)]
    if trace.has_draft_model:
        flags += ["--draft-model", str(model(models, trace.model, seed=2))]
    return flags


def alone_flags(models: Path, name: Name) -> list[str]:
    """The flags of the worker that gives each request its right answer."""
    return [*base_flags(models, name), *(word for pair in _ALONE.items() for word in pair)]


def base_flags(models: Path, name: Name) -> list[str]:
    """The flags of every worker that the law is tried at."""
    return ["--model", str(model(models, name)), "--device", "cpu", "--port", "0", *LAW_FLAGS]


def play(trace: Trace, models: Path) -> Run:
    """Play all lives of a trace, each at a worker of its own."""
    run = Run()
    with TemporaryDirectory(prefix="fire-") as cache:
        for number, life in enumerate(trace.lives):
            try:
                _live(trace, number, life, flags_of(trace, models, Path(cache)), run)
            except NotServed as error:
                run.complaints.append(f"life {number}: {error}")
                break
    return run


def _live(trace: Trace, number: int, life: Life, flags: list[str], run: Run) -> None:
    with Child(*flags) as child:
        child.ready()
        run.outcomes += asyncio.run(Client(child, trace, number).play(life))
        run.complaints += [f"life {number}: {complaint}" for complaint in complaints(child)]
        metrics = metrics_of(child)
        run.counts += Counter({name: int(sample_of(metrics, series)) for name, series in _COUNTED.items()})
        child.process.terminate()
        code = child.process.wait(_IDLE_S)
        if code:
            run.complaints.append(f"life {number}: exit code {code}: {' | '.join(child.stderr[-5:])}")


def metrics_of(child: Child) -> str:
    """The text of `/metrics`; "" if it does not answer."""
    try:
        return asyncio.run(ask_once(Address.of(child.url), "GET", "/metrics")).body.decode()
    except NotReached:
        return ""


def sample_of(metrics: str, series: str) -> float:
    """The value of a series in the text of `/metrics`; 0 if it is not there."""
    found = re.search(rf"^{series}\{{.*\}} (\S+)$", metrics, re.MULTILINE)
    return float(found[1]) if found else 0.0


def engines_of(child: Child) -> list[psutil.Process]:
    """The worker's engine; between two engines there is none."""
    found = []
    for process in psutil.Process(child.process.pid).children():
        with suppress(psutil.Error):  # one that has just ended has no command any more
            found += [process] if "worker.server.process.main" in process.cmdline() else []
    return found


def complaints(child: Child) -> Iterator[str]:
    """Yield the faults of a worker that should be idle. It may take a while to end its jobs."""
    give_up_s = time.monotonic() + _IDLE_S
    while True:
        try:
            health = msgspec.json.decode(asyncio.run(ask_once(Address.of(child.url), "GET", "/health")).body)
        except (NotReached, msgspec.DecodeError) as error:
            yield f"it does not answer: {error}"
            return
        busy = {name: health[name] for name in ("slots_busy", "queue_depth")}
        busy["cells"] = sample_of(metrics_of(child), "worker_kv_cells_used")
        if health["state"] == "ready" and not any(busy.values()):
            return
        if time.monotonic() > give_up_s:
            yield f"it is {health['state']} and not idle: {busy}"
            return
        time.sleep(_LOOK_AGAIN_S)


class Client:
    """All clients of a worker."""

    def __init__(self, child: Child, trace: Trace, life: int) -> None:
        self._child = child
        self._trace = trace
        self._life = life
        self._address = Address.of(child.url)
        self._numbers = count(1)
        self._unused: list[Connection] = []
        self._kills_s: list[float] = []

    async def play(self, life: Life) -> list[Outcome]:
        self._begun_s = time.perf_counter()
        kills = [asyncio.create_task(self._kill(at_ms)) for at_ms in life.kills_ms]
        outcomes = await asyncio.gather(*(self._act(act) for act in life.acts))
        await asyncio.gather(*kills)
        for connection in self._unused:
            connection.close()
        return outcomes

    async def _at(self, ms: int) -> None:
        await asyncio.sleep(max(0.0, self._begun_s + ms / 1000 - time.perf_counter()))

    async def _kill(self, at_ms: int) -> None:
        await self._at(at_ms)
        for process in engines_of(self._child):
            self._kills_s.append(time.perf_counter())
            with suppress(psutil.NoSuchProcess):
                process.kill()

    async def _act(self, act: Act) -> Outcome:
        await self._at(act.at_ms)
        ask = self._trace.asks[act.ask]
        job_id = f"fire-{self._life}-{next(self._numbers)}"
        give_up_s = time.perf_counter() + _SILENCE_S
        try:
            exchange = await self._exchange(act, ask, job_id)
            while exchange.status == _NO_ROOM and time.perf_counter() < give_up_s:
                await asyncio.sleep(_ASK_AGAIN_S)
                exchange = await self._exchange(act, ask, job_id)
        except NotReached as error:
            return Outcome(self._life, act, ask, 0, b"", str(error))
        ended_s = time.perf_counter()
        may_fail = any(at_s <= ended_s for at_s in self._kills_s)
        return Outcome(self._life, act, ask, exchange.status, exchange.body, exchange.broken, may_fail)

    async def _exchange(self, act: Act, ask: Ask, job_id: str) -> Exchange:
        connection = await self._connected()
        fate = act.fate
        n_going = fate.n_pieces if fate else 0
        asking = asyncio.create_task(connection.ask("POST", ask.path, ask.encoded(job_id), n_going=n_going))
        if fate:
            if n_going:
                going = asyncio.create_task(connection.is_going.wait())
                await asyncio.wait([asking, going], return_when=asyncio.FIRST_COMPLETED)
            else:
                await asyncio.sleep(0)
            await self._meet(fate, connection, ask, job_id)
        exchange = await asking
        if not exchange.broken and connection.is_open:
            self._unused.append(connection)
        else:
            connection.close()
        return exchange

    async def _meet(self, fate: Cut | Cancel | Pause, connection: Connection, ask: Ask, job_id: str) -> None:
        match fate:
            case Cut():
                connection.close()
            case Cancel():
                found = _ID.search(connection.exchange.body)
                name = job_id if ask.path == EXECUTE else found[1].decode() if found else "unknown"
                await ask_once(self._address, "POST", f"/cancel/{name}")
            case Pause(ms=ms):
                connection.pause()
                await asyncio.sleep(ms / 1000)
                connection.resume()

    async def _connected(self) -> Connection:
        """An open connection: one that has been used before, if there is any."""
        while self._unused:
            connection = self._unused.pop()
            # On a busy machine the worker may have closed it long ago; two turns of the loop hear of that.
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            # Counted from the last bytes: a cancel between them and the return may have taken seconds.
            if connection.is_open and time.perf_counter() - connection.heard_s < _LONGEST_REUSE_S:
                return connection
            connection.close()
        return await connect(self._address, _SILENCE_S)
