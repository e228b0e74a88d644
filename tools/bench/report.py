"""All that a run of `bench load` found, as one record: report.json is this, report.md is made of it.

Pure data, and which of its lines stand in the table. Refuses to know how it is measured and where it is written.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tools.bench.comparison import Failure, Line, Verdict
from tools.bench.overload import Overload

MB = 1_000_000
FRONT_LIMIT_BYTES = 120 * MB
ENGINE_OVER_PEER_LIMIT_BYTES = 80 * MB
_RESTLESS = 0.02
"""Of a processor; the clock of /proc alone may show one tick in a second."""


@dataclass(frozen=True, slots=True)
class Circumstances:
    """Where and with what it was measured."""

    created: str
    """RFC 3339."""
    model: str
    """File name."""
    cpu: str
    n_usable: int
    """Processors that the command may use."""
    system: str
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


@dataclass(frozen=True, slots=True)
class Resident:
    """Physical memory of one process after the warm-up, and what it may have."""

    process: str
    resident_bytes: int
    limit_bytes: int | None
    verdict: Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """In the order of the output."""

    circumstances: Circumstances
    lines: Sequence[Line]
    failures: Sequence[Failure]
    resident: Sequence[Resident]
    overload: Overload | None
    busiest_idle: Mapping[str, float]
    """By side: the most of a processor that it used while another one was measured."""
    notes: Sequence[str]
    """What was left out, and why."""

    @property
    def restless(self) -> dict[str, float]:
        """Those that disturbed the others."""
        return {name: share for name, share in self.busiest_idle.items() if share > _RESTLESS}


def resident_of(sides: Mapping[str, Mapping[str, int | None]]) -> list[Resident]:
    """`sides`: by name the processes with their bytes, ours first. The first server that is not ours is the measure of
    our engine; a process that cannot be looked into is left out."""
    peers = [known for parts in sides.values() if (known := parts.get("server")) is not None]
    found = []
    for side, parts in sides.items():
        for part, n_bytes in parts.items():
            if n_bytes is not None:
                process = side if part == "server" else f"{side}, {part}"
                found.append(_resident(process, n_bytes, _limit(part, peers)))
    return found


def _limit(part: str, peers: Sequence[int]) -> int | None:
    match part:
        case "front":
            return FRONT_LIMIT_BYTES
        case "engine" if peers:
            return peers[0] + ENGINE_OVER_PEER_LIMIT_BYTES
        case _:
            return None


def _resident(process: str, n_bytes: int, limit: int | None) -> Resident:
    if limit is None:
        return Resident(process, n_bytes, None, "")
    return Resident(process, n_bytes, limit, "holds" if n_bytes <= limit else "MISSED")
