"""A report as Markdown, for docs/device-checks. Pure: what is in the report, in tables."""

from collections.abc import Iterator, Sequence

from tools.cuda_check.report import Figure, Report
from tools.markdown import Cells, table

Table = tuple[Cells, Sequence[Cells]]
"""Columns, rows."""

_UNITS = {"bytes": 1e6}
_NAMES = {"bytes": "MB"}


def page(report: Report) -> str:
    """Circumstances, steps, what does not hold, and each step's numbers; ends with a line feed."""
    blocks = [_about(report), table(*_steps(report)), *_failures(report)]
    for step in report.steps:
        if rows := [_row(figure) for figure in step.figures]:
            blocks += [f"## {step.name}", table(("model", "", ">found", "bound", ""), rows)]
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


def _failures(report: Report) -> Iterator[str]:
    """A list for each step of which more than its line is known."""
    for step in report.failures:
        if step.failures:
            yield "\n".join([f"`{step.name}` failed:", "", *(f"- {failure}" for failure in step.failures)])


def _row(figure: Figure) -> Cells:
    verdict = "" if not figure.bound else "holds" if figure.holds else "MISSED"
    return (figure.model, figure.what, _amount(figure.value, figure.unit), figure.bound, verdict)


def _amount(value: float, unit: str) -> str:
    number = value / _UNITS.get(unit, 1)
    shown = f"{number:.0f}" if abs(number) >= 1000 else f"{number:.4g}"
    name = "" if unit == "share" else _NAMES.get(unit, unit)
    return f"{shown} {name}".strip()
