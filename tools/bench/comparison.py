"""Rounds to the lines of a report: each measure of ours beside each peer's, the spread of their ratio, a verdict.

Pure.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

from tools.bench.measures import Bound, Measure, Unit
from tools.bench.rounds import Played
from tools.bench.sides import Side, Turn

Verdict = Literal["holds", "MISSED", "FAILED", ""]
"""FAILED: requests failed, so that nothing is proven. Empty where there is no bound."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Of one number over the rounds."""

    least: float
    median: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Of at least one value."""
        return cls(min(values), median(values), max(values))


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One measure, of ours alone or beside one peer."""

    scenario: str
    title: str
    measure: str
    is_own: bool
    """Whether the scenario is there for it; the others are told of every scenario."""
    unit: Unit
    peer: str | None
    ours: tuple[float, ...]
    """Round by round; of a round in which anything failed there is no number."""
    theirs: tuple[float, ...]
    ratio: Spread | None
    """Ours / theirs, of the rounds in which both have a number."""
    bound: str
    """Empty where there is none."""
    limit: float | None
    """The bound's number."""
    is_of_ratio: bool
    """Whether the bound is; else it is of our number."""
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Failure:
    """Requests of one side that were not answered."""

    scenario: str
    side: str
    n_failed: int
    n_asked: int
    error: str


def lines_of(played: Played, sides: Sequence[Side]) -> list[Line]:
    """By measure in the scenario's order, then by peer; a measure that no peer has stands alone."""
    ours, *peers = [side for side in sides if side.name in played.turns]
    found = []
    for measure in played.scenario.measures:
        beside = [peer for peer in peers if any(measure.name in turn.numbers for turn in played.turns[peer.name])]
        if measure.bound and measure.bound.of == "value":
            found.append(_line(played, measure, ours, None, measure.bound))
        elif beside:
            found += [_line(played, measure, ours, peer, peer.bound(measure)) for peer in beside]
        else:
            found.append(_line(played, measure, ours, None, None))
    return found


def failures_of(played: Played) -> list[Failure]:
    return [
        Failure(
            played.scenario.name,
            side,
            sum(turn.n_failed for turn in turns),
            sum(turn.n_asked for turn in turns),
            next(turn.error for turn in turns if turn.error),
        )
        for side, turns in played.turns.items()
        if any(turn.n_failed for turn in turns)
    ]


def _line(played: Played, measure: Measure, ours: Side, peer: Side | None, bound: Bound | None) -> Line:
    our_turns = played.turns[ours.name]
    their_turns = played.turns[peer.name] if peer else []
    our_numbers, their_numbers = _numbers(our_turns, measure), _numbers(their_turns, measure)
    ratios = [
        one.numbers[measure.name] / other.numbers[measure.name]
        for one, other in zip(our_turns, their_turns, strict=False)
        if measure.name in one.numbers and other.numbers.get(measure.name)
    ]
    ratio = Spread.of(ratios) if ratios else None
    is_of_ratio = bound is None or bound.of == "ratio"
    judged = (ratio.median if ratio else None) if is_of_ratio else (median(our_numbers) if our_numbers else None)
    has_failed = any(turn.n_failed for turn in our_turns)
    return Line(
        scenario=played.scenario.name,
        title=played.scenario.title,
        measure=measure.name,
        is_own=measure in played.scenario.own,
        unit=measure.unit,
        peer=peer.name if peer else None,
        ours=our_numbers,
        theirs=their_numbers,
        ratio=ratio,
        bound=str(bound or ""),
        limit=bound.limit if bound else None,
        is_of_ratio=is_of_ratio,
        verdict=_verdict(bound, judged, has_failed=has_failed),
    )


def _numbers(turns: Sequence[Turn], measure: Measure) -> tuple[float, ...]:
    return tuple(turn.numbers[measure.name] for turn in turns if measure.name in turn.numbers)


def _verdict(bound: Bound | None, value: float | None, *, has_failed: bool) -> Verdict:
    if bound is None:
        return ""
    if value is None or has_failed:
        return "FAILED"
    return "holds" if bound.holds(value) else "MISSED"
