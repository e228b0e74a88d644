"""The numbers of a report as cells of a table, for the terminal and for Markdown alike. Pure."""

from collections.abc import Iterator, Sequence
from statistics import median

from tools.bench.comparison import Line
from tools.bench.measures import USUAL, Unit
from tools.bench.overload import Overload
from tools.bench.report import MB, Report, Resident

COLUMNS = ("scenario (words in / tokens out)", "measure", ">ours", "peer", ">peer's", ">ours / peer's", ">bound", "")
"""`>`: aligned to the right."""
RESIDENT_COLUMNS = ("process after warm-up", ">resident", ">at most", "")
OVERLOAD_COLUMNS = ("overload", ">")

USUAL_COLUMNS = ("scenario", "side", *(f">{measure.name}" for measure in USUAL))

Cells = tuple[str, ...]


def cells_of(line: Line) -> Cells:
    return (
        line.title,
        line.measure,
        shown(line.ours, line.unit),
        line.peer or "",
        shown(line.theirs, line.unit) if line.peer else "",
        _shown_ratio(line),
        line.bound,
        line.verdict,
    )


def own_lines(report: Report) -> list[Line]:
    """What the scenarios are there for."""
    return [line for line in report.lines if line.is_own]


def usual_rows(report: Report) -> list[Cells]:
    """What is told of every scenario, ours first, then each peer's."""
    sides: dict[tuple[str, str | None], dict[str, str]] = {}
    for line in report.lines:
        sides.setdefault((line.title, None), {})[line.measure] = shown(line.ours, line.unit)
        if line.peer:
            sides.setdefault((line.title, line.peer), {})[line.measure] = shown(line.theirs, line.unit)
    names = [measure.name for measure in USUAL]
    # A tool that serves nobody has none of them.
    return [
        (title, peer or "ours", *(cells.get(name, "-") for name in names))
        for (title, peer), cells in sides.items()
        if any(name in cells for name in names)
    ]


def resident_cells(resident: Resident) -> Cells:
    limit = "" if resident.limit_bytes is None else f"{resident.limit_bytes / MB:.0f} MB"
    return resident.process, f"{resident.resident_bytes / MB:.0f} MB", limit, resident.verdict


def overload_rows(overload: Overload) -> list[Cells]:
    rows: list[Cells] = [
        (
            f"{overload.n_burst} jobs at once into {overload.n_places} places",
            f"{overload.n_answered} answered, {overload.n_refused} refused, {overload.n_failed} failed",
        ),
        (
            f"a refusal, as the client sees it ({overload.n_refusals})",
            f"median {overload.median_us:.0f} µs, p99 {overload.p99_us:.0f} µs",
        ),
        ("the first thousand and the last", f"{overload.first_us:.0f} µs, {overload.last_us:.0f} µs"),
    ]
    if overload.front_us is not None:
        rows.append(("processor time of the front for one", f"{overload.front_us:.0f} µs"))
    return rows


def shown(values: Sequence[float], unit: Unit) -> str:
    """Their median, `-` where there are none."""
    if not values:
        return "-"
    value = median(values)
    return f"{value:.3f} ×" if unit == "×" else f"{value:.{_n_places(value)}f} {unit}"


def bad_news(report: Report) -> Iterator[str]:
    """A sentence for each bound that does not hold, and for each request that failed."""
    for line in report.lines:
        if line.verdict == "MISSED":
            value = shown(line.ours, line.unit)
            if line.is_of_ratio:
                value = f"{_shown_ratio(line)} beside {line.peer}"
            yield f"{line.scenario}: {line.measure} is {value}, the bound is {line.bound}"
    for resident in report.resident:
        if resident.verdict == "MISSED":
            _, found, limit, _ = resident_cells(resident)
            yield f"{resident.process} has {found}, the bound is {limit}"
    for failure in report.failures:
        yield (
            f"{failure.scenario}: {failure.n_failed} of {failure.n_asked} requests failed on {failure.side}, "
            f"first: {failure.error}"
        )


def remarks(report: Report) -> Iterator[str]:
    """What the reader must know besides."""
    yield from report.notes
    for name, share in report.restless.items():
        yield f"{name} used up to {share:.0%} of a processor while others were measured"


def _shown_ratio(line: Line) -> str:
    if line.ratio is None:
        return ""
    return f"{line.ratio.median:.3f} ({line.ratio.least:.3f} to {line.ratio.most:.3f})"


def _n_places(value: float) -> int:
    return 1 if abs(value) < 1000 else 0
