"""Rounds of served requests beside llama-server and llama.cpp's benchmarks, all of one build, and their targets.

How a scenario is measured is the bench's (tools/bench), whose own report is kept beside this one. Starts servers as
child processes; does not load llama.cpp.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import msgspec

from tools.bench.asked import Asked
from tools.bench.load_command import measured
from tools.bench.measures import Unit as BenchUnit
from tools.bench.report import Line, Report
from tools.bench.scenarios import LLAMA_BATCHED_BENCH, LLAMA_BENCH
from tools.bench.servers import LLAMA_SERVER, NO_CACHE, OURS
from tools.cuda_check.report import Figure, Unit
from worker.host import cpu_quota

N_STREAMS = 32
_N_CELLS = 16_384
_MAX_THREADS = 8
"""The threads of both sides: a GPU's host has little to compute."""
_SEED = 1

ONE, EIGHT, SIXTEEN, ALL = (f"{n}-no-drafts" for n in ("1-stream", "8-streams", "16-streams", "32-streams"))
FIRST_TOKEN, SHARED_PREFIX, ENDS = "first-token", "shared-prefix", "ends"
SCENARIOS = (ONE, EIGHT, SIXTEEN, ALL, FIRST_TOKEN, SHARED_PREFIX, ENDS)
FEW = (ONE, FIRST_TOKEN)
"""The scenarios for testing the round with a model that takes a CPU milliseconds for each token."""

_UNITS: dict[BenchUnit, Unit] = {"tokens/s": "tokens/s", "ms": "ms", "tokens": "", "×": ""}


@dataclass(frozen=True, slots=True)
class Target:
    """A limit on our number by a peer's or, without a peer, on our number."""

    scenario: str
    peer: str | None
    at_least: float | None = None
    at_most: float | None = None


TARGETS = (
    Target(ONE, LLAMA_BENCH, at_least=0.97),
    *(Target(name, NO_CACHE, at_least=0.95) for name in (EIGHT, SIXTEEN, ALL)),
    *(Target(name, LLAMA_SERVER, at_least=1.5) for name in (EIGHT, SIXTEEN, ALL)),
    *(Target(name, LLAMA_BATCHED_BENCH, at_least=0.85) for name in (EIGHT, SIXTEEN, ALL)),
    *(Target(FIRST_TOKEN, peer, at_most=1.03) for peer in (NO_CACHE, LLAMA_SERVER)),
    *(Target(SHARED_PREFIX, peer, at_most=0.2) for peer in (NO_CACHE, LLAMA_SERVER)),
    Target(ENDS, None, at_most=1.0),
)
"""A peer is named as the bench names it. NO_CACHE copies no finished jobs to main memory, which costs a GPU tokens."""


PROGRAMS = (LLAMA_SERVER, LLAMA_BENCH, LLAMA_BATCHED_BENCH)
"""The peers: programs of the build that the worker has its libraries of."""


def serve(
    model: Path, device: str, peers: Path, out: Path, *, n_rounds: int, scenarios: tuple[str, ...] = SCENARIOS
) -> Report:
    """Measure the scenarios beside the programs in `peers`, and leave the bench's report in `out`.

    Raises: NotStarted, NotReached.
    """
    out.mkdir(parents=True, exist_ok=True)
    asked = Asked(
        model=str(model),
        models_dir=model.parent,
        rounds=n_rounds,
        scenarios=scenarios,
        ctx_size=_N_CELLS,
        parallel=N_STREAMS,
        threads=min(_MAX_THREADS, cpu_quota()),
        worker_flags=["--device", device],
        peer_binary=peers / LLAMA_SERVER,
        llama_bench=peers / LLAMA_BENCH,
        llama_batched_bench=peers / LLAMA_BATCHED_BENCH,
    )
    return measured(asked, _SEED, out)


def figures_of(report: Report, targets: Sequence[Target] = TARGETS) -> list[Figure]:
    """The numbers of every side, then ours by theirs, with the targets."""
    lines = [line for line in report.lines if line.is_own]
    return [
        msgspec.structs.replace(figure, model=report.circumstances.model)
        for figure in (*_numbers(lines), *_ratios(lines, targets))
    ]


def failures_of(report: Report, targets: Sequence[Target] = TARGETS) -> list[str]:
    """A line for each target that is missed or was not measured, and for each side's failed requests."""
    lines = [line for line in report.lines if line.is_own]
    missed = [figure for figure in _ratios(lines, targets) if not figure.holds]
    unknown = [line for line in lines if _target(line, targets) is not None and _value(line) is None]
    return [
        *(f"{figure.what}: {figure.value:.3g}, the target is {figure.bound}" for figure in missed),
        *(f"{_what(line)}: not measured" for line in unknown),
        *report.failures,
    ]


def _numbers(lines: Iterable[Line]) -> list[Figure]:
    """Each side's number once. Ours stands in a line for each peer; where it has a target itself, _ratios has it."""
    found: dict[str, Figure] = {}
    for line in lines:
        for side, numbers in ((OURS, line.ours), (line.peer, line.theirs)):
            if line.peer and numbers:
                what = f"{line.title}: {line.measure}, {side}"
                found[what] = Figure(what=what, value=median(numbers), unit=_UNITS[line.unit])
    return list(found.values())


def _ratios(lines: Iterable[Line], targets: Sequence[Target]) -> Iterator[Figure]:
    """Ours by each peer's; and ours alone, where no peer has the number or none is the measure."""
    for line in lines:
        value, target = _value(line), _target(line, targets) or Target(line.scenario, line.peer)
        unit = "" if line.peer else _UNITS[line.unit]
        if value is not None:
            yield Figure(what=_what(line), value=value, unit=unit, at_least=target.at_least, at_most=target.at_most)


def _what(line: Line) -> str:
    return f"{line.title}: {line.measure}" + (f" by {line.peer}'s" if line.peer else "")


def _value(line: Line) -> float | None:
    if line.peer is None:
        return median(line.ours) if line.ours else None
    return line.ratio.median if line.ratio else None


def _target(line: Line, targets: Sequence[Target]) -> Target | None:
    return next((one for one in targets if (one.scenario, one.peer) == (line.scenario, line.peer)), None)
