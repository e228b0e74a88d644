"""The panels of deploy/grafana as a picture, drawn from what a Prometheus remembers of the last minutes.

    python tools/board_picture.py http://127.0.0.1:9090 docs/pictures/board.png --minutes 5

It needs matplotlib, and nothing of the worker's. Every panel is drawn as lines over time, also those that Grafana shows
as a number.
"""

import argparse
import io
import json
import time
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib import pyplot
from matplotlib.ticker import FuncFormatter, MaxNLocator
from PIL import Image

BOARD = Path(__file__).parents[1] / "deploy" / "grafana" / "llorch-worker.json"
N_POINTS = 120
N_COLOURS = 128
"""The number of colours of the picture, which halves its size."""
COLUMNS = 3
SUFFIXES = {"s": " s", "reqps": " /s", "ops": " /s", "short": ""}

Series = tuple[str, list[float], list[float]]
"""A legend, seconds before the end, values."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("prometheus", help="its address")
    parser.add_argument("picture", type=Path)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--rate-seconds", type=int, default=20, help="Grafana's $__rate_interval")
    given = parser.parse_args()
    panels = json.loads(BOARD.read_text())["panels"]
    mpl.rcParams.update({"font.size": 7, "axes.titlesize": 8, "legend.fontsize": 6, "lines.linewidth": 1.0})
    n_rows = -(-len(panels) // COLUMNS)
    figure, places = pyplot.subplots(n_rows, COLUMNS, figsize=(12, 2 * n_rows), layout="constrained")
    for place in places.flat[len(panels) :]:
        place.remove()
    for panel, place in zip(panels, places.flat, strict=False):
        draw(panel, place, [line for target in panel["targets"] for line in asked(target, given)])
        place.set_xlim(-given.minutes * 60, 0)
    pixels = io.BytesIO()
    figure.savefig(pixels, dpi=80)
    Image.open(pixels).convert("RGB").quantize(N_COLOURS).save(given.picture, optimize=True)


def asked(target: dict[str, str], given: argparse.Namespace) -> list[Series]:
    """The lines of one query of a panel. Raises: OSError where Prometheus does not answer or refuses it."""
    end_s, length_s = time.time(), given.minutes * 60
    expression = target["expr"].replace("$worker", ".*").replace("$__rate_interval", f"{given.rate_seconds}s")
    query = {"query": expression, "start": end_s - length_s, "end": end_s, "step": length_s / N_POINTS}
    with urllib.request.urlopen(f"{given.prometheus}/api/v1/query_range?{urllib.parse.urlencode(query)}") as answer:  # noqa: S310 - the address that was given
        found = json.load(answer)["data"]["result"]
    return [(legend(target, each["metric"]), *points(each["values"], end_s)) for each in found]


def legend(target: dict[str, str], labels: dict[str, str]) -> str:
    text = target["legendFormat"]
    for name, value in labels.items():
        text = text.replace("{{" + name + "}}", value)
    return text


def points(values: list[tuple[float, str]], end_s: float) -> tuple[list[float], list[float]]:
    """Seconds and values; Prometheus writes numbers as text, among them NaN, at which a line breaks."""
    return [at_s - end_s for at_s, _ in values], [float(value) for _, value in values]


def draw(panel: dict[str, Any], place: Any, lines: list[Series]) -> None:
    unit, defaults = panel["fieldConfig"]["defaults"]["unit"], panel["fieldConfig"]["defaults"]
    for name, seconds, values in lines:
        place.plot(seconds, values, label=name)
    place.set_title(panel["title"], loc="left")
    place.set_ylim(bottom=defaults.get("min"), top=defaults.get("max"))
    place.yaxis.set_major_formatter(FuncFormatter(lambda value, _: shown(value, unit)))
    place.xaxis.set_major_locator(MaxNLocator(5, steps=[3, 6]))
    place.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g} s"))
    place.grid(visible=True, alpha=0.3)
    if lines:
        place.legend(loc="upper left", frameon=False, ncols=2).set_in_layout(False)


def shown(value: float, unit: str) -> str:
    match unit:
        case "percentunit":
            return f"{value:.0%}"
        case "bytes":
            return f"{value / 2**20:,.0f} MiB"
        case _:
            return f"{value:.4g}{SUFFIXES[unit]}"


if __name__ == "__main__":
    main()
