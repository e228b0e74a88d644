"""The series of a report as PNG files: lines or points over their labels, histograms where there are no labels.

Owns: what is drawn how. matplotlib comes with the `parity` extra; it is imported when something is drawn, and without
it there are no plots. Draws on the Agg canvas in matplotlib's own style, so that the same series give the same bytes.
"""

import importlib.util
import io
import re
from collections.abc import Iterable, Sequence
from math import isfinite
from typing import Any

import numpy as np

from worker.parity.results import Series

FOLDER = "plots"
HOW_TO_GET_PLOTS = "Plots are missing: matplotlib is not installed (`pip install 'llorch-worker[parity]'`)."

_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_WHOLE_NUMBER = re.compile(r"-?[0-9]+")
_SIZE_INCHES, _DOTS_PER_INCH = (9.0, 5.0), 100
_N_BINS = 60
_MOST_TICKS = 24
"""Names that still stand beside each other below a plot of that width."""
_BELOW = 0.1
"""Zeros on a logarithmic axis are drawn at this share of the smallest positive value."""
_LONG_AXIS = 200.0
"""From a ratio of its ends on, the powers of ten are marks enough on a logarithmic axis."""
_COLOURS = "tab20"
_N_COLOURS = 20
_MOST_LINES_INSIDE = 6
"""More of them have their legend beside the plot."""


def file_of(name: str) -> str:
    """Where the plot of that series lies, relative to its report. Raises: ValueError for a name that is no word."""
    if not _NAME.fullmatch(name):
        raise ValueError(f"a plot cannot be called {name!r}: lower case words joined by -")
    return f"{FOLDER}/{name}.png"


def can_draw() -> bool:
    return importlib.util.find_spec("matplotlib") is not None


def draw(series: Iterable[Series]) -> dict[str, bytes]:
    """File → PNG, one for each name; series of one name are its lines. Needs matplotlib (`can_draw`)."""
    plots: dict[str, list[Series]] = {}
    for one in series:
        plots.setdefault(file_of(one.name), []).append(one)
    return {file: _png(lines) for file, lines in plots.items()}


def _png(lines: Sequence[Series]) -> bytes:
    import matplotlib.style  # noqa: PLC0415 - an extra, and slow: only when a plot is drawn
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415 - as above
    from matplotlib.figure import Figure  # noqa: PLC0415 - as above

    with matplotlib.style.context(["default", {"text.parse_math": False, "font.size": 9.0}]):
        figure = Figure(figsize=_SIZE_INCHES, dpi=_DOTS_PER_INCH, layout="constrained")
        axes = figure.subplots()
        axes.set_prop_cycle(color=_colours(len(lines)))
        axes.grid(visible=True, which="major", color="0.9")
        axes.set_axisbelow(True)
        note = (_draw_over_labels if any(one.labels for one in lines) else _draw_histogram)(axes, lines)
        axes.set_title("\n".join(filter(None, (_drawable(lines[0].title), note))))
        if len(lines) > _MOST_LINES_INSIDE:
            figure.legend(loc="outside right upper", frameon=False)
        elif any(one.line for one in lines):
            axes.legend()
        buffer = io.BytesIO()
        FigureCanvasAgg(figure).print_png(buffer, metadata={"Software": None})
    return buffer.getvalue()


def _colours(n_lines: int) -> list[Any]:
    """All dark ones first, their pale twins after them; they repeat past twenty lines."""
    import matplotlib  # noqa: PLC0415 - as in _png

    colours = matplotlib.colormaps[_COLOURS]
    return [colours((2 * n + 2 * n // _N_COLOURS) % _N_COLOURS) for n in range(n_lines)]


# ── values over labels ───────────────────────────────────────────────────────────────────────────


def _draw_over_labels(axes: Any, lines: Sequence[Series]) -> str:
    """What the reader must know besides, or nothing."""
    labels = list(dict.fromkeys(label for one in lines for label in one.labels))
    is_axis = all(_WHOLE_NUMBER.fullmatch(label) for label in labels)
    if is_axis:
        labels.sort(key=int)
    place = {label: index for index, label in enumerate(labels)}
    floor = _floor(lines)
    # Numbers are an axis, along which values may be joined; names are places beside each other.
    style = "-" if is_axis else ""
    for one in lines:
        points = [(place[label], value) for label, value in zip(one.labels, one.values, strict=True) if isfinite(value)]
        at = [x for x, _ in points]
        shown = [max(value, floor) if floor else value for _, value in points]
        axes.plot(at, shown, linestyle=style, marker="o", markersize=3, linewidth=1, label=_drawable(one.line))
    if floor:
        axes.set_yscale("log")
        _plain_numbers(axes.yaxis, axes.get_ylim())
    _set_ticks(axes, labels)
    axes.set_xlabel(_drawable(_axis_in(lines[0].title)))
    axes.set_ylabel(_unit(lines))
    return _note_on(lines, floor)


def _note_on(lines: Sequence[Series], floor: float) -> str:
    n_zeros = sum(value <= 0 for one in lines for value in one.values)
    n_not_finite = sum(not isfinite(value) for one in lines for value in one.values)
    zeros = f"{_values(n_zeros)} of 0 drawn at {floor:.0e}" if floor and n_zeros else ""
    left_out = f"{_values(n_not_finite)} not finite left out" if n_not_finite else ""
    return ", ".join(filter(None, (zeros, left_out)))


def _set_ticks(axes: Any, labels: Sequence[str]) -> None:
    """As many as can be read."""
    ticks = range(0, len(labels), -(-len(labels) // _MOST_TICKS) or 1)
    is_long = any(len(labels[tick]) > 3 for tick in ticks)
    axes.set_xticks(list(ticks), [_drawable(labels[tick]) for tick in ticks], rotation=60 if is_long else 0)
    if is_long:
        for text in axes.get_xticklabels():
            text.set(ha="right", rotation_mode="anchor")


def _floor(lines: Sequence[Series]) -> float:
    """Where zeros are drawn on a logarithmic axis; 0 for a linear one."""
    positive = [value for one in lines for value in one.values if isfinite(value) and value > 0]
    if not positive or not all(one.is_log for one in lines):
        return 0.0
    has_zeros = any(value <= 0 for one in lines for value in one.values)
    return min(positive) * (_BELOW if has_zeros else 1.0)


# ── histograms ───────────────────────────────────────────────────────────────────────────────────


def _draw_histogram(axes: Any, lines: Sequence[Series]) -> str:
    """What the reader must know besides, or nothing."""
    is_log = all(one.is_log for one in lines)
    kept = [[value for value in one.values if isfinite(value) and (value > 0 or not is_log)] for one in lines]
    edges = _edges([value for values in kept for value in values], is_log=is_log)
    for one, values in zip(lines, kept, strict=True):
        axes.hist(values, bins=edges, histtype="stepfilled", alpha=0.6, label=_drawable(one.line))
    if is_log:
        axes.set_xscale("log")
        _plain_numbers(axes.xaxis, axes.get_xlim())
    axes.set_xlabel(_unit(lines))
    axes.set_ylabel("count")
    n_left_out = sum(len(one.values) for one in lines) - sum(len(values) for values in kept)
    return f"{_values(n_left_out)} of 0 or not finite left out" if n_left_out else ""


def _edges(values: Sequence[float], *, is_log: bool) -> list[float]:
    """Of _N_BINS bins; a little apart where all values are the same."""
    if not values:
        return [1.0, 10.0]
    low, high = min(values), max(values)
    if is_log:
        return [float(edge) for edge in np.geomspace(low / 1.01, high * 1.01, _N_BINS + 1)]
    room = (high - low) * 0.01 or 0.5
    return [float(edge) for edge in np.linspace(low - room, high + room, _N_BINS + 1)]


# ── words ────────────────────────────────────────────────────────────────────────────────────────


def _plain_numbers(axis: Any, limits: tuple[float, float]) -> None:
    """1e-05 instead of formulas, which text without mathematics would show as their source. 2 and 5 on short axes."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter  # noqa: PLC0415 - as in _png

    low, high = limits
    axis.set_major_locator(LogLocator(subs=(1.0,) if high / low > _LONG_AXIS else (1.0, 2.0, 5.0)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def _unit(lines: Sequence[Series]) -> str:
    return next((_drawable(one.unit) for one in lines if one.unit), "")


def _values(n: int) -> str:
    return "1 value" if n == 1 else f"{n} values"


def _axis_in(title: str) -> str:
    """`Error per layer` is drawn over layers."""
    _, _, axis = re.sub(r" by ", " per ", title).partition(" per ")
    return axis


def _drawable(text: str) -> str:
    """What matplotlib's own font has: Latin, Greek, Cyrillic, punctuation, arrows and mathematics."""
    return "".join(
        char if char.isprintable() and (char < "\u0500" or "\u2000" <= char < "\u2300") else ascii(char)[1:-1]
        for char in text
    )
