"""All that a run of `load` found: each measure of ours beside each peer's, the spread of their ratio, a verdict.

Pure: turns to lines, lines to the cells of tables. Refuses to know how it is measured and where it is written.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Literal

from tools.bench.measures import Bound, Measure, Unit
from tools.bench.overload import Overload
from tools.bench.processes import Memory
from tools.bench.scenarios import Scenario
from tools.bench.sides import Side, Turn
from tools.markdown import Cells
from worker.parity.provenance import Machine

MB = 1_000_000
FRONT_LIMIT_BYTES = 120 * MB
ENGINE_OVER_PEER_LIMIT_BYTES = 80 * MB

Verdict = Literal["holds", "MISSED", "FAILED", ""]
"""FAILED: requests failed, so that nothing is proven. Empty where there is no bound."""


@dataclass(slots=True)
class Played:
    """All turns of the counted rounds at one scenario."""

    scenario: Scenario
    sides: Sequence[Side] = ()
    """Those of the last round, ours first."""
    turns: dict[str, list[Turn]] = field(default_factory=dict)
    """By side; round by round."""


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

    def __str__(self) -> str:
        return f"{self.median:.3f} ({self.least:.3f} to {self.most:.3f})"


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
    """Empty where there is none; of the ratio where there is a peer, else of our number."""
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Resident:
    """Physical memory of one process after the warm-up, and what it may have."""

    process: str
    memory: Memory
    limit_bytes: int | None
    """Of what is resident."""
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Circumstances:
    """Where and with what it was measured."""

    created: str
    """RFC 3339."""
    model: str
    """File name."""
    machine: Machine
    versions: Mapping[str, str]
    """Of the packages, and of each peer as it says itself."""
    commands: Mapping[str, str]
    """By side: the flags it was started with, or that it was running."""
    openmp: Mapping[str, str]
    """OMP_* and GOMP_* of the environment, which all sides were given."""
    n_rounds: int
    """Counted ones; a warm-up came before."""
    seed: int
    """Of all prompts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """report.json is this."""

    circumstances: Circumstances
    lines: Sequence[Line]
    failures: Sequence[str]
    """A sentence for each side and scenario of which requests were not answered."""
    resident: Sequence[Resident]
    overload: Overload | None


# ── what was found ───────────────────────────────────────────────────────────────────────────────


def lines_of(played: Played) -> list[Line]:
    """By measure in the scenario's order, then by peer; a measure that no peer has stands alone."""
    _, *peers = played.sides
    found = []
    for measure in played.scenario.measures:
        beside = [peer for peer in peers if any(measure.name in turn.numbers for turn in played.turns[peer.name])]
        if measure.bound and measure.bound.of == "value":
            found.append(_line(played, measure, None, measure.bound))
        elif beside:
            found += [_line(played, measure, peer, peer.bound(measure)) for peer in beside]
        else:
            found.append(_line(played, measure, None, None))
    return found


def _line(played: Played, measure: Measure, peer: Side | None, bound: Bound | None) -> Line:
    our_turns = played.turns[played.sides[0].name]
    their_turns = played.turns[peer.name] if peer else []
    ours, theirs = _numbers(our_turns, measure), _numbers(their_turns, measure)
    ratios = [
        one.numbers[measure.name] / other.numbers[measure.name]
        for one, other in zip(our_turns, their_turns, strict=False)
        if measure.name in one.numbers and other.numbers.get(measure.name)
    ]
    judged = ratios if peer else ours
    has_failed = any(turn.n_failed for turn in our_turns)
    return Line(
        scenario=played.scenario.name,
        title=played.scenario.title,
        measure=measure.name,
        is_own=measure in played.scenario.own,
        unit=measure.unit,
        peer=peer.name if peer else None,
        ours=ours,
        theirs=theirs,
        ratio=Spread.of(ratios) if ratios else None,
        bound=str(bound or ""),
        verdict=_verdict(bound, median(judged) if judged and not has_failed else None),
    )


def _numbers(turns: Sequence[Turn], measure: Measure) -> tuple[float, ...]:
    return tuple(turn.numbers[measure.name] for turn in turns if measure.name in turn.numbers)


def _verdict(bound: Bound | None, value: float | None) -> Verdict:
    if bound is None:
        return ""
    if value is None:
        return "FAILED"
    return "holds" if bound.holds(value) else "MISSED"


def failures_of(played: Played) -> Iterator[str]:
    for side, turns in played.turns.items():
        if errors := [turn.error for turn in turns if turn.n_failed]:
            n_failed, n_asked = sum(turn.n_failed for turn in turns), sum(turn.n_asked for turn in turns)
            yield f"{played.scenario.name}: {n_failed} of {n_asked} requests failed on {side}, first: {errors[0]}"


def resident_of(sides: Mapping[str, Mapping[str, Memory | None]]) -> list[Resident]:
    """`sides`: by name the processes with their memory, ours first. The first server that is not ours is the measure of
    our engine; a process that cannot be looked into is left out."""
    peers = [known for parts in sides.values() if (known := parts.get("server")) is not None]
    limits = {"front": FRONT_LIMIT_BYTES}
    if peers:
        limits["engine"] = peers[0].resident_bytes + ENGINE_OVER_PEER_LIMIT_BYTES
    return [
        _resident(side if part == "server" else f"{side}, {part}", memory, limits.get(part))
        for side, parts in sides.items()
        for part, memory in parts.items()
        if memory is not None
    ]


def _resident(process: str, memory: Memory, limit: int | None) -> Resident:
    if limit is None:
        return Resident(process, memory, None, "")
    return Resident(process, memory, limit, "holds" if memory.resident_bytes <= limit else "MISSED")


# ── how it is told ───────────────────────────────────────────────────────────────────────────────


def tables(report: Report) -> Iterator[tuple[Cells, Sequence[Cells]]]:
    """Columns and rows: what the scenarios are there for, memory, the overload. `>`: aligned to the right."""
    columns = (
        "scenario (words in / tokens out)",
        "measure",
        ">ours",
        "peer",
        ">peer's",
        ">ours / peer's",
        ">bound",
        "",
    )
    yield columns, [_cells(line) for line in report.lines if line.is_own]
    if report.resident:
        rows = [
            (one.process, mb(one.memory.resident_bytes), mb(one.limit_bytes), one.verdict) for one in report.resident
        ]
        yield ("process after warm-up", ">resident", ">at most", ""), rows
    if report.overload:
        yield ("overload", ">"), list(_overload_rows(report.overload))


def bad_news(report: Report) -> Iterator[str]:
    """A sentence for each bound that does not hold, and for each request that failed."""
    for line in report.lines:
        if line.verdict == "MISSED":
            value = f"{line.ratio} beside {line.peer}" if line.peer else shown(line.ours, line.unit)
            yield f"{line.scenario}: {line.measure} is {value}, the bound is {line.bound}"
    for resident in report.resident:
        if resident.verdict == "MISSED":
            had = mb(resident.memory.resident_bytes)
            yield f"{resident.process} has {had}, the bound is {mb(resident.limit_bytes)}"
    yield from report.failures


def _cells(line: Line) -> Cells:
    return (
        line.title,
        line.measure,
        shown(line.ours, line.unit),
        line.peer or "",
        shown(line.theirs, line.unit) if line.peer else "",
        str(line.ratio or ""),
        line.bound,
        line.verdict,
    )


def _overload_rows(found: Overload) -> Iterator[Cells]:
    yield (
        f"{found.n_burst} jobs at once into {found.n_places} places",
        f"{found.n_answered} answered, {found.n_refused} refused, {found.n_failed} failed",
    )
    yield (
        f"a refusal, as the client sees it ({found.n_refusals})",
        f"median {found.median_us:.0f} µs, p99 {found.p99_us:.0f} µs",
    )
    yield "the first thousand and the last", f"{found.first_us:.0f} µs, {found.last_us:.0f} µs"
    if found.front_us is not None:
        yield "processor time of the front for one", f"{found.front_us:.0f} µs"


def shown(values: Sequence[float], unit: Unit) -> str:
    """Their median, `-` where there are none."""
    if not values:
        return "-"
    value = median(values)
    return f"{value:.3f} ×" if unit == "×" else f"{value:.{1 if abs(value) < 1000 else 0}f} {unit}"


def mb(n_bytes: int | None) -> str:
    return "" if n_bytes is None else f"{n_bytes / MB:.0f} MB"
