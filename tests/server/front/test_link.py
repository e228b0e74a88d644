"""The link to one engine process: small real children, on the event loop that serves."""

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable

import psutil
import pytest
import uvloop

from worker.errors import InternalFailure, StartupError
from worker.host import cpu_quota
from worker.server.front.children import LAST_WORDS_BYTES, engine_environment
from worker.server.front.link import EngineLink
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
    """All that the link reported, in order. It raises where it is told to."""

    def __init__(self, fails_at: str = "") -> None:
        self._fails_at = fails_at
        self.percents: list[int] = []
        self.lines: list[str] = []
        self.exits: list[tuple[str, str]] = []
        self.told: list[StartupError] = []
        self.has_exited, self.has_message, self.is_told = asyncio.Event(), asyncio.Event(), asyncio.Event()

    def on_message(self, message: Outbound) -> None:
        assert not self.exits, "an exit comes last"
        assert isinstance(message, Progress)
        self.percents.append(message.percent)
        self.has_message.set()
        self._fail("on_message")

    def on_line(self, line: str) -> None:
        self.lines.append(line)
        self._fail("on_line")

    def on_exit(self, cause: str, last_words: str) -> None:
        self.exits.append((cause, last_words))
        self.has_exited.set()
        self._fail("on_exit")

    def on_fatal(self, error: StartupError) -> None:
        self.told.append(error)
        self.is_told.set()

    def _fail(self, where: str) -> None:
        if where == self._fails_at:
            raise ZeroDivisionError(where)

    async def cause(self) -> str:
        """Wait for the exit."""
        await self.has_exited.wait()
        ((cause, _),) = self.exits
        return cause


async def until_exit(_link: EngineLink, owner: Owner) -> None:
    await owner.has_exited.wait()


def with_engine(
    program: str, play: Callable[[EngineLink, Owner], Awaitable[None]] = until_exit, fails_at: str = "", **more: str
) -> Owner:
    """Run the play beside a child that runs the program, with more in its environment."""

    async def performance() -> Owner:
        owner, command = Owner(fails_at), (sys.executable, "-c", PRELUDE + program)
        async with asyncio.timeout(PATIENCE_S):
            link = await EngineLink.spawn(command, owner, {"PATH": os.defpath, **more})
            try:
                await play(link, owner)
            finally:
                await link.close()
        assert len(owner.exits) == 1, "told once, closed or not"
        assert len(owner.told) == bool(fails_at)
        return owner

    return uvloop.run(performance())


def test_what_the_engine_sent_is_delivered_before_its_exit() -> None:
    owner = with_engine("sock.sendall(b''.join(map(frame, range(100)))); sys.exit(3)")
    assert owner.percents == list(range(100))
    assert owner.exits == [("it exited with code 3", "")]


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
    owner = with_engine(program)
    assert owner.percents == [1]
    assert "it sent a frame that cannot be read" in owner.exits[0][0]


FLOOD = """
for _ in range(8):
    os.write(2, b"much ado about nothing\\n" * 50_000)
os.write(2, "the last line, cut in a charact\u00e9".encode()[:-1])
sock.sendall(frame(1))
"""


def test_megabytes_of_words_do_not_block_the_engine_and_the_last_4_kib_are_kept() -> None:
    owner = with_engine(FLOOD)
    assert owner.percents == [1]
    assert len(owner.lines) == 400_000
    ((_, last_words),) = owner.exits
    assert last_words.endswith("the last line, cut in a charact\ufffd")
    assert len(last_words.replace(" | ", "\n").encode()) <= LAST_WORDS_BYTES + 2


@pytest.mark.parametrize("name", ["SIGABRT", "SIGSEGV", "SIGKILL"])
def test_a_death_by_signal_is_named(name: str) -> None:
    program = f"import resource; resource.setrlimit(resource.RLIMIT_CORE, (0, 0)); os.kill(os.getpid(), signal.{name})"
    assert with_engine(program).exits[0][0] == f"it was ended by {name}"


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
    assert with_engine(program, GIVEN="1").percents == [1, 1, 1, 1]


@pytest.mark.parametrize(
    ("given", "spins"),
    [
        ({}, "30000"),
        ({"GOMP_SPINCOUNT": "300", "OMP_NUM_THREADS": "7"}, "300"),
        ({"KMP_BLOCKTIME": "0"}, "30000"),
        ({"OMP_WAIT_POLICY": "PASSIVE"}, None),
        ({"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "5"}, "5"),
    ],
)
def test_openmp_gets_our_way_of_waiting_and_all_processors_unless_the_environment_says_otherwise(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, str], spins: str | None
) -> None:
    """libomp's way of waiting is the environment's only."""
    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    found = engine_environment()
    assert (found.get("GOMP_SPINCOUNT"), found.get("KMP_BLOCKTIME")) == (spins, given.get("KMP_BLOCKTIME"))
    assert found["OMP_NUM_THREADS"] == given.get("OMP_NUM_THREADS", str(cpu_quota()))


@pytest.mark.parametrize(
    ("program", "cause"),
    [
        ("sock.recv(1); sys.exit(5)", "it exited with code 5"),
        ("signal.pause()", "it did not exit when its socket closed"),
    ],
)
def test_closing_lets_the_engine_leave_by_itself_and_ends_one_that_does_not(program: str, cause: str) -> None:
    async def play(link: EngineLink, owner: Owner) -> None:
        await owner.has_message.wait()
        await link.close()
        assert await owner.cause() == cause
        await link.close()

    with_engine(f"sock.sendall(frame(1)); {program}", play)


@pytest.mark.parametrize("where", ["on_message", "on_line", "on_exit"])
def test_what_its_owner_raises_is_reported_and_the_engine_still_ends_with_the_link(where: str) -> None:
    program = "sock.sendall(frame(1)); print('a line', file=sys.stderr, flush=True)\n"
    program += "sys.exit(0)" if where == "on_exit" else "sock.recv(1)"
    engines: list[psutil.Process] = []

    async def play(link: EngineLink, owner: Owner) -> None:
        engines.append(psutil.Process(link.pid))
        await owner.is_told.wait()

    (error,) = with_engine(program, play, where).told
    assert isinstance(error, InternalFailure)
    assert isinstance(error.__cause__, ZeroDivisionError)
    assert f"ZeroDivisionError: {where}" in str(error)
    assert not engines[0].is_running()
