"""The number of threads next to other processes: laws on a made-up machine, and the numbers that Linux gives."""

import subprocess
import sys

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.worker_process import eventually
from worker.llama.threads import FIRST_RETRY_S, LAST_RETRY_S, PAUSE_S, WINDOW_S, Clocks, Threads, Times, clocks

LAW = settings(max_examples=30)
STEP_S = WINDOW_S / 10
ROWS = 8


class Machine:
    """`n_free` processors are ours. What computes beyond them waits, each thread its share, and steps take `barrier`
    times as long. The other processors are used by other processes, or taken away by a host.
    """

    def __init__(self, n_most: int, n_free: int, *, barrier: float = 100.0, has_host: bool = False) -> None:
        self.n_most, self.n_free = n_most, n_free
        self.barrier, self.has_host = barrier, has_host
        self.at_s = self.others_s = 0.0
        self.n_tries = 0
        """The number of times that one more thread was tried."""
        self.times = dict.fromkeys(range(n_most), Times(0.0, 0.0))
        self.threads = Threads(n_most, lambda: Clocks(self.at_s, dict(self.times), self.others_s), lambda: self.at_s)

    def pause(self, seconds: float) -> None:
        """Nothing is computed, and the other processes go on."""
        self.at_s += seconds
        self.others_s += 0.0 if self.has_host else seconds * max(0, self.n_most - self.n_free)

    def compute(self, seconds: float) -> None:
        end_s = self.at_s + seconds
        while self.at_s < end_s:
            n_now = self.threads.n_now
            step_s = STEP_S * self.n_most / n_now * (self.barrier if n_now > self.n_free else 1.0)
            waited_s = step_s * max(0, n_now - self.n_free) / n_now
            for thread in range(n_now):
                was = self.times[thread]
                self.times[thread] = Times(was.ran_s + step_s - waited_s, was.waited_s + waited_s)
            self.at_s += step_s
            self.others_s += 0.0 if self.has_host else step_s * max(0, self.n_most - self.n_free)
            self.threads.computed(ROWS, step_s)
            self.n_tries += self.threads.n_now > n_now


@LAW
@given(n_most=st.integers(1, 16), n_free=st.integers(1, 16))
def test_as_many_compute_as_processors_are_free_and_all_again_when_the_others_have_gone(
    n_most: int, n_free: int
) -> None:
    machine = Machine(n_most, n_free)
    machine.compute(10.0)
    assert machine.threads.n_now == max(1, min(n_most, n_free))
    machine.n_free = n_most
    machine.compute(2 * WINDOW_S * n_most)
    assert machine.threads.n_now == n_most


@LAW
@given(n_most=st.integers(2, 6), n_free=st.integers(1, 6), is_free_again=st.booleans())
def test_after_a_pause_all_compute_until_others_are_seen_to_be_busy(
    n_most: int, n_free: int, *, is_free_again: bool
) -> None:
    """A worker that starts among others that start computes its first request with all of its threads."""
    machine = Machine(n_most, n_free)
    machine.compute(10.0)
    machine.pause(2 * PAUSE_S)
    machine.n_free = n_most if is_free_again else n_free
    machine.compute(STEP_S / 2)
    assert machine.threads.n_now == n_most
    machine.compute(10.0)
    assert machine.threads.n_now == min(n_most, machine.n_free)


def test_one_more_is_tried_ever_more_seldom_where_it_is_one_too_many() -> None:
    machine = Machine(2, 1)
    machine.compute(400)
    assert 400 / (LAST_RETRY_S + 2) - 1 <= machine.n_tries <= 400 / LAST_RETRY_S + 6


def test_an_idle_machines_threads_stay() -> None:
    machine = Machine(8, 8)
    for _ in range(100):
        machine.compute(FIRST_RETRY_S)
        assert machine.threads.n_now == 8


@LAW
@given(n_most=st.integers(2, 16), n_free=st.integers(1, 15))
def test_a_host_that_takes_processors_away_is_no_reason_to_leave_one_out(n_most: int, n_free: int) -> None:
    machine = Machine(n_most, n_free, has_host=True)
    for _ in range(100):
        machine.compute(WINDOW_S)
        assert machine.threads.n_now == n_most


@LAW
@given(n_most=st.integers(2, 6), n_free=st.integers(1, 5))
def test_where_it_does_not_help_it_is_tried_for_a_moment_and_ever_more_seldom(n_most: int, n_free: int) -> None:
    machine = Machine(n_most, n_free, barrier=1.0)
    n_less = 0
    for _ in range(round(400 / WINDOW_S)):
        machine.compute(WINDOW_S)
        n_less += machine.threads.n_now < n_most
    assert n_less * WINDOW_S < 0.02 * 400


def test_without_clocks_the_number_never_changes() -> None:
    threads = Threads(4, lambda: None)
    assert not any(threads.computed(ROWS, WINDOW_S) for _ in range(100))
    assert threads.n_now == 4


def test_threads_that_wait_for_something_else_to_do_are_not_counted() -> None:
    """A burst of requests holds the intake up; that is no reason to compute with fewer."""
    machine = Machine(2, 2)
    for _ in range(40):
        machine.compute(WINDOW_S)
        was = machine.times.get(99, Times(0.0, 0.0))
        machine.times[99] = Times(was.ran_s + 0.01, was.waited_s + 0.4 * WINDOW_S)
        machine.others_s += WINDOW_S
    assert machine.threads.n_now == 2


def test_linux_reports_how_long_threads_have_run_and_waited_and_others_have_computed() -> None:
    before = clocks()
    assert before is not None
    assert before.threads
    assert all(each.ran_s >= 0.0 and each.waited_s >= 0.0 for each in before.threads.values())

    def others_s() -> float:
        now = clocks()
        return 0.0 if now is None else now.others_s - before.others_s

    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as other:
        try:
            eventually(lambda: others_s() > 0.5)
        finally:
            other.kill()
