"""All that a run of `load` found: each measure of ours beside each peer's, the spread of their ratio, a verdict.

Pure: turns to lines, and lines to the cells of tables and the sentences of what is wrong.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Literal

from parity.provenance import Machine
from tools.bench.measures import Bound, Measure, Unit
from tools.bench.processes import Memory
from tools.bench.prompts import Text
from tools.bench.scenarios import Scenario
from tools.bench.sides import Side, Turn
from tools.markdown import Cells

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
        ours_per_cpu_s=tuple(turn.per_cpu_s for turn in our_turns if turn.per_cpu_s),
        theirs_per_cpu_s=tuple(turn.per_cpu_s for turn in their_turns if turn.per_cpu_s),
    )


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
    found = []
    for side, parts in sides.items():
        for part, memory in parts.items():
            limit = limits.get(part)
            if memory is not None:
                verdict: Verdict = "" if limit is None else "holds" if memory.resident_bytes <= limit else "MISSED"
                found.append(Resident(side if part == "server" else f"{side}, {part}", memory, limit, verdict))
    return found


# ── tables and sentences ─────────────────────────────────────────────────────────────────────────


def tables(report: Report) -> Iterator[tuple[Cells, Sequence[Cells]]]:
    """Columns and rows: the main measures of the scenarios, with a column for each peer that is only reported; memory,
    the circumstances. `>`: aligned to the right."""
    own = [line for line in report.lines if line.is_own]
    beside = list(dict.fromkeys(line.peer for line in own if line.peer and line.is_beside))
    columns = (
        *("scenario (words in / tokens out)", "text", "drafts", "measure", ">ours"),
        *("peer", ">peer's", ">ours / peer's", ">bound", ""),
        *(f">{peer}: its, ours / its" for peer in beside),
        *(">tokens per CPU second, ours", ">peer's"),
    )
    by_peer = {(line.scenario, line.measure, line.peer): line for line in own}
    yield (
        columns,
        [_cells(row, [by_peer.get((row.scenario, row.measure, peer)) for peer in beside]) for row in _rows(own)],
    )
    if report.resident:
        rows = [
            (one.process, _mb(one.memory.resident_bytes), _mb(one.limit_bytes), one.verdict) for one in report.resident
        ]
        yield ("process after warm-up", ">resident", ">at most", ""), rows
    yield ("measured", ""), list(_measured(report.circumstances))


def bad_news(report: Report) -> Iterator[str]:
    """A sentence for each bound that does not hold, and for each request that failed."""
    for line in report.lines:
        if line.verdict == "MISSED":
            value = f"{line.ratio} beside {line.peer}" if line.peer else _shown(line.ours, line.unit)
            yield f"{line.scenario}: {line.measure} is {value}, the bound is {line.bound}"
    for one in report.resident:
        if one.verdict == "MISSED":
            yield f"{one.process} has {_mb(one.memory.resident_bytes)}, the bound is {_mb(one.limit_bytes)}"
    yield from report.failures


def _rows(own: Sequence[Line]) -> Iterator[Line]:
    """A row for each line but those of a peer that is a column of another row."""
    rows = {(line.scenario, line.measure) for line in own if not line.is_beside}
    for line in own:
        if not line.is_beside:
            yield line
        elif (line.scenario, line.measure) not in rows:
            rows.add((line.scenario, line.measure))
            yield replace(line, peer=None, theirs=(), ratio=None, theirs_per_cpu_s=())


def _cells(line: Line, beside: Iterable[Line | None]) -> Cells:
    ratios = [(one, f"{one.ratio.median:.3f}" if one.ratio else "-") if one else None for one in beside]
    return (
        *(line.title, line.text, "on" if line.has_drafts else "off", line.measure, _shown(line.ours, line.unit)),
        *(line.peer or "", _shown(line.theirs, line.unit) if line.peer else "", str(line.ratio or "")),
        *(line.bound, line.verdict),
        *(f"{_shown(one[0].theirs, one[0].unit)}, {one[1]}" if one else "" for one in ratios),
        *(f"{median(rates):.1f}" if rates else "" for rates in (line.ours_per_cpu_s, line.theirs_per_cpu_s)),
    )


def _measured(found: Circumstances) -> Iterator[Cells]:
    """The machine, the model and the sides."""
    machine = found.machine
    yield "model", found.model
    yield "when", f"{found.created}, {found.n_rounds} rounds, seed {found.seed}"
    yield "machine", f"{machine.cpu}, {machine.n_usable} of {machine.n_cores} processors, {machine.system}"
    for name, command in found.commands.items():
        yield name, " ".join(filter(None, [command, f"({found.versions[name]})" if name in found.versions else ""]))


def _shown(values: Sequence[float], unit: Unit) -> str:
    """Their median, `-` where there are none."""
    if not values:
        return "-"
    value = median(values)
    return f"{value:.3f} ×" if unit == "×" else f"{value:.{1 if abs(value) < 1000 else 0}f} {unit}"


def _mb(n_bytes: int | None) -> str:
    return "" if n_bytes is None else f"{n_bytes / MB:.0f} MB"
