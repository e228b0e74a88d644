"""The command line: `python -m tools.cuda_check run|render`. Each step of a round runs in a process of its own, within
its time, and its end is in the report at once.
"""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import click
import msgspec

from tools import CHECKOUT
from tools.cuda_check.report import DamagedReportError, Figure, Found, Report, Step, page
from tools.cuda_check.steps import OF_PEERS, STEPS, Asked, StepFailedError
from tools.made_model import SHAPES
from worker.config.settings import Settings
from worker.errors import WorkerError

BUILD = "build"
ORDER = (BUILD, *STEPS)
REPORT, LOGS = "report.json", "logs"
_KEPT_OF_A_LOG = 300
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
@click.option("--small", is_flag=True, help="Tiny sizes, to try the round itself; no speed means anything then.")
@click.option("--tools", type=_FOLDER, help="Where llama-server and llama.cpp's benchmarks of that build are.")
@click.option("--wheel", type=_FILE, help="The build of llama.cpp that is used, for the report.")
@click.option("--build-s", type=float, default=0.0, help="How long building it took.")
def run(
    names: tuple[str, ...],
    out: Path,
    *,
    work: Path,
    tools: Path | None,
    wheel: Path | None,
    build_s: float,
    **options: Any,
) -> None:
    """Run the steps that are named, or all that have not passed; write the report, and go on with one that was broken
    off. Without the device no other step runs.

    Exit 1 when a step of the report has failed.
    """
    small, shape = options.pop("small"), options.pop("shape")
    asked = Asked(
        work=str(work.absolute()),
        out=str(out.absolute()),
        tools=str(tools.absolute()) if tools else None,
        shape="tiny" if small else shape,
        is_small=small,
        **options,
    )
    out.mkdir(parents=True, exist_ok=True)
    report = _begun(out / REPORT, Report.new(asked.device, is_small=asked.is_small, wheel=wheel))
    passed = [step.name for step in report.steps if step.outcome == "passed"]
    # A round that goes on knows how long its build took.
    if wheel is not None and (build_s or BUILD not in passed):
        _keep(report, out, _build(wheel, build_s))
    left_out = () if asked.tools else OF_PEERS
    if left_out and not names:
        _say(f"left out without --tools: {', '.join(left_out)}")
    for name in names or [name for name in STEPS if name not in (*left_out, *passed)]:
        _say(f"{name} …")
        began_s = time.monotonic()
        ended = run_apart(name, asked, out.absolute() / LOGS, limit_s=STEPS[name].limit_s)
        step = step_of(name, ended, time.monotonic() - began_s)
        _keep(report, out, step)
        if name == "device" and step.outcome == "failed":
            break
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


def _begun(path: Path, new: Report) -> Report:
    """The report that is there, where it is of this round; else a new one, the other one kept beside it."""
    if not path.is_file():
        return new
    with contextlib.suppress(DamagedReportError):
        if (before := Report.read(path)).is_same_round(new):
            return before
    aside = Path(tempfile.mkdtemp(prefix="before-", dir=path.parent)) / path.name
    path.rename(aside)
    _say(f"{path} is of another machine, build or code: moved to {aside}")
    return new


def _build(wheel: Path, seconds: float) -> Step:
    n_bytes = wheel.stat().st_size
    how = f"built in {seconds:.0f} s" if seconds else "built before"
    figure = Figure(what="wheel", value=n_bytes, unit="bytes")
    return step_of(BUILD, Found(summary=f"{n_bytes / 1e6:.0f} MB, {how}", figures=(figure,)), seconds)


def _keep(report: Report, out: Path, step: Step) -> None:
    """Into the report, and onto the screen."""
    report.keep(step, ORDER)
    report.write(out / REPORT)
    _say(f"{step.name}: {step.outcome} in {step.seconds:.0f} s: {step.summary}")
    for failure in step.failures:
        _say(f"    {failure}")


def step_of(name: str, ended: Found | str, seconds: float) -> Step:
    """A step of the report from its result, or from why there is none. Figures are kept whatever they show."""
    found = ended if isinstance(ended, Found) else Found(summary=ended, failures=())
    has_failed = bool(found.failures) or found is not ended
    outcome: Any = "failed" if has_failed else "passed"
    return Step(name=name, outcome=outcome, seconds=seconds, **msgspec.structs.asdict(found))


def run_apart(name: str, asked: Asked, logs: Path, *, limit_s: float) -> Found | str:
    """The result of the step, or one line that says why there is none. Its processes are gone when this returns.

    `logs` is a folder; NAME.log there has all that the step printed.
    """
    logs.mkdir(parents=True, exist_ok=True)
    log, result = logs / f"{name}.log", logs / f"{name}.json"
    result.unlink(missing_ok=True)
    command = [sys.executable, "-m", "tools.cuda_check", "step", name, msgspec.json.encode(asked).decode(), str(result)]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, cwd=CHECKOUT, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
        try:
            code = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            return f"not done after {limit_s:g} s"
        finally:
            # Also what outlived a step that crashed: a worker it had started still holds the device's memory.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if code == 0 and result.is_file():
        return msgspec.json.decode(result.read_bytes(), type=Found)
    lines = log.read_text("utf-8", "replace").split("\n")
    said = next((line.strip()[-_KEPT_OF_A_LOG:] for line in reversed(lines) if line.strip()), "it said nothing")
    return f"ended by {signal.Signals(-code).name}: {said}" if code < 0 else said


def _say(line: str) -> None:
    click.echo(f"==> {line}", err=True)


if __name__ == "__main__":
    main()
