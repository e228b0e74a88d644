"""All that a run of `load` found: each measure of ours beside each peer's, the spread of their ratio, a verdict.

Pure: turns to lines.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Literal

from parity.provenance import Machine
from tools.bench.measures import Bound, Measure, Unit
from tools.bench.processes import Memory
from tools.bench.prompts import Text
from tools.bench.scenarios import Scenario
from tools.bench.sides import Side, Turn

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
    """The sides of the last round, ours first."""
    turns: dict[str, list[Turn]] = field(default_factory=dict)
    """The turns by side, round by round."""


@dataclass(frozen=True, slots=True)
class Spread:
    """The spread of one number over the rounds."""

    least: float
    median: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """The spread of at least one value."""
        return cls(min(values), median(values), max(values))

    def __str__(self) -> str:
        return f"{self.median:.3f} ({self.least:.3f} to {self.most:.3f})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One measure, of ours alone or beside one peer."""

    scenario: str
    title: str
    text: Text
    has_drafts: bool
    measure: str
    is_own: bool
    """True if the scenario is meant for it; every scenario reports the others."""
    unit: Unit
    peer: str | None
    is_beside: bool
    """True if the peer is only reported, as a column."""
    ours: tuple[float, ...]
    """Round by round; of a round in which anything failed there is no number."""
    theirs: tuple[float, ...]
    ratio: Spread | None
    """Ours / theirs, of the rounds in which both have a number."""
    bound: str
    """Empty where there is none; of the ratio where there is a peer, else of our number."""
    verdict: Verdict
    ours_per_cpu_s: tuple[float, ...]
    """Tokens of prompts and answers by processor time, round by round, if it is known."""
    theirs_per_cpu_s: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Resident:
    """Physical memory of one process after the warm-up, and what it may have."""

    process: str
    memory: Memory
    limit_bytes: int | None
    """The limit on resident memory."""
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Circumstances:
    """The machine and the versions of the measurement."""

    created: str
    """RFC 3339."""
    model: str
    """File name."""
    machine: Machine
    versions: Mapping[str, str]
    """The versions of the packages, and of each peer as it reports itself."""
    commands: Mapping[str, str]
    """The flags of each side, or a note that it was running already."""
    openmp: Mapping[str, str]
    """OMP_* and GOMP_* of the environment, which all sides were given."""
    n_rounds: int
    """Counted ones; a warm-up came before."""
    seed: int
    """The seed of all prompts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """report.json is this."""

    circumstances: Circumstances
    lines: Sequence[Line]
    failures: Sequence[str]
    """A sentence for each side and scenario of which requests were not answered."""
    resident: Sequence[Resident]


def lines_of(played: Played) -> list[Line]:
    """The lines by measure in the scenario's order, then by peer; a measure that no peer has is a line of its own."""
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
    has_failed = any(turn.n_failed for turn in our_turns)
    return Line(
        scenario=played.scenario.name,
        title=played.scenario.title,
        text=played.scenario.text,
        has_drafts=played.scenario.has_drafts,
        measure=measure.name,
        is_own=measure in played.scenario.own,
        unit=measure.unit,
        peer=peer.name if peer else None,
        is_beside=peer is not None and peer.part == "beside",
        ours=ours,
        theirs=theirs,
        ratio=Spread.of(ratios) if ratios else None,
        bound=str(bound or ""),
        verdict=_verdict(bound, ours, ratios if peer else ours, has_failed=has_failed),
        ours_per_cpu_s=_per_cpu_s(our_turns),
        theirs_per_cpu_s=_per_cpu_s(their_turns),
    )


def _per_cpu_s(turns: Iterable[Turn]) -> tuple[float, ...]:
    return tuple(turn.per_cpu_s for turn in turns if turn.per_cpu_s)


def _numbers(turns: Sequence[Turn], measure: Measure) -> tuple[float, ...]:
    return tuple(turn.numbers[measure.name] for turn in turns if measure.name in turn.numbers)


def _verdict(bound: Bound | None, ours: Sequence[float], judged: Sequence[float], *, has_failed: bool) -> Verdict:
    """`judged` are the ratios, or our own numbers."""
    if bound is None:
        return ""
    if not judged or has_failed:
        return "FAILED"
    return "holds" if bound.holds(median(judged)) or bound.holds_alone(median(ours)) else "MISSED"


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
