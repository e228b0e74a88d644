"""A report as a Markdown page: the table of bounds, then everything else. Pure."""

from collections.abc import Iterable, Iterator, Sequence

from tools.bench.report import Circumstances, Report
from tools.bench.wording import (
    COLUMNS,
    OVERLOAD_COLUMNS,
    RESIDENT_COLUMNS,
    USUAL_COLUMNS,
    Cells,
    bad_news,
    cells_of,
    overload_rows,
    own_lines,
    remarks,
    resident_cells,
    usual_rows,
)


def page(report: Report) -> str:
    """Ends with a line break."""
    blocks = [
        "# Under load",
        *_circumstances(report.circumstances),
        *table(COLUMNS, (cells_of(line) for line in own_lines(report))),
    ]
    if report.resident:
        blocks += table(RESIDENT_COLUMNS, (resident_cells(resident) for resident in report.resident))
    if report.overload:
        blocks += table(OVERLOAD_COLUMNS, overload_rows(report.overload))
    blocks += _list("What does not hold", bad_news(report))
    blocks += _list("Remarks", remarks(report))
    if rows := usual_rows(report):
        blocks += ["## Every scenario", *table(USUAL_COLUMNS, rows)]
    return "\n\n".join(blocks) + "\n"


def table(columns: Sequence[str], rows: Iterable[Cells]) -> Iterator[str]:
    """One block."""
    lines = [
        [column.removeprefix(">") for column in columns],
        ["---:" if column.startswith(">") else "---" for column in columns],
        *([cell.replace("|", "\\|") for cell in row] for row in rows),
    ]
    yield "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _circumstances(of: Circumstances) -> Iterator[str]:
    versions = ", ".join(f"{name} {version}" for name, version in of.versions.items())
    yield (
        f"{of.model} on {of.cpu}, {of.n_usable} processors, {of.system}; {of.created}. Medians of {of.n_rounds} rounds "
        f"after a warm-up, the sides in turns; the ratio is taken round by round: its median, least and most. "
        f"Seed of the prompts: {of.seed}. Versions: {versions}."
    )
    yield "\n".join(f"- {side}: `{command}`" for side, command in of.commands.items())
    if of.openmp:
        yield f"Environment: {', '.join(f'`{name}={value}`' for name, value in of.openmp.items())}."


def _list(title: str, items: Iterable[str]) -> list[str]:
    lines = [f"- {item}" for item in items]
    return [f"## {title}", "\n".join(lines)] if lines else []
