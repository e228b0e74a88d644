"""Two plots of a report as PNG: the ratios with their bounds, and every round of what the scenarios are for.

matplotlib comes with the `parity` extra; it is imported when something is drawn, and without it there are no plots.
"""

import importlib.util
import io
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from worker.bench.comparison import Line
from worker.bench.report import Report
from worker.bench.wording import own_lines

HOW_TO_GET_PLOTS = "no plots: matplotlib is not installed (pip install 'llorch-worker[parity]')"

_COLOUR = "tab:blue"
_DOTS_PER_INCH = 100
_N_COLUMNS = 3


def can_draw() -> bool:
    return importlib.util.find_spec("matplotlib") is not None


def draw(report: Report) -> dict[str, bytes]:
    """File name → PNG; none where there is nothing to draw. Needs matplotlib (`can_draw`)."""
    lines = own_lines(report)
    compared = [line for line in lines if line.ratio]
    measured = [line for line in lines if line.ours]
    plots = {}
    if compared:
        plots["ratios.png"] = _ratios(compared)
    if measured:
        plots["rounds.png"] = _rounds(measured)
    return plots


def _ratios(lines: Sequence[Line]) -> bytes:
    """One below the other: median, spread, and a mark where the bound is."""
    figure = _figure(9.0, 1.5 + 0.4 * len(lines))
    axes = figure.subplots()
    for place, line in enumerate(lines):
        assert line.ratio is not None
        axes.plot([line.ratio.least, line.ratio.most], [place, place], color=_COLOUR, linewidth=2)
        axes.plot(line.ratio.median, place, "o", color=_COLOUR)
        if line.limit is not None and line.is_of_ratio:
            axes.plot(line.limit, place, "|", color="black", markersize=16)
    axes.axvline(1.0, color="0.7", linewidth=1)
    axes.set_xscale("log")
    _plain_numbers(axes.xaxis)
    axes.set_yticks(range(len(lines)), [f"{line.scenario}: {line.measure}, {line.peer}" for line in lines])
    axes.invert_yaxis()
    axes.set_xlabel("ours / peer's: median, least and most of the rounds; the bound is the upright line")
    return _png(figure)


def _rounds(lines: Sequence[Line]) -> bytes:
    """A small plot for each measure, a colour for each side."""
    groups = [list(group) for _, group in groupby(lines, key=lambda line: (line.scenario, line.measure))]
    n_rows = -(-len(groups) // _N_COLUMNS)
    figure = _figure(4.0 * _N_COLUMNS, 2.6 * n_rows)
    grid = list(figure.subplots(n_rows, _N_COLUMNS, squeeze=False).flat)
    for axes, group in zip(grid, groups, strict=False):
        _draw_rounds(axes, group)
    for axes in grid[len(groups) :]:
        axes.set_axis_off()
    return _png(figure)


def _draw_rounds(axes: Any, group: Sequence[Line]) -> None:
    series = [("ours", group[0].ours), *((line.peer, line.theirs) for line in group if line.peer)]
    for name, values in series:
        axes.plot(range(1, len(values) + 1), values, "o-", markersize=3, linewidth=1, label=name)
    axes.set_title(f"{group[0].scenario}: {group[0].measure}", fontsize="medium")
    axes.set_ylabel(group[0].unit)
    axes.set_xlim(0.5, 0.5 + max(len(values) for _, values in series))
    axes.set_ylim(0.0, 1.15 * max(value for _, values in series for value in values))
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.legend(frameon=False, fontsize="small")


def _figure(width_inches: float, height_inches: float) -> Any:
    from matplotlib.figure import Figure  # noqa: PLC0415 - an extra, and slow: only when a plot is drawn

    return Figure(figsize=(width_inches, height_inches), dpi=_DOTS_PER_INCH, layout="constrained")


def _plain_numbers(axis: Any) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter  # noqa: PLC0415 - as above

    axis.set_major_locator(LogLocator(subs=(1.0, 1.5, 2.0, 3.0, 5.0, 7.0)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def _png(figure: Any) -> bytes:
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415 - as above

    buffer = io.BytesIO()
    FigureCanvasAgg(figure).print_png(buffer, metadata={"Software": None})
    return buffer.getvalue()
