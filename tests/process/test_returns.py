"""Freed memory is returned while no job is there, now and then."""

from hypothesis import given
from hypothesis import strategies as st

from worker.process.returns import GIVE_BACK_EVERY_S, Returns


@given(rests=st.lists(st.floats(0.001, 3 * GIVE_BACK_EVERY_S), min_size=1))
def test_freed_memory_is_returned_at_the_first_rest_and_then_at_most_once_a_while(rests: list[float]) -> None:
    now_s = 0.0
    returned_s: list[float] = []
    returns = Returns(lambda: returned_s.append(now_s), clock=lambda: now_s)
    rested_s = []
    for rest_s in rests:
        now_s += rest_s
        rested_s.append(now_s)
        returns.rest()
    assert returned_s[0] == rested_s[0]
    for one, then in zip(returned_s, [*returned_s[1:], None], strict=True):
        due_s = one + GIVE_BACK_EVERY_S
        assert then == next((at_s for at_s in rested_s if at_s >= due_s), None)
