"""A picture of quality against memory, drawn with matplotlib. Owns how it looks, and nothing of what it shows."""

import worker.llama  # noqa: F401, I001 - before numpy, which brings another C++ library
import importlib.util
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from parity.choice import frontier
from parity.matrix import Made
from worker.errors import UsageError

_FORMS = (".svg", ".png", ".pdf")
_DOTS_PER_INCH = 150
_MARKERS = "osD^v"


def check(path: Path) -> None:
    """Check that `plot` can write this file, before anything is measured. Raises: UsageError."""
    if path.suffix not in _FORMS:
        raise UsageError(f"{path} is not a picture: its name must end in {', '.join(_FORMS[:-1])} or {_FORMS[-1]}")
    if not path.parent.is_dir():
        raise UsageError(f"{path.parent} is not a folder")
    if importlib.util.find_spec("matplotlib") is None:
        raise UsageError("a plot needs matplotlib: pip install -e '.[parity]' in a checkout")


def plot(options: Sequence[Made], chosen: Made | None, limit_bytes: int, path: Path, title: str) -> None:
    """Mean KL with its interval over planned memory, one kind of point for each cache type; a line joins those that
    nothing beats."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - an extra, and slow to import

    figure = Figure(figsize=(9, 6), layout="constrained")
    axes = figure.subplots()
    by_cache = groupby(sorted(options, key=lambda option: option.cache), key=lambda option: option.cache)
    for marker, (cache, group) in zip(_MARKERS, by_cache, strict=False):
        points = list(group)
        reach = [
            [max(0.0, point.kl.value - max(point.kl.low, point.kl.value / 10)) for point in points],
            [point.kl.high - point.kl.value for point in points],
        ]
        memory, kl = [point.memory_bytes / 2**20 for point in points], [point.kl.value for point in points]
        axes.errorbar(memory, kl, yerr=reach, fmt=marker, capsize=3, label=f"cache {cache}")
    for option in options:
        place = (option.memory_bytes / 2**20, option.kl.value)
        axes.annotate(option.file_type, place, textcoords="offset points", xytext=(6, 4), fontsize=8)
    best = sorted(frontier(options), key=lambda option: option.memory_bytes)
    axes.plot([each.memory_bytes / 2**20 for each in best], [each.kl.value for each in best], lw=1, color="grey")
    if chosen is not None:
        place = (chosen.memory_bytes / 2**20, chosen.kl.value)
        axes.plot(*place, "o", ms=16, mfc="none", mec="black", label="the choice")
    most = max(option.memory_bytes for option in options)
    if limit_bytes <= most:
        axes.axvline(limit_bytes / 2**20, ls="--", color="black", lw=1, label="the limit")
    axes.set(xlabel="planned memory, MiB", ylabel="mean KL to the reference, nats", yscale="log", title=title)
    axes.grid(visible=True, alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=_DOTS_PER_INCH)
