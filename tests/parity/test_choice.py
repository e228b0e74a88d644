"""The choice is within the limit, as close as any that is, and the fastest of those."""

from dataclasses import dataclass

from hypothesis import example, given
from hypothesis import strategies as st

from parity.choice import choose, frontier
from parity.estimates import Estimate


@dataclass(frozen=True)
class Option:
    name: str
    memory_bytes: int
    kl: Estimate
    tokens_per_s: float


def option(name: str, memory: int, kl: float, *, reach: float = 0.0, rate: float = 1.0) -> Option:
    return Option(name, memory, Estimate(kl, kl - reach, kl + reach), rate)


@st.composite
def options(draw: st.DrawFn) -> list[Option]:
    sizes, errors = st.integers(1, 20), st.floats(1e-6, 1.0)
    return [
        option(str(n), draw(sizes), draw(errors), reach=draw(errors) / 10, rate=draw(st.floats(1.0, 500.0)))
        for n in range(draw(st.integers(1, 32)))
    ]


@given(options(), st.integers(0, 21))
def test_the_choice_is_within_the_limit_and_nothing_there_is_surely_closer(found: list[Option], limit: int) -> None:
    chosen = choose(found, limit)
    within = [each for each in found if each.memory_bytes <= limit]
    if chosen is None:
        assert not within
        return
    assert chosen in within
    assert not any(each.kl.high < chosen.kl.low for each in within)
    closest = min(within, key=lambda each: each.kl.value)
    assert chosen.tokens_per_s >= closest.tokens_per_s


@given(options(), st.integers(0, 21), st.integers(0, 21))
@example(
    [
        option("Q4_0", 1, 0.5),
        option("Q8_0", 2, 0.45, reach=0.2),  # closest, but hardly known
        option("Q5_0", 2, 0.6, rate=100.0),
    ],
    1,
    2,
)
def test_more_memory_is_never_a_choice_that_is_surely_worse(found: list[Option], one: int, other: int) -> None:
    less, more = (choose(found, limit) for limit in sorted((one, other)))
    if less is not None:
        assert more is not None
        assert more.kl.low <= less.kl.high


@given(options())
def test_every_pair_is_on_the_frontier_or_beaten_by_one_that_is(found: list[Option]) -> None:
    best = frontier(found)
    assert best
    for each in found:
        mine = (each.memory_bytes, each.kl.value)
        as_good = [other for other in best if other.memory_bytes <= mine[0] and other.kl.value <= mine[1]]
        assert as_good
        if each in best:
            assert all((other.memory_bytes, other.kl.value) == mine for other in as_good)
