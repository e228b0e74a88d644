"""Retry-After: what the measured throughput suggests, never less than a second, never beyond the cap."""

from hypothesis import given
from hypothesis import strategies as st

from worker.server.front.job_log import MAX_WAIT_S, Throughput


def test_the_wait_is_the_queue_at_the_measured_pace() -> None:
    throughput = Throughput()
    for _ in range(200):
        throughput.finished(10.0)
    assert throughput.wait_s(n_waiting=255, n_slots=8) == 320
    assert throughput.wait_s(n_waiting=0, n_slots=8) == 2


@given(st.lists(st.floats(0, 1e6)), st.integers(0, 10**6), st.integers(1, 256))
def test_the_wait_is_whole_seconds_within_bounds(served: list[float], n_waiting: int, n_slots: int) -> None:
    throughput = Throughput()
    for service_s in served:
        throughput.finished(service_s)
    assert 1 <= throughput.wait_s(n_waiting=n_waiting, n_slots=n_slots) <= MAX_WAIT_S
