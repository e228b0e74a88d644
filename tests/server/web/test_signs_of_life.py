"""Silent streams: a comment every ten seconds once the headers are out, and nothing before."""

import asyncio
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import cast

import pytest

from client.sse import is_comment
from tests.server.front.rehearsal import Stage, rehearsed
from tests.server.web.openai_client import CHAT
from tests.server.web.wire import LONG_PROMPT, UNHURRIED, post_json, read_until, request_of, standing_still
from tests.worker_process import ONE_SLOT, Stream, WorkerProcess, altered, eventually, serve_default, serving
from worker.apis.core.events import SIGN_OF_LIFE
from worker.apis.pool.execute import choose_dialect
from worker.server.front.job import Job
from worker.server.web.streaming import SILENCE_S, SignsOfLife

SSE = choose_dialect(None, sse_event_names=False)
RUNS = request_of("runs")
JSON_LINES = choose_dialect("application/jsonl", sse_event_names=False)


class Clock:
    """A loop's timers, for one timer at a time."""

    def __init__(self) -> None:
        self._now_s = 1000.0
        self._timer: asyncio.TimerHandle | None = None

    def time(self) -> float:
        return self._now_s

    def call_at(self, when: float, callback: Callable[[], None], /) -> asyncio.TimerHandle:
        assert self._timer is None or self._timer.cancelled()
        self._timer = asyncio.TimerHandle(when, callback, (), asyncio.get_running_loop())
        return self._timer

    def go_on(self, seconds: float) -> None:
        """Let time pass; timers run when they are due."""
        end_s = self._now_s + seconds
        while self._timer is not None and not self._timer.cancelled() and self._timer.when() <= end_s:
            self._now_s = max(self._now_s, self._timer.when())
            due, self._timer = self._timer, None
            due._run()
        self._now_s = end_s


def signs_of(jobs: Sequence[Job], clock: Clock) -> SignsOfLife:
    return SignsOfLife(jobs, cast(asyncio.AbstractEventLoop, clock))


def accepted(stage: Stage) -> Job:
    job = stage.jobs[stage.submit()]
    job.dialect = SSE
    stage.accept(job.key)
    return job


# ── when a sign is due ───────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("before", [0.0, SILENCE_S / 2, SILENCE_S * 7 / 8])
@rehearsed
async def test_a_sign_comes_after_a_silence_and_after_every_further_one(stage: Stage, before: float) -> None:
    """The silence begins with what was sent last."""
    job, clock = accepted(stage), Clock()
    with signs_of([job], clock) as signs:
        clock.go_on(before)
        signs.sent()
        for _ in range(3):
            clock.go_on(SILENCE_S * 7 / 8)
            assert job.take_chunk() == b""
            clock.go_on(SILENCE_S / 8)
            assert job.take_chunk() == SIGN_OF_LIFE
    job.fail("CANCELLED", "enough")


@rehearsed
async def test_a_stream_with_events_needs_no_sign(stage: Stage) -> None:
    job, clock = accepted(stage), Clock()
    stage.begin(job.key)
    with signs_of([job], clock) as signs:
        for _ in range(100):
            clock.go_on(SILENCE_S * 0.9)
            stage.draw(job.key)
            assert SIGN_OF_LIFE not in job.take_chunk()
            signs.sent()
    stage.finish(job.key)


@rehearsed
async def test_a_client_that_does_not_read_has_one_pending_sign(stage: Stage) -> None:
    """No other sign was sent, because the send waits for the client; events follow the one sign."""
    job, clock = accepted(stage), Clock()
    with signs_of([job], clock):
        clock.go_on(100 * SILENCE_S)
        stage.begin(job.key)
        clock.go_on(100 * SILENCE_S)
        chunk = job.take_chunk()
        assert chunk.startswith(SIGN_OF_LIFE + b'data: {"type":"started"')
        assert chunk.count(SIGN_OF_LIFE) == 1
    job.fail("CANCELLED", "enough")


@rehearsed
async def test_of_several_answers_one_that_has_not_ended_shows_life(stage: Stage) -> None:
    jobs, clock = [accepted(stage) for _ in range(3)], Clock()
    jobs[0].fail("CANCELLED", "enough")
    while jobs[0].take_chunk():
        pass
    with signs_of(jobs, clock):
        clock.go_on(SILENCE_S)
        assert [job.take_chunk() for job in jobs] == [b"", SIGN_OF_LIFE, b""]
        for job in jobs[1:]:
            job.fail("CANCELLED", "enough")
        clock.go_on(5 * SILENCE_S)
        assert all(SIGN_OF_LIFE not in job.take_chunk() for job in jobs)


@rehearsed
async def test_after_the_stream_no_timer_is_left(stage: Stage) -> None:
    job, clock = accepted(stage), Clock()
    with signs_of([job], clock):
        clock.go_on(SILENCE_S / 2)
    clock.go_on(5 * SILENCE_S)
    assert job.take_chunk() == b""
    job.fail("CANCELLED", "enough")


@rehearsed
async def test_a_sign_is_no_event(stage: Stage) -> None:
    """It is counted nowhere, makes no second `started`, and a job behind it may run again."""
    job, clock = accepted(stage), Clock()
    with signs_of([job], clock):
        clock.go_on(SILENCE_S)
        assert (job.tokens_out, job.tokens_sampled, job.has_sent_token) == (0, 0, False)
        assert job.take_chunk() == SIGN_OF_LIFE
        stage.begin(job.key)
        clock.go_on(SILENCE_S)
        await stage.die_and_reload()
        clock.go_on(SILENCE_S)
        stage.accept(job.key)
        stage.begin(job.key)
        stage.draw(job.key)
        stage.finish(job.key)
    lines = b"".join(iter(job.take_chunk, b"")).split(b"\n\n")
    assert [line[:24] for line in lines if b'"started"' in line] == [b'data: {"type":"started",']
    assert job.outcome == "success"


@rehearsed
async def test_json_lines_have_no_comments(stage: Stage) -> None:
    job, clock = accepted(stage), Clock()
    job.dialect = JSON_LINES
    with signs_of([job], clock):
        clock.go_on(5 * SILENCE_S)
        assert job.take_chunk() == b""
    job.fail("CANCELLED", "enough")


# ── a real worker ────────────────────────────────────────────────────────────────────────────────


SOONER = {"server.web.streaming.SILENCE_S": 0.1}
lively = serving("any_model", *ONE_SLOT, "--ctx-size", "4096", constants=SOONER)
"""A worker that breaks a silence sooner."""


def asked(worker: WorkerProcess, request: bytes) -> socket.socket:
    sock = worker.connect()
    sock.sendall(request)
    return sock


def said_on(sock: socket.socket) -> bytes:
    """The bytes that have arrived and were not read yet."""
    sock.setblocking(False)
    try:
        return sock.recv(65536, socket.MSG_PEEK)
    except BlockingIOError:
        return b""
    finally:
        sock.setblocking(True)


def wait_for_silence(stream: Stream, n_signs: int = 10) -> None:
    """Wait until this many signs have come one after the other: a second without an event."""
    n_found = 0
    while n_found < n_signs:
        n_found = n_found + 1 if is_comment(next(stream.frames)) else 0


@pytest.mark.process
@pytest.mark.model
@pytest.mark.parametrize(
    "request_bytes",
    [
        post_json("/execute", request_of("waits")),
        post_json(CHAT, {"messages": [{"role": "user", "content": "Hi"}], "stream": True}),
        post_json("/v1/completions", {"prompt": "Hi", "stream": True, "n": 2}),
    ],
    ids=["execute", "chat", "completions"],
)
def test_a_job_that_waits_shows_life_until_it_is_its_turn(lively: WorkerProcess, request_bytes: bytes) -> None:
    with Stream(lively.url, RUNS) as running:
        running.until("token")
        with asked(lively, request_bytes) as waiting:
            received = read_until(waiting, SIGN_OF_LIFE)
            assert received.startswith(b"HTTP/1.1 200 ")
            received += read_until(waiting, SIGN_OF_LIFE)
            assert b"data: " not in received
            lively.post("/cancel/runs")
            read_until(waiting, b"data: ")
    eventually(lively.is_idle)


@pytest.mark.process
@pytest.mark.model
def test_a_long_prompt_shows_life_while_it_is_read(lively: WorkerProcess) -> None:
    """The engine stands still in the middle of it, so that the silence is certain."""
    with asked(lively, post_json("/execute", request_of("reads", prompt=LONG_PROMPT))) as sock:
        read_until(sock, b'"type":"started"')
        with standing_still(lively):
            read_until(sock, SIGN_OF_LIFE)
    eventually(lively.is_idle)


@pytest.mark.process
@pytest.mark.model
def test_no_sign_is_sent_before_the_headers_or_in_json_lines(lively: WorkerProcess) -> None:
    """The engine is stopped, so it is not known whether the last two prompts fit: the first does, the second not."""
    lines = post_json("/execute", request_of("lines"), accept="application/jsonl")
    too_long = post_json("/execute", request_of("too long", prompt=" hello" * 5000))
    with Stream(lively.url, RUNS) as running, asked(lively, lines) as of_lines:
        running.until("token")
        begun = read_until(of_lines, b"\r\n\r\n")
        with standing_still(lively) as engine:
            wait_for_silence(running)  # some threads of a process may go on for a moment
            with asked(lively, post_json("/execute", request_of("late"))) as late, asked(lively, too_long) as refused:
                eventually(lambda: lively.health()["queue_depth"] >= 3)
                wait_for_silence(running)
                assert [said_on(sock) for sock in (of_lines, late, refused)] == [b"", b"", b""]
                engine.resume()
                assert read_until(late, b"\r\n").startswith(b"HTTP/1.1 200 ")
                assert read_until(refused, b"\r\n").startswith(b"HTTP/1.1 400 ")
        lively.post("/cancel/runs")
        lively.post("/cancel/lines")
        assert SIGN_OF_LIFE.strip() not in begun + read_until(of_lines, b"CANCELLED")
    eventually(lively.is_idle)


@pytest.mark.process
@pytest.mark.model
def test_the_flag_turns_them_off(any_model: Path) -> None:
    """Ten times as long as a sign would take, by the `metrics` events of another job."""
    flags = (*ONE_SLOT, "--ctx-size", "2048", "--no-keepalive", *UNHURRIED)
    command = altered(constants=SOONER)
    with serve_default(any_model, *flags, command=command) as worker, Stream(worker.ready().url, RUNS) as running:
        running.until("token")
        with asked(worker, post_json("/execute", request_of("waits"))) as waiting:
            read_until(waiting, b"\r\n\r\n")
            running.until("metrics")
            running.until("metrics")
            assert said_on(waiting) == b""
            worker.post("/cancel/waits")
            assert SIGN_OF_LIFE.strip() not in read_until(waiting, b"CANCELLED")
