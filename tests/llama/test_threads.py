"""How many threads compute beside other processes: laws on a made-up machine, and that Linux tells what they need."""

from hypothesis import given, settings
from hypothesis import strategies as st

from worker.llama.threads import FIRST_RETRY_S, LAST_RETRY_S, WINDOW_S, Threads, waited_s

LAW = settings(derandomize=True, deadline=None, max_examples=200)


class Machine:
    """`n_free` processors are ours; what computes beyond them waits."""

    def __init__(self, n_most: int, n_free: int) -> None:
        self.n_free = n_free
        self.waited_s = 0.0
        self.threads = Threads(n_most, lambda: self.waited_s)

    def compute(self, seconds: float) -> None:
        n_steps = round(seconds / (WINDOW_S / 5))
        for _ in range(n_steps):
            self.waited_s += max(0, self.threads.n_now - self.n_free) * WINDOW_S / 5
            self.threads.computed(WINDOW_S / 5)


@LAW
@given(n_most=st.integers(1, 64), n_free=st.integers(1, 64))
def test_so_many_compute_as_processors_are_free(n_most: int, n_free: int) -> None:
    machine = Machine(n_most, n_free)
    machine.compute(1.0)
    assert machine.threads.n_now == max(1, min(n_most, n_free))


@LAW
@given(n_most=st.integers(2, 64), n_free=st.integers(1, 63))
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
    threads = Threads(4, lambda: None)
    assert not any(threads.computed(WINDOW_S) for _ in range(100))
    assert threads.n_now == 4


def test_linux_tells_how_long_threads_have_waited() -> None:
    first = waited_s()
    assert first is not None
    assert first >= 0.0
