"""How many threads compute beside other processes: laws on a made-up machine, and that Linux tells what they need."""

from hypothesis import given, settings
from hypothesis import strategies as st

from worker.llama.threads import FIRST_RETRY_S, LAST_RETRY_S, WINDOW_S, Threads, Times, clocks

LAW = settings(max_examples=30)


class Machine:
    """`n_free` processors are ours; what computes beyond them waits, each thread its share."""

    def __init__(self, n_most: int, n_free: int) -> None:
        self.n_free = n_free
        self.times = dict.fromkeys(range(n_most), Times(0.0, 0.0))
        self.threads = Threads(n_most, lambda: dict(self.times))

    def compute(self, seconds: float) -> None:
        step_s = WINDOW_S / 5
        for _ in range(round(seconds / step_s)):
            n_now = self.threads.n_now
            waited_s = step_s * max(0, n_now - self.n_free) / n_now
            for thread in range(n_now):
                was = self.times[thread]
                self.times[thread] = Times(was.ran_s + step_s - waited_s, was.waited_s + waited_s)
            self.threads.computed(step_s)


@LAW
@given(n_most=st.integers(1, 16), n_free=st.integers(1, 16))
def test_so_many_compute_as_processors_are_free(n_most: int, n_free: int) -> None:
    machine = Machine(n_most, n_free)
    machine.compute(1.0)
    assert machine.threads.n_now == max(1, min(n_most, n_free))


@LAW
@given(n_most=st.integers(2, 6), n_free=st.integers(1, 6))
def test_all_compute_again_when_the_others_have_gone(n_most: int, n_free: int) -> None:
    machine = Machine(n_most, n_free)
    machine.compute(10.0)
    machine.n_free = n_most
    machine.compute(LAST_RETRY_S * 2 * n_most)
    assert machine.threads.n_now == n_most


def test_one_more_is_tried_ever_more_seldom_where_it_is_one_too_many() -> None:
    machine = Machine(2, 1)
    n_tries, was = 0, 2
    for _ in range(round(400 / WINDOW_S)):
        machine.compute(WINDOW_S)
        n_tries += machine.threads.n_now > was
        was = machine.threads.n_now
    assert 400 / (LAST_RETRY_S + 2) - 1 <= n_tries <= 400 / LAST_RETRY_S + 6


def test_an_idle_machines_threads_stay() -> None:
    machine = Machine(8, 8)
    for _ in range(100):
        machine.compute(FIRST_RETRY_S)
        assert machine.threads.n_now == 8


def test_where_nobody_knows_the_number_never_changes() -> None:
    threads = Threads(4, dict)
    assert not any(threads.computed(WINDOW_S) for _ in range(100))
    assert threads.n_now == 4


def test_threads_that_wait_for_something_else_to_do_are_not_counted() -> None:
    """A burst of requests holds the intake up; that is no reason to compute with fewer."""
    machine = Machine(2, 2)
    for _ in range(40):
        machine.compute(WINDOW_S)
        was = machine.times.get(99, Times(0.0, 0.0))
        machine.times[99] = Times(was.ran_s + 0.01, was.waited_s + 0.4 * WINDOW_S)
    assert machine.threads.n_now == 2


def test_linux_tells_how_long_threads_have_run_and_waited() -> None:
    times = clocks()
    assert times
    assert all(each.ran_s >= 0.0 and each.waited_s >= 0.0 for each in times.values())
