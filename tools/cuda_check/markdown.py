"""A report as Markdown, for docs/device-checks. Pure: what is in the report, in tables; nothing is judged here."""

from collections.abc import Iterator, Sequence

from tools.cuda_check.report import Figure, Report
from tools.markdown import Cells, table

Table = tuple[Cells, Sequence[Cells]]
"""Columns, rows."""

_CPU = "cpu"
_UNITS = {"bytes": 1e6}
_NAMES = {"bytes": "MB"}


def page(report: Report) -> str:
    """Circumstances, steps, numbers; ends with a line feed."""
    blocks = [_about(report)]
    for columns, rows in (_steps(report), _speeds(report), _others(report)):
        if rows:
            blocks.append(table(columns, rows))
    return "\n\n".join(blocks) + "\n"


def _about(report: Report) -> str:
    gpu = report.gpu
    lines = [
        f"- device: `{report.device}`",
        *([f"- GPU: {gpu.name}, {_amount(gpu.memory_bytes, 'bytes')}, driver {gpu.driver}"] if gpu.name else []),
        *([f"- compute capability {gpu.compute_capability}"] if gpu.compute_capability else []),
        *([f"- CUDA toolkit {gpu.toolkit}"] if gpu.toolkit else []),
        f"- processor: {report.machine.cpu}, {report.machine.n_usable} of {report.machine.n_cores} threads",
        f"- {report.machine.system}; {', '.join(f'{name} {version}' for name, version in report.versions.items())}",
        f"- commit {report.commit[:12] or 'unknown'}, {report.created}",
    ]
    if report.is_small:
        lines.append("- a trial of the round with tiny sizes: its speeds mean nothing")
    return "\n".join(lines)


def _steps(report: Report) -> Table:
    rows = [(step.name, step.outcome, f"{step.seconds:.0f} s", step.summary) for step in report.steps]
    return ("step", "", ">time", "found"), rows


def _speeds(report: Report) -> Table:
    """Each measure of each model: the device, the CPU, and how many times the one is the other."""
    found = {(one.model, one.what, one.device): one for one in _figures(report) if one.unit in ("tokens/s", "ms")}
    pairs = dict.fromkeys((model, what) for model, what, _ in found)
    rows = [_speed_row(found.get((*pair, report.device)), found.get((*pair, _CPU)), *pair) for pair in pairs]
    return ("model", "", f">{report.device}", ">CPU", f">{report.device} / CPU"), rows


def _speed_row(ours: Figure | None, cpu: Figure | None, model: str, what: str) -> Cells:
    ratio = f"{ours.value / cpu.value:.3g}" if ours and cpu and cpu.value else ""
    return (model, what, *(_amount(one.value, one.unit) if one else "" for one in (ours, cpu)), ratio)


def _others(report: Report) -> Table:
    others = [one for one in _figures(report) if one.unit not in ("tokens/s", "ms")]
    return ("model", "", ">found", "bound"), [
        (one.model, one.what, _amount(one.value, one.unit), one.bound) for one in others
    ]


def _figures(report: Report) -> Iterator[Figure]:
    return (figure for step in report.steps for figure in step.figures)


def _amount(value: float, unit: str) -> str:
    number = value / _UNITS.get(unit, 1)
    shown = f"{number:.0f}" if abs(number) >= 1000 else f"{number:.4g}"
    name = "" if unit == "share" else _NAMES.get(unit, unit)
    return f"{shown} {name}".strip()
