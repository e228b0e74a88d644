"""A report as the cells of tables, and as the sentences of what is wrong in it.

Pure.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from statistics import median

from tools.bench.measures import Unit
from tools.bench.report import MB, Circumstances, Line, Report, Spread
from tools.markdown import Cells


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
    yield columns, [_cells(line, [_beside(own, line, peer) for peer in beside]) for line in _rows(own)]
    if report.resident:
        rows = [
            (one.process, mb(one.memory.resident_bytes), mb(one.limit_bytes), one.verdict) for one in report.resident
        ]
        yield ("process after warm-up", ">resident", ">at most", ""), rows
    yield circumstances(report.circumstances)


def _rows(own: Sequence[Line]) -> Iterator[Line]:
    """A row for each line but those of a peer that is a column of another row."""
    rows = {(line.scenario, line.measure) for line in own if not line.is_beside}
    for line in own:
        if not line.is_beside:
            yield line
        elif (line.scenario, line.measure) not in rows:
            rows.add((line.scenario, line.measure))
            yield replace(line, peer=None, theirs=(), ratio=None, theirs_per_cpu_s=())


def _beside(own: Iterable[Line], row: Line, peer: str) -> Line | None:
    lines = (line for line in own if line.peer == peer)
    return next((line for line in lines if (line.scenario, line.measure) == (row.scenario, row.measure)), None)


def bad_news(report: Report) -> Iterator[str]:
    """A sentence for each bound that does not hold, and for each request that failed."""
    yield from missed(report)
    for resident in report.resident:
        if resident.verdict == "MISSED":
            had = mb(resident.memory.resident_bytes)
            yield f"{resident.process} has {had}, the bound is {mb(resident.limit_bytes)}"
    yield from report.failures


def missed(report: Report) -> Iterator[str]:
    """A sentence for each measure whose bound does not hold."""
    for line in report.lines:
        if line.verdict == "MISSED":
            value = f"{line.ratio} beside {line.peer}" if line.peer else shown(line.ours, line.unit)
            yield f"{line.scenario}: {line.measure} is {value}, the bound is {line.bound}"


def _cells(line: Line, beside: Iterable[Line | None]) -> Cells:
    return (
        line.title,
        line.text,
        "on" if line.has_drafts else "off",
        line.measure,
        shown(line.ours, line.unit),
        line.peer or "",
        shown(line.theirs, line.unit) if line.peer else "",
        str(line.ratio or ""),
        line.bound,
        line.verdict,
        *(f"{shown(one.theirs, one.unit)}, {_median_of(one.ratio)}" if one else "" for one in beside),
        *(f"{median(rates):.1f}" if rates else "" for rates in (line.ours_per_cpu_s, line.theirs_per_cpu_s)),
    )


def _median_of(ratio: Spread | None) -> str:
    return "-" if ratio is None else f"{ratio.median:.3f}"


def circumstances(found: Circumstances) -> tuple[Cells, Sequence[Cells]]:
    """Columns and rows: with what and where it was measured."""
    return ("measured", ""), list(_circumstances_rows(found))


def _circumstances_rows(found: Circumstances) -> Iterator[Cells]:
    machine = found.machine
    yield "model", found.model
    yield "when", f"{found.created}, {found.n_rounds} rounds, seed {found.seed}"
    yield "machine", f"{machine.cpu}, {machine.n_usable} of {machine.n_cores} processors, {machine.system}"
    for name, command in found.commands.items():
        yield name, " ".join(filter(None, [command, f"({found.versions[name]})" if name in found.versions else ""]))


def shown(values: Sequence[float], unit: Unit) -> str:
    """Their median, `-` where there are none."""
    if not values:
        return "-"
    value = median(values)
    return f"{value:.3f} ×" if unit == "×" else f"{value:.{1 if abs(value) < 1000 else 0}f} {unit}"


def mb(n_bytes: int | None) -> str:
    return "" if n_bytes is None else f"{n_bytes / MB:.0f} MB"
