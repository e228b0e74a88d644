"""Retry-After: what the measured throughput suggests, never less than a second, never beyond the cap."""

from hypothesis import given
from hypothesis import strategies as st

from worker.server.front.admission import MAX_RETRY_S, retry_after_s


def test_the_wait_is_the_queue_at_the_measured_pace() -> None:
    assert retry_after_s(10.0, n_waiting=255, n_slots=8) == 320
    assert retry_after_s(10.0, n_waiting=0, n_slots=8) == 2


@given(st.floats(0, 1e6), st.integers(0, 10**6), st.integers(1, 256))
def test_the_wait_is_whole_seconds_within_bounds(service_s: float, n_waiting: int, n_slots: int) -> None:
    assert 1 <= retry_after_s(service_s, n_waiting=n_waiting, n_slots=n_slots) <= MAX_RETRY_S
