"""The command line: `python -m tools.cuda_check run|render|schema`."""

import sys
import tempfile
from pathlib import Path
from typing import Any

import click
import msgspec

from tools.cuda_check.circumstances import new_report
from tools.cuda_check.markdown import page
from tools.cuda_check.report import DamagedReportError, Figure, Report, Step
from tools.cuda_check.runs import BUILD, REPORT, Round
from tools.cuda_check.steps import OF_PEERS, STEPS, USUAL, Asked, StepFailedError
from tools.made_model import SHAPES
from worker.config.settings import Settings
from worker.errors import WorkerError

_FOLDER = click.Path(path_type=Path, file_okay=False)
_FILE = click.Path(path_type=Path, dir_okay=False, exists=True)


@click.group()
def main() -> None:
    """One round of checks of a device, one report of it."""


@main.command()
@click.argument("names", nargs=-1, type=click.Choice(list(STEPS)), metavar="[STEP]…")
@click.option("--device", default="cuda", show_default=True, help="As for serve.")
@click.option("--out", type=_FOLDER, default=Path(".cuda_check"), show_default=True, help="Where report.json goes.")
@click.option("--work", type=_FOLDER, default=lambda: Settings().models_dir, help="Where large models are made.")
@click.option("--model", metavar="REF", help="The small model. [default: the catalogue's]")
@click.option("--shape", type=click.Choice(list(SHAPES)), default="llama-2-7b", help="Of the large model.")
@click.option("--limit-s", type=float, help="The most that a step may take. [default: each has its own]")
@click.option("--small", is_flag=True, help="Tiny sizes, to try the round itself; no speed means anything then.")
@click.option("--again", is_flag=True, help="Also the steps that have passed.")
@click.option("--tools", type=_FOLDER, help="Where llama-server and llama.cpp's benchmarks of that build are.")
@click.option("--wheel", type=_FILE, help="The build of llama.cpp that is used, for the report.")
@click.option("--build-s", type=float, default=0.0, help="How long building it took.")
def run(
    names: tuple[str, ...],
    out: Path,
    *,
    limit_s: float | None,
    again: bool,
    wheel: Path | None,
    build_s: float,
    **options: Any,
) -> None:
    """Run the usual steps, or those named; write the report, and go on with one that was broken off.

    Exit 1 when a step of the report has failed.
    """
    asked = _asked(out=out.absolute(), **options)
    out.mkdir(parents=True, exist_ok=True)
    report = _begun(out / REPORT, new_report(asked.device, is_small=asked.is_small, wheel=wheel))
    steps = Round(report, asked, out.absolute(), limit_s=limit_s, say=_say)
    # A round that goes on knows how long its build took.
    if wheel is not None and (build_s or report.step(BUILD) is None):
        steps.keep(_build(wheel, build_s))
    left_out = () if asked.tools else OF_PEERS
    if left_out and not names:
        _say(f"left out without --tools: {', '.join(left_out)}")
    steps.run(names or [name for name in USUAL if name not in left_out], again=again)
    _say(f"report: {out / REPORT}")
    if report.failures:
        _say(f"failed: {', '.join(step.name for step in report.failures)}")
        sys.exit(1)


@main.command()
@click.argument("path", type=_FILE, metavar="REPORT")
def render(path: Path) -> None:
    """Print a report as Markdown, for docs/device-checks."""
    try:
        click.echo(page(Report.read(path)), nl=False)
    except (DamagedReportError, OSError) as error:
        raise click.ClickException(str(error)) from None


@main.command(hidden=True)
@click.argument("name", type=click.Choice(list(STEPS)))
@click.argument("asked")
@click.argument("result", type=click.Path(path_type=Path))
def step(name: str, asked: str, result: Path) -> None:
    """One step in this process; for the round itself."""
    try:
        found = STEPS[name].run(msgspec.json.decode(asked, type=Asked))
    except (StepFailedError, WorkerError) as error:
        sys.exit(str(error))
    result.write_bytes(msgspec.json.encode(found))


def _asked(
    *, device: str, out: Path, work: Path, model: str | None, shape: str, small: bool, tools: Path | None
) -> Asked:
    return Asked(
        device=device,
        work=str(work.absolute()),
        out=str(out),
        tools=str(tools.absolute()) if tools else None,
        model=model,
        shape="tiny" if small else shape,
        is_small=small,
    )


def _begun(path: Path, new: Report) -> Report:
    """The report that is there, where it is of this round; else a new one, the other one kept beside it."""
    if not path.is_file():
        return new
    try:
        before = Report.read(path)
    except DamagedReportError:
        before = None
    if before is not None and before.is_same_round(new):
        return before
    aside = Path(tempfile.mkdtemp(prefix="before-", dir=path.parent)) / path.name
    path.rename(aside)
    _say(f"{path} is of another machine, build or code: moved to {aside}")
    return new


def _build(wheel: Path, seconds: float) -> Step:
    n_bytes = wheel.stat().st_size
    how = f"built in {seconds:.0f} s" if seconds else "built before"
    figure = Figure(what="wheel", value=n_bytes, unit="bytes")
    return Step(
        name=BUILD, outcome="passed", seconds=seconds, summary=f"{n_bytes / 1e6:.0f} MB, {how}", figures=(figure,)
    )


def _say(line: str) -> None:
    click.echo(f"==> {line}", err=True)


if __name__ == "__main__":
    main()
