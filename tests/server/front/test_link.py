"""The link to one engine process: small real children, on the event loop that serves."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager

import psutil
import pytest
import uvloop

from worker.errors import InternalFailure, StartupError
from worker.host import cpu_quota
from worker.server.front.children import engine_environment
from worker.server.front.link import LAST_WORDS_BYTES, EngineLink
from worker.wire.jobs import Cancel, JobKey
from worker.wire.load import Progress
from worker.wire.messages import Outbound

pytestmark = pytest.mark.process

PATIENCE_S = 60.0

PRELUDE = """
import os, signal, socket, sys
from worker.wire.load import Progress
from worker.config.engine_settings import inbound_decoder
from worker.wire.encoding import FrameBuffer, encode_frame

sock = socket.socket(fileno=int(sys.argv[1]))

def frame(percent):
    return encode_frame(Progress(percent=percent))
"""


class Owner:
    """All that the link reported, in order."""

    def __init__(self) -> None:
        self.messages: list[Outbound] = []
        self.lines: list[str] = []
        self.exits: list[tuple[str, str]] = []
        self.has_exited = asyncio.Event()
        self.has_message = asyncio.Event()

    def on_message(self, message: Outbound) -> None:
        assert not self.exits, "an exit comes last"
        self.messages.append(message)
        self.has_message.set()

    def on_line(self, line: str) -> None:
        self.lines.append(line)

    def on_exit(self, cause: str, last_words: str) -> None:
        self.exits.append((cause, last_words))
        self.has_exited.set()

    @property
    def percents(self) -> list[int]:
        return [message.percent for message in self.messages if isinstance(message, Progress)]

    def on_fatal(self, error: StartupError) -> None:
        raise AssertionError("nothing in these owners fails") from error

    async def cause(self) -> str:
        """Wait for the exit."""
        await self.has_exited.wait()
        ((cause, _),) = self.exits
        return cause


@asynccontextmanager
async def linked(program: str, environment: Mapping[str, str]) -> AsyncIterator[tuple[EngineLink, Owner]]:
    owner = Owner()
    link = await EngineLink.spawn((sys.executable, "-c", PRELUDE + program), owner, environment)
    try:
        yield link, owner
    finally:
        await link.close()
        assert len(owner.exits) == 1, "told once, closed or not"


def with_engine(program: str, play: Callable[[EngineLink, Owner], Awaitable[None]], **environment: str) -> Owner:
    """Run the play beside a child that runs the program."""

    async def performance() -> Owner:
        async with asyncio.timeout(PATIENCE_S), linked(program, {"PATH": os.defpath, **environment}) as (link, owner):
            await play(link, owner)
        return owner

    return uvloop.run(performance())


async def until_exit(_link: EngineLink, owner: Owner) -> None:
    await owner.has_exited.wait()


# ── frames ───────────────────────────────────────────────────────────────────────────────────────


def test_what_the_engine_sent_is_delivered_before_its_exit() -> None:
    owner = with_engine("sock.sendall(b''.join(map(frame, range(100)))); sys.exit(3)", until_exit)
    assert owner.percents == list(range(100))
    assert owner.exits == [("it exited with code 3", "")]


def test_frames_may_come_in_any_portions() -> None:
    owner = with_engine("for byte in frame(1) + frame(2): sock.sendall(bytes([byte]))", until_exit)
    assert owner.percents == [1, 2]


def test_what_is_sent_arrives() -> None:
    echo = """
data = b""
buffer = FrameBuffer()
heard = []
while len(heard) < 2:
    heard += buffer.feed(sock.recv(4096))
sock.sendall(b"".join(frame(inbound_decoder.decode(body).job) for body in heard))
"""

    async def play(link: EngineLink, owner: Owner) -> None:
        link.send(Cancel(job=JobKey(10)))
        link.send(Cancel(job=JobKey(20)))
        await owner.has_exited.wait()
        link.send(Cancel(job=JobKey(30)))

    assert with_engine(echo, play).percents == [10, 20]


@pytest.mark.parametrize(
    "garbage",
    ["b'\\xff' * 64", "b'\\x01\\x00\\x00\\x00\\xc1'", "encode_frame(Progress(percent='x'))"],
    ids=["impossible length", "no msgpack", "wrong type"],
)
def test_an_engine_that_sends_garbage_is_killed_and_not_believed_again(garbage: str) -> None:
    """Frames before it count once; none after it does, however many there are."""
    program = f"sock.sendall(frame(1) + {garbage} + frame(2) * 100_000)"
    owner = with_engine(program, until_exit)
    assert owner.percents == [1]
    assert "it sent a frame that cannot be read" in owner.exits[0][0]


# ── words ────────────────────────────────────────────────────────────────────────────────────────

FLOOD = """
for _ in range(8):
    os.write(2, b"much ado about nothing\\n" * 50_000)
os.write(2, "the last line, cut in a charact\u00e9".encode()[:-1])
sock.sendall(frame(1))
"""


def test_megabytes_of_words_do_not_block_the_engine_and_the_last_4_kib_are_kept() -> None:
    owner = with_engine(FLOOD, until_exit)
    assert owner.percents == [1]
    assert len(owner.lines) == 400_000
    ((_, last_words),) = owner.exits
    assert last_words.endswith("the last line, cut in a charact\ufffd")
    assert len(last_words.replace(" | ", "\n").encode()) <= LAST_WORDS_BYTES + 2


# ── the process ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", ["SIGABRT", "SIGSEGV", "SIGKILL"])
def test_a_death_by_signal_is_named(name: str) -> None:
    program = f"import resource; resource.setrlimit(resource.RLIMIT_CORE, (0, 0)); os.kill(os.getpid(), signal.{name})"
    assert with_engine(program, until_exit).exits[0][0] == f"it was ended by {name}"


def test_a_kill_is_reported_with_its_first_cause_also_of_a_stopped_process() -> None:
    async def play(link: EngineLink, owner: Owner) -> None:
        psutil.Process(link.pid).suspend()
        link.kill("no sign of life")
        link.kill("another reason")
        assert await owner.cause() == "no sign of life"
        link.kill("it is dead already")

    with_engine("signal.pause()", play)


def test_the_engine_has_a_session_of_its_own_no_input_and_the_environment_it_was_given() -> None:
    program = """
facts = [os.getsid(0) == os.getpid(), sys.stdin.read() == "", os.environ.get("GIVEN") == "1", "HOME" not in os.environ]
sock.sendall(b"".join(frame(int(fact)) for fact in facts))
"""
    assert with_engine(program, until_exit, GIVEN="1").percents == [1, 1, 1, 1]


@pytest.mark.parametrize(
    ("given", "spins"),
    [
        ({}, "30000"),
        ({"GOMP_SPINCOUNT": "300"}, "300"),
        ({"KMP_BLOCKTIME": "0"}, "30000"),
        ({"OMP_WAIT_POLICY": "PASSIVE"}, None),
        ({"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "5"}, "5"),
    ],
)
def test_libgomp_gets_our_way_of_waiting_unless_the_environment_has_one_and_libomp_only_the_environments(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, str], spins: str | None
) -> None:
    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    found = engine_environment()
    assert (found.get("GOMP_SPINCOUNT"), found.get("KMP_BLOCKTIME")) == (spins, given.get("KMP_BLOCKTIME"))


def test_openmp_gets_the_number_of_processors_unless_the_environment_has_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert engine_environment()["OMP_NUM_THREADS"] == str(cpu_quota())
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    assert engine_environment()["OMP_NUM_THREADS"] == "7"


def test_closing_lets_the_engine_leave_by_itself() -> None:
    async def play(link: EngineLink, owner: Owner) -> None:
        await link.close()
        assert await owner.cause() == "it exited with code 5"
        await link.close()

    with_engine("sock.recv(1); sys.exit(5)", play)


def test_closing_ends_an_engine_that_does_not_leave() -> None:
    async def play(link: EngineLink, owner: Owner) -> None:
        await owner.has_message.wait()
        await link.close()
        assert await owner.cause() == "it did not exit when its socket closed"

    with_engine("sock.sendall(frame(1)); signal.pause()", play)


# ── an owner that fails ──────────────────────────────────────────────────────────────────────────


class FailingOwner(Owner):
    """Raises where it is told to."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self._where = where
        self.told: list[StartupError] = []
        self.is_told = asyncio.Event()

    def on_message(self, message: Outbound) -> None:
        self._fail("on_message")

    def on_line(self, line: str) -> None:
        self._fail("on_line")

    def on_exit(self, cause: str, last_words: str) -> None:
        self._fail("on_exit")

    def on_fatal(self, error: StartupError) -> None:
        self.told.append(error)
        self.is_told.set()

    def _fail(self, where: str) -> None:
        if where == self._where:
            raise ZeroDivisionError(where)


@pytest.mark.parametrize("where", ["on_message", "on_line", "on_exit"])
def test_what_its_owner_raises_is_reported_and_the_engine_still_ends_with_the_link(where: str) -> None:
    program = "sock.sendall(frame(1)); print('a line', file=sys.stderr, flush=True)\n"
    program += "sys.exit(0)" if where == "on_exit" else "sock.recv(1)"

    async def performance() -> None:
        owner = FailingOwner(where)
        command = (sys.executable, "-c", PRELUDE + program)
        async with asyncio.timeout(PATIENCE_S):
            link = await EngineLink.spawn(command, owner, {"PATH": os.defpath})
            engine = psutil.Process(link.pid)
            await owner.is_told.wait()
            await link.close()
            (error,) = owner.told
            assert isinstance(error, InternalFailure)
            assert isinstance(error.__cause__, ZeroDivisionError)
            assert f"ZeroDivisionError: {where}" in str(error)
        assert not engine.is_running()

    uvloop.run(performance())
