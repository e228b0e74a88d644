"""The engine process behind its socket, with a toy in llama.cpp's place and the test in the front's."""

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import toy_engine as toys
from tests.server.front.rehearsal import CONFIG
from worker.config.engine_settings import Configure
from worker.server.process.main import GIVE_BACK_EVERY_S, at_most_every
from worker.server.process.outbox import MAX_OUTSTANDING_BYTES
from worker.wire.encoding import FrameBuffer, encode_frame
from worker.wire.jobs import Accepted, Cancel, Finished, JobKey, SamplingParams, Started, StepBegun, StepDone, Submit
from worker.wire.load import AskResidency, Loaded, LoadFailed, PrefixCacheFound, Progress, Residency, Warned
from worker.wire.messages import Inbound, Outbound, outbound_decoder

pytestmark = pytest.mark.process

PATIENCE_S = 60.0

M = TypeVar("M", bound=Outbound)


@dataclass
class EngineProcess:
    """A child with one end of a socketpair; `front` is the other."""

    process: "subprocess.Popen[bytes]"
    front: socket.socket

    def __post_init__(self) -> None:
        self.frames = self._receive()
        """The messages of the engine, until it closes its socket."""

    def send(self, *messages: Inbound | Configure) -> None:
        for message in messages:
            self.front.sendall(encode_frame(message))

    def _receive(self) -> Iterator[Outbound]:
        buffer = FrameBuffer()
        while data := self.front.recv(1 << 16):
            yield from map(outbound_decoder.decode, buffer.feed(data))

    def next(self, kind: type[M]) -> M:
        """The next frame of that kind; those before it are of no interest."""
        for message in self.frames:
            if isinstance(message, kind):
                return message
        raise AssertionError(f"it ended without {kind.__name__}: {self.end()}")

    def story(self) -> list[StepDone]:
        """All steps until one says that a job has ended."""
        steps = []
        for message in self.frames:
            if isinstance(message, StepDone):
                steps.append(message)
                if message.finished or message.failed:
                    break
        return steps

    def end(self) -> tuple[int, str]:
        """Wait for its exit: (code, stderr)."""
        _, words = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, words.decode()


@contextmanager
def engine_process(*command: str, **environ: str) -> Iterator[EngineProcess]:
    front, theirs = socket.socketpair()
    front.settimeout(PATIENCE_S)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, *command, str(theirs.fileno())],
            cwd=Path(__file__).parents[3],
            env=os.environ | environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=[theirs.fileno()],
        )
    try:
        yield EngineProcess(process, front)
    finally:
        front.close()
        process.kill()
        process.communicate(timeout=PATIENCE_S)


@contextmanager
def toy_engine(kind: str, **changes: Any) -> Iterator[EngineProcess]:
    with engine_process("-m", "tests.toy_engine") as engine:
        engine.send(replace(CONFIG, model_path=kind, **changes))
        yield engine


@contextmanager
def loaded(kind: str) -> Iterator[EngineProcess]:
    with toy_engine(kind) as engine:
        engine.next(Loaded)
        yield engine


def job(key: int, max_tokens: int = 4, prompt: str = "hello") -> Submit:
    return Submit(job=JobKey(key), prompt=prompt, sampling=SamplingParams(seed=key, max_tokens=max_tokens))


def test_it_loads_answers_and_leaves_when_its_socket_closes() -> None:
    with toy_engine(toys.TOY) as engine:
        assert engine.next(Progress).percent == 0
        engine.next(Loaded)
        engine.send(job(1))
        assert engine.next(Accepted) == Accepted(job=JobKey(1), prompt_tokens=5)
        steps = engine.story()
        assert steps[0].started == [Started(JobKey(1))]
        assert sum(len(step.deltas) for step in steps) == 4
        engine.front.close()
        assert engine.end() == (0, "")


def test_a_job_may_want_no_more_than_its_prompts_log_probabilities() -> None:
    with loaded(toys.TOY) as engine:
        engine.send(msgspec.structs.replace(job(1, max_tokens=0, prompt="hello there"), prompt_logprobs=2))
        steps = engine.story()
        parts = [part for step in steps for part in step.prompt_logprobs]
        told = [logprob for part in parts for logprob in part.tokens]
        assert parts[0].start == 1
        assert (len(told), {len(one.top) for one in told}) == (10, {2})
        assert steps[-1].finished == [Finished(JobKey(1), "MAX_TOKENS")]
        assert not any(step.deltas for step in steps)


def test_signals_and_cancels_of_jobs_it_does_not_know_are_ignored() -> None:
    """Signals to the process group are the front's business."""
    with loaded(toys.TOY) as engine:
        for number in (signal.SIGTERM, signal.SIGINT):
            engine.process.send_signal(number)
        engine.send(Cancel(job=JobKey(1)), job(2))
        assert engine.story()[-1].finished[0].job == 2


def test_it_leaves_with_its_front_also_in_the_middle_of_a_job() -> None:
    with loaded(toys.TOY) as engine:
        engine.send(job(1, max_tokens=1000))
        engine.next(StepDone)
        engine.front.close()
        code, words = engine.end()
        assert code == 0
        assert "Traceback" not in words


def test_a_step_that_reads_a_long_prompt_is_stopped_for_a_short_one_that_comes() -> None:
    """The step would not end by itself."""
    with loaded(toys.SLOW) as engine:
        engine.send(job(1, max_tokens=1, prompt="x" * (toys.LONG + 40)))
        assert engine.next(StepBegun).jobs == (JobKey(1),)
        engine.send(job(2, max_tokens=1))
        assert engine.story()[-1].finished == [Finished(JobKey(2), "MAX_TOKENS")]
        assert engine.story()[-1].finished == [Finished(JobKey(1), "MAX_TOKENS")]


def test_where_the_model_is_is_reported_at_any_time_also_in_the_middle_of_a_job() -> None:
    with loaded(toys.LEAVING) as engine:
        engine.send(AskResidency())
        assert engine.next(Residency) == toys.THERE
        engine.send(job(1, max_tokens=1000), AskResidency())
        assert engine.next(Residency) == toys.GONE
        assert engine.story()[-1].finished, "the job goes on"


def test_a_model_in_main_memory_is_not_looked_for() -> None:
    with loaded(toys.TOY) as engine:
        engine.send(AskResidency(), job(1))
        assert isinstance(next(engine.frames), Accepted)


NO_SEGMENT = "the engine cannot be loaded: failed to map segment from shared object"


@pytest.mark.parametrize(
    ("kind", "failed"),
    [
        (toys.UNLOADABLE, {"code": "MODEL_LOAD_FAILED", "message": "the toy is unloadable"}),
        (toys.STARVED, {"code": "MODEL_LOAD_FAILED", "message": NO_SEGMENT}),
        (
            toys.TOO_BIG,
            {"code": "INSUFFICIENT_VRAM", "message": "the toy is too big", "needed_bytes": 8, "available_bytes": 4},
        ),
    ],
)
def test_why_it_could_not_load_is_its_last_frame(kind: str, failed: dict[str, Any]) -> None:
    with toy_engine(kind) as engine:
        if kind == toys.UNLOADABLE:
            assert engine.next(Warned) == Warned(text=toys.WARNING), "it is a frame, and no line"
        assert engine.next(LoadFailed) == LoadFailed(**failed)
        assert list(engine.frames) == []
        assert engine.end() == (0, "")


def test_a_library_that_cannot_be_loaded_is_reported_as_a_model_is(tmp_path: Path) -> None:
    (tmp_path / "libllama.so").write_bytes(b"no library")
    with engine_process("-m", "worker.server.process.main", LLAMA_CPP_LIB_PATH=str(tmp_path)) as engine:
        engine.send(CONFIG)
        failed = engine.next(LoadFailed)
        assert failed.code == "MODEL_LOAD_FAILED"
        assert failed.message.startswith("llama.cpp cannot be loaded")
        assert engine.end() == (0, "")


def test_what_loading_has_freed_is_returned_to_the_system_before_the_first_job() -> None:
    with loaded(toys.GIVING) as engine:
        assert engine.next(Warned) == Warned(text=toys.GIVEN_BACK)


def test_an_exception_in_a_step_ends_the_process_with_its_story() -> None:
    with loaded(toys.BROKEN) as engine:
        engine.send(job(1))
        code, words = engine.end()
        assert code == 1
        assert words.rstrip().endswith("RuntimeError: llama_decode failed with code -3")


def test_a_front_that_sends_garbage_ends_the_process() -> None:
    with loaded(toys.TOY) as engine:
        engine.front.sendall(b"\xff" * 64)
        code, words = engine.end()
        assert code == 1
        assert "ValueError" in words


def test_an_engine_reports_what_it_has_found_before_it_takes_jobs() -> None:
    with toy_engine(toys.KEEPING) as engine:
        found = engine.next(PrefixCacheFound)
        assert (found.n_parts, found.n_dropped, found.dropped_because) == (0, 3, "they were broken")
        engine.next(Loaded)


@pytest.mark.parametrize("is_settled", [False, True])
def test_an_engine_copies_out_the_last_jobs_cells_once_before_it_leaves(is_settled: bool) -> None:
    with loaded(toys.KEEPING) as engine:
        engine.send(job(1, prompt="twenty letters or so", max_tokens=4))
        story = engine.story()
        if is_settled:
            assert engine.next(StepDone).prefix_tokens == 23
        else:
            assert story[-1].prefix_tokens == 0
        engine.front.shutdown(socket.SHUT_WR)
        assert engine.end() == (0, "23 cells are kept")


def test_an_engine_without_a_reader_leaves_and_its_steps_have_not_waited() -> None:
    """The socket takes a few hundred KiB; had a step waited for more, the process would be there for ever."""
    with loaded(toys.LOUD) as engine:
        engine.send(job(1, max_tokens=1000))
        code, words = engine.end()
        assert code == 0, words
        (n_unread,) = re.findall(r"the front has left (\d+) bytes unread", words)
        assert MAX_OUTSTANDING_BYTES < int(n_unread) < MAX_OUTSTANDING_BYTES + 2 * toys.LOUD_BYTES


N_FRAMES = 2000
SENDS_MANY = f"""
import socket, sys, threading
from worker.wire.jobs import Delta, StepDone
from worker.server.process.outbox import Outbox

outbox = Outbox(socket.socket(fileno=int(sys.argv[1])))
for key in range({N_FRAMES}):
    outbox.send(StepDone(deltas=[Delta(key, str(key) * 1500)]))
print("sent", flush=True)
threading.Event().wait()
"""
"""Less than MAX_OUTSTANDING_BYTES, and far more than a socket takes."""


@pytest.mark.parametrize("reads", ["late", "meanwhile"])
def test_a_slow_front_gets_every_frame_in_order(reads: str) -> None:
    """A late one reads the first frame only when all have been sent, because no send waits."""
    with engine_process("-c", SENDS_MANY) as engine:
        assert engine.process.stdout is not None
        if reads == "late":
            assert engine.process.stdout.readline() == b"sent\n"
        for key in range(N_FRAMES):
            (delta,) = engine.next(StepDone).deltas
            assert (delta.job, delta.text) == (key, str(key) * 1500)


@given(rests=st.lists(st.floats(0.001, 3 * GIVE_BACK_EVERY_S), min_size=1))
def test_freed_memory_is_returned_at_the_first_rest_and_then_at_most_once_a_while(rests: list[float]) -> None:
    now_s = 0.0
    returned_s: list[float] = []
    rest = at_most_every(GIVE_BACK_EVERY_S, lambda: returned_s.append(now_s), lambda: now_s)
    rested_s = []
    for rest_s in rests:
        now_s += rest_s
        rested_s.append(now_s)
        rest()
    assert returned_s[0] == rested_s[0]
    for one, then in zip(returned_s, [*returned_s[1:], None], strict=True):
        due_s = one + GIVE_BACK_EVERY_S
        assert then == next((at_s for at_s in rested_s if at_s >= due_s), None)
