"""Silence of an engine that owes something ends it; nothing else does (docs/protocol.md#life-of-a-job, "Wedged")."""

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.crashing_worker import QUESTION, CrashingWorker, check_interrupted, crashing_worker
from tests.worker_process import check_order, text_of
from worker.server.front.supervision import LOAD_SILENCE_S, SLOW_DISK_BYTES_PER_S, STEPS_OF_SILENCE, Watchdog

FLOOR_S = 10.0


class Watched:
    """A watchdog whose time passes when the test says so; `kills` are the causes it gave."""

    def __init__(self, *, is_loaded: bool = True, is_working: bool = True, step_s: float = 0, model_bytes: int = 0):
        self.now_s = 0.0
        self.kills: list[str] = []
        self.watchdog = Watchdog(self.kills.append, floor_s=FLOOR_S, model_bytes=model_bytes, clock=lambda: self.now_s)
        if is_loaded:
            self.watchdog.loaded(step_s)
        self.watchdog.expect_work(int(is_working))

    def turn(self, seconds: float) -> None:
        """The front's loop turns, and hears nothing."""
        end_s = self.now_s + seconds
        while self.now_s < end_s:
            self.tick()

    def tick(self) -> None:
        self.now_s += self.watchdog.tick_s
        self.watchdog.tick()

    def silence_until_kill_s(self, at_most_s: float) -> float:
        began_s, n_kills = self.now_s, len(self.kills)
        while len(self.kills) == n_kills:
            assert self.now_s - began_s < at_most_s, "it is never killed"
            self.tick()
        return self.now_s - began_s


def test_a_silent_engine_is_killed_once_soon_after_the_floor() -> None:
    watched = Watched()
    silence_s = watched.silence_until_kill_s(2 * FLOOR_S)
    assert FLOOR_S < silence_s <= FLOOR_S + 2 * watched.watchdog.tick_s
    watched.turn(FLOOR_S - watched.watchdog.tick_s)
    assert len(watched.kills) == 1, "the next silence begins with the kill"


def test_more_work_is_no_sign_of_life() -> None:
    watched = Watched()
    watched.turn(FLOOR_S / 2)
    watched.watchdog.expect_work(1)
    assert watched.silence_until_kill_s(FLOOR_S) < FLOOR_S


def test_an_engine_with_slow_steps_is_given_ten_of_them() -> None:
    slow_s = FLOOR_S / 2
    watched = Watched()
    watched.turn(slow_s)
    watched.watchdog.heartbeat()
    assert watched.silence_until_kill_s(20 * slow_s) > STEPS_OF_SILENCE * slow_s - watched.watchdog.tick_s


def test_a_loading_engine_has_longer_and_each_progress_begins_it_anew() -> None:
    watched = Watched(is_loaded=False, is_working=False)
    watched.turn(LOAD_SILENCE_S - 2)
    watched.watchdog.heartbeat()
    assert watched.silence_until_kill_s(2 * LOAD_SILENCE_S) > LOAD_SILENCE_S
    watched.watchdog.expect_load()
    watched.watchdog.loaded(0.0)
    watched.watchdog.expect_work(1)
    assert watched.silence_until_kill_s(2 * FLOOR_S) < 2 * FLOOR_S, "loading is no slow step"


def test_the_first_step_is_given_ten_of_those_at_warm_up() -> None:
    slow_s = FLOOR_S / 2
    watched = Watched(step_s=slow_s)
    assert watched.silence_until_kill_s(20 * slow_s) > STEPS_OF_SILENCE * slow_s
    watched.watchdog.expect_load()
    watched.watchdog.loaded(0.0)
    assert watched.silence_until_kill_s(20 * slow_s) > STEPS_OF_SILENCE * slow_s, "a successor runs on the same machine"


@pytest.mark.parametrize("gigabytes", [1, 60])
def test_a_large_file_may_be_read_from_a_slow_disk_without_a_word(gigabytes: int) -> None:
    """A hang is still found: the limit has an end."""
    model_bytes = gigabytes * 10**9
    read_s = model_bytes / SLOW_DISK_BYTES_PER_S
    watched = Watched(is_loaded=False, is_working=False, model_bytes=model_bytes)
    assert LOAD_SILENCE_S + read_s < watched.silence_until_kill_s(2 * (LOAD_SILENCE_S + read_s))


@given(st.lists(st.tuples(st.sampled_from(["tick", "heartbeat", "work", "rest"]), st.floats(0, 3 * FLOOR_S))))
def test_no_engine_is_killed_that_rests_or_has_spoken_within_the_floor(acts: list[tuple[str, float]]) -> None:
    """The same holds for one whose front's loop has turned too seldom to have heard it."""
    watched = Watched(is_working=False)
    heard_s, n_ticks = 0.0, 0
    for name, after_s in acts:
        watched.now_s += after_s
        owes = watched.watchdog._is_working
        match name:
            case "tick":
                n_ticks += 1
                watched.watchdog.tick()
            case "heartbeat":
                watched.watchdog.heartbeat()
            case _:
                watched.watchdog.expect_work(int(name == "work"))
        if watched.kills:
            assert name == "tick"
            assert owes
            assert watched.now_s - heard_s > FLOOR_S
            assert n_ticks * 2 * watched.watchdog.tick_s > FLOOR_S
        if watched.kills or name == "heartbeat" or (name == "work" and not owes):
            heard_s, n_ticks = watched.now_s, 0
            watched.kills.clear()


REAL_FLOOR_S = 5.0


@pytest.fixture(scope="module")
def watched_worker(any_model: Path) -> Iterator[CrashingWorker]:
    with crashing_worker(any_model, "--watchdog-sec", str(REAL_FLOOR_S)) as crashing:
        crashing.worker.ready()
        yield crashing


@pytest.mark.model
@pytest.mark.process
def test_a_job_given_to_a_stopped_engine_is_answered_by_its_successor(watched_worker: CrashingWorker) -> None:
    answer = watched_worker.answer()
    stopped = watched_worker.worker.engine
    stopped.suspend()
    events = watched_worker.worker.run(prompt=QUESTION, max_tokens=8)
    check_order(events)
    assert text_of(events) == answer
    assert "no sign of life" in watched_worker.replaced()["cause"]
    assert not stopped.is_running()


@pytest.mark.model
@pytest.mark.process
def test_a_job_whose_step_never_ends_is_ended_by_the_watchdog(watched_worker: CrashingWorker) -> None:
    with watched_worker.streaming_job() as streaming:
        check_interrupted(list(streaming))
    assert "no sign of life" in watched_worker.replaced()["cause"]


@pytest.mark.model
@pytest.mark.process
def test_a_front_stopped_for_longer_than_the_limit_goes_on_with_its_engine(watched_worker: CrashingWorker) -> None:
    """The only pause here is the subject: real time in which the front cannot listen."""
    worker, n_restarts = watched_worker.worker, watched_worker.n_restarts
    with worker.stream(prompt=QUESTION, max_tokens=128) as stream:
        events = stream.until("token")
        worker.process.send_signal(signal.SIGSTOP)
        time.sleep(1.5 * REAL_FLOOR_S)
        worker.process.send_signal(signal.SIGCONT)
        events += list(stream)
    check_order(events)
    assert events[-1]["type"] == "end"
    assert watched_worker.n_restarts == n_restarts
