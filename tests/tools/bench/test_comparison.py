"""Rounds to lines: ratios round by round, their spread, the verdict by the median."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tools.bench.measures import Ask, Bound, Measure, at_least, at_most, stream_rate
from tools.bench.prompts import Prompts
from tools.bench.report import Line, Played, Spread, lines_of
from tools.bench.scenarios import SCENARIOS, Scenario
from tools.bench.session import Rounds
from tools.bench.sides import Part, Turn

MISSING = st.lists(st.one_of(st.none(), st.floats(0.1, 1000)), min_size=1, max_size=9)


@dataclass
class FakeSide:
    """Its n-th turn gives the n-th value for every measure of the scenario; None is a turn that failed."""

    name: str
    values: Sequence[float | None]
    part: Part = "judged"
    pids: Sequence[int] = ()
    n_turns: int = 0

    def plays(self, scenario: Scenario) -> bool:
        return True

    def bound(self, measure: Measure) -> Bound | None:
        return measure.bound if self.part == "judged" else None

    async def turn(self, scenario: Scenario, asks: Sequence[Ask]) -> Turn:
        value = self.values[self.n_turns % len(self.values)]
        self.n_turns += 1
        if value is None:
            return Turn(numbers={}, n_asked=4, n_failed=1, error="the stream was cut")
        numbers = {measure.name: value for measure in scenario.measures}
        return Turn(numbers=numbers, n_asked=4)


def scenario(bound: Bound | None = None) -> Scenario:
    return replace(SCENARIOS[0], own=(stream_rate(bound),))


def played(one: Scenario, sides: Sequence[FakeSide]) -> Played:
    rounds = Rounds([one], Prompts(1), lambda *_: None)
    for number in range(1, 1 + max(len(side.values) for side in sides)):
        asyncio.run(rounds.play(number, sides))
    return rounds.played[0]


def headline(
    ours: Sequence[float | None], theirs: Sequence[float | None], bound: Bound | None = None, part: Part = "judged"
) -> Line:
    sides = [FakeSide("ours", ours, "ours"), FakeSide("peer", theirs, part)]
    return lines_of(played(scenario(bound), sides))[0]


@given(MISSING, MISSING)
def test_only_rounds_in_which_both_have_a_number_make_a_ratio(
    ours: list[float | None], theirs: list[float | None]
) -> None:
    n_rounds = min(len(ours), len(theirs))
    ours, theirs = ours[:n_rounds], theirs[:n_rounds]
    pairs = [(one, other) for one, other in zip(ours, theirs, strict=True) if one is not None and other is not None]
    line = headline(ours, theirs)
    assert line.ours == tuple(value for value in ours if value is not None)
    assert line.ratio == (Spread.of([one / other for one, other in pairs]) if pairs else None)


@pytest.mark.parametrize(
    ("bound", "ours", "verdict"),
    [
        (at_least(1.0), [10.0, 10.0, 1.0], "holds"),
        (at_least(1.0), [10.0, 9.9, 9.9], "MISSED"),
        (at_most(0.5), [5.0, 5.0, 50.0], "holds"),
        (at_most(0.5), [5.1, 5.1, 1.0], "MISSED"),
        (None, [1.0, 1.0, 1.0], ""),
        (at_most(0.5, or_value=20.0), [20.0, 20.0, 90.0], "holds"),
        (at_most(0.5, or_value=20.0), [20.1, 20.1, 1.0], "MISSED"),
        (at_most(3.0, or_value=20.0), [30.0, 30.0, 30.0], "holds"),
        (at_least(0.1), [10.0, None, 10.0], "FAILED"),
        (at_least(0.1), [None, None, None], "FAILED"),
    ],
)
def test_the_median_ratio_decides(bound: Bound | None, ours: list[float | None], verdict: str) -> None:
    assert headline(ours, [10.0, 10.0, 10.0], bound).verdict == verdict


def test_a_peer_that_failed_everywhere_or_is_only_shown_and_no_peer_prove_nothing() -> None:
    line = headline([1.0, 2.0], [None, None], at_least(0.5))
    assert (line.peer, line.ratio, line.verdict) == (None, None, "")
    line = headline([1.0], [2.0], at_least(1.0), "beside")
    assert (line.ratio, line.is_beside, line.bound, line.verdict) == (Spread(0.5, 0.5, 0.5), True, "", "")
    line, *_ = lines_of(played(scenario(at_least(1.0)), [FakeSide("ours", [3.0])]))
    assert (line.ours, line.peer, line.bound, line.verdict) == ((3.0,), None, "", "")


@pytest.mark.parametrize(("limit", "verdict"), [(3.0, "holds"), (2.9, "MISSED")])
def test_a_bound_of_the_value_is_judged_without_a_peer(limit: float, verdict: str) -> None:
    sides = [FakeSide("ours", [1.0, 3.0, 9.0])]
    line, *_ = lines_of(played(scenario(Bound("at most", limit, "value")), sides))
    assert (line.peer, line.verdict) == (None, verdict)
