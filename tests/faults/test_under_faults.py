"""Eight streams at a worker while the system fails: none is lost, none gets wrong bytes, and the worker is well after.

Each fault comes and goes twenty times, or stays. What the streams get is judged as traces are (tools/fire): the answer
alone, or a part of it and an error where the fault may end a job.
"""

import asyncio
import errno
import resource
import signal
import sys
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from msgspec.structs import replace

from client.child import Child
from tests.faults.shim import Switch, built
from tests.worker_process import own_environment
from tools.fire.alone import Store, alone
from tools.fire.answers import OK, Answer
from tools.fire.models import model
from tools.fire.player import LAW_FLAGS, Client, Outcome, Run, complaints, engines_of
from tools.fire.trace import Act, Life, Trace, draw
from tools.fire.verdicts import faults

pytestmark = [
    pytest.mark.process,
    pytest.mark.long,
    pytest.mark.timeout(600),
    pytest.mark.skipif(sys.platform != "linux", reason="the shim and /proc are Linux's"),
]

N_STREAMS = 8
TIMES = [3, pytest.param(20, marks=pytest.mark.soak)]
"""The number of times that a fault comes: few in `make test`, twenty in `make soak`."""
PERIOD_S = 0.25
N_ASKS = 48


@dataclass(frozen=True)
class Fault:
    """A kind of fault. `rules` are the shim's, with {folder} for the cache directory; `limits` those of the process."""

    rules: str = ""
    limits: tuple[tuple[int, int], ...] = ()
    signals: tuple[str, signal.Signals, signal.Signals] | None = None
    """The process that gets signals, and those that begin and end the fault."""
    may_fail: bool = False
    """True if it may end a job, or an engine."""
    refusal: bytes = b"\0"
    """Words of a refusal that it may cause, with status 400 or as the end of a stream."""


FAULTS: dict[str, Fault] = {
    "the disk is full": Fault(rules=f"write={errno.ENOSPC}@{{folder}}"),
    "the disk cannot be written": Fault(rules=f"write={errno.EROFS}@{{folder}}"),
    "the disk is slow": Fault(rules="slow=20000@{folder}"),
    "the disk cannot be read": Fault(rules=f"read={errno.EIO}@{{folder}}"),
    "the time of day jumps ahead": Fault(rules="clock=100000"),
    "the time of day jumps back": Fault(rules="clock=-100000"),
    "threads are exhausted": Fault(rules=f"thread={errno.EAGAIN}", may_fail=True),
    "an allocation fails": Fault(
        rules="alloc=65536",
        may_fail=True,
        # In the process that tries a constraint it looks like one that takes too much memory.
        refusal=b"cannot be compiled in reasonable time and memory",
    ),
    "descriptors are scarce": Fault(limits=((resource.RLIMIT_NOFILE, 80),)),
    "the front is stopped": Fault(signals=("front", signal.SIGSTOP, signal.SIGCONT)),
    "the engine is stopped": Fault(signals=("engine", signal.SIGSTOP, signal.SIGCONT)),
    "the engine is killed for want of memory": Fault(signals=("engine", signal.SIGKILL, signal.SIGCONT), may_fail=True),
}


@dataclass(frozen=True)
class Scene:
    """The requests and their answers alone."""

    models: Path
    trace: Trace
    answers: dict[str, Answer]


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    folder = tmp_path_factory.mktemp("faults")
    drawn = draw(11, n_requests=N_ASKS, models=("attention",))
    acts = tuple(Act(0, place) for place in range(len(drawn.asks)))
    trace = replace(drawn, lives=(Life(acts),))
    with closing(Store(folder / "alone.sqlite")) as store:
        return Scene(folder, trace, alone(store, folder, trace))


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(tmp_path_factory.mktemp("shim"))


@pytest.mark.parametrize("n_times", TIMES)
@pytest.mark.parametrize("name", FAULTS)
def test_under_a_fault_each_stream_gets_its_answer_and_the_worker_recovers(
    name: str, n_times: int, scene: Scene, shim: Path, tmp_path: Path
) -> None:
    fault, folder = FAULTS[name], tmp_path / "cache"
    folder.mkdir(0o700)
    switch = Switch(shim, tmp_path / "on", fault.rules.format(folder=folder))
    environment = switch.environment if fault.rules else {}
    flags = ["--model", str(model(scene.models, "attention")), "--device", "cpu", "--port", "0", *LAW_FLAGS]
    flags += ["--ctx-size", "4096", "--parallel", str(N_STREAMS), "--prefix-cache-dir", str(folder)]
    with Child(
        *flags, command=(sys.executable, "-m", "worker"), environment={**own_environment(), **environment}
    ) as child:
        child.ready()
        if fault.rules:
            front, engine = (*_processes(child, "front"), *_processes(child, "engine"))
            assert _has(front, shim)
            assert _has(engine, shim)
        for limit, most in fault.limits:
            resource.prlimit(child.process.pid, limit, (most, most))
        outcomes = asyncio.run(_streams(child, scene, fault, switch, n_times))
        outcomes = [outcome for outcome in outcomes if fault.refusal not in outcome.body]
        run = Run(outcomes, complaints=[*complaints(child)])
        assert faults(run, scene.answers) == []
        child.process.terminate()
        assert child.process.wait(60) == 0, child.stderr[-5:]


async def _come_and_go(fault: Fault, switch: Switch, child: Child, outcomes: list[Outcome], n_times: int) -> None:
    """Each time, wait for the end of a job: five deaths of engines without one are too many."""
    for _ in range(n_times):
        await asyncio.sleep(PERIOD_S)
        with _while(fault, switch, child):
            await asyncio.sleep(PERIOD_S)
        n_before = len(outcomes)
        while not any(outcome.status == OK and not outcome.broken for outcome in outcomes[n_before:]):
            assert child.process.poll() is None, child.stderr[-20:]
            await asyncio.sleep(PERIOD_S / 10)


def _processes(child: Child, whose: str) -> list[psutil.Process]:
    return [psutil.Process(child.process.pid)] if whose == "front" else engines_of(child)


def _has(process: psutil.Process, library: Path) -> bool:
    return any(mapped.path == str(library) for mapped in process.memory_maps())


class _while:  # noqa: N801 - reads as a word
    """The fault is there within the block."""

    def __init__(self, fault: Fault, switch: Switch, child: Child) -> None:
        self._fault, self._switch, self._child = fault, switch, child
        self._hit: list[psutil.Process] = []

    def __enter__(self) -> None:
        if self._fault.rules:
            self._switch.on()
        if self._fault.signals is not None:
            whose, begin, _ = self._fault.signals
            self._hit = _processes(self._child, whose)
            for process in self._hit:
                process.send_signal(begin)

    def __exit__(self, *_: object) -> None:
        self._switch.off()
        if self._fault.signals is not None:
            for process in self._hit:
                with suppress(psutil.NoSuchProcess):
                    process.send_signal(self._fault.signals[2])


async def _streams(child: Child, scene: Scene, fault: Fault, switch: Switch, n_times: int) -> list[Outcome]:
    """Eight clients, each with one request after another until the fault is over."""
    outcomes: list[Outcome] = []
    over = asyncio.ensure_future(_come_and_go(fault, switch, child, outcomes, n_times))

    async def stream(number: int) -> None:
        client = Client(child, scene.trace, number)
        for place in _places(number, len(scene.trace.asks)):
            outcomes.extend(await client.play(Life((Act(0, place),))))
            if over.done():
                return

    await asyncio.gather(*(stream(number) for number in range(N_STREAMS)))
    await over
    for outcome in outcomes:
        outcome.may_fail = fault.may_fail
    return outcomes


def _places(number: int, n: int) -> Iterator[int]:
    place = number
    while True:
        yield place % n
        place += N_STREAMS + 1
