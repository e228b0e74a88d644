"""A failing trace becomes as small as it can be while it fails."""

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tools.fire.asks import Ask
from tools.fire.shrinking import minimal, shrunk
from tools.fire.trace import Act, Cut, Life, Trace, draw


@given(st.sets(st.integers(0, 40), max_size=4), st.integers(41, 60))
def test_of_many_items_only_those_are_left_that_it_takes(needed: set[int], n: int) -> None:
    assert minimal(range(n), lambda some: needed <= set(some)) == sorted(needed)


def test_a_trace_is_left_with_one_request_and_the_field_and_the_flag_that_matter() -> None:
    trace = draw(1, n_requests=60)
    asks = (*trace.asks, Ask("/execute", {"prompt": "a", "min_p": 0.5, "top_k": 3}))
    culprit = Act(7, len(asks) - 1, Cut(3))
    lives = (trace.lives[0], replace(trace.lives[1], acts=(*trace.lives[1].acts, culprit)))
    whole = replace(trace, asks=asks, lives=lives, has_cache_dir=True, has_draft_model=True)

    def fails(some: Trace) -> bool:
        sent = {name for ask in some.used for name in ask.body if ask.body[name] == 3}
        return "top_k" in sent and "--parallel" in some.flags

    smaller = shrunk(whole, fails)
    (life,) = smaller.lives
    assert life == Life((replace(culprit, ask=0),))
    assert [list(ask.body) for ask in smaller.asks] == [["top_k"]]
    assert smaller.flags[::2] == ("--parallel",)
    assert not smaller.has_cache_dir
    assert not smaller.has_draft_model
