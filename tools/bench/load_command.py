"""`python -m tools.bench load`: the scenarios of docs/performance.md, on a worker and beside it on a peer.

Owns: progress, where the report goes, the exit code. Refuses to know the options (bench_options.py) and how anything is
measured (tools/bench). Starts servers as child processes; never loads llama.cpp, never downloads.
"""

import secrets
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import rich_click as click
import uvloop
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tools.bench.markdown import page
from tools.bench.measures import BoundMissed
from tools.bench.options import Asked, load_options
from tools.bench.report import Report
from tools.bench.rounds import Tell
from tools.bench.scenarios import Scenario
from tools.bench.session import Wanted, measure
from tools.bench.wording import (
    COLUMNS,
    OVERLOAD_COLUMNS,
    RESIDENT_COLUMNS,
    bad_news,
    cells_of,
    overload_rows,
    own_lines,
    remarks,
    resident_cells,
)
from worker.commands.tables import print_json, print_table


@click.command("load")
@load_options
def load(*, seed: int | None, out: Path | None, as_json: bool, **options: Any) -> None:
    """Put a worker under load over HTTP, and tell what it does; with a peer also in what relation.

    By default a worker is started, measured and ended. With a peer the sides take turns, round by round, never both at
    once, with the same prompts. Exit 1 when a bound of docs/performance.md does not hold, or when requests failed.
    Measure on an idle machine.
    """
    # As Ctrl-C, so that the servers that were started go with the command.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    report = _measured(Asked(**options), secrets.randbits(32) if seed is None else seed, out)
    if out is not None:
        _write(report, out)
    if as_json:
        print_json(report)
    else:
        _print(report)
    if bad := list(bad_news(report)):
        raise BoundMissed("; ".join(bad))


def _measured(asked: Asked, seed: int, out: Path | None) -> Report:
    with tempfile.TemporaryDirectory(prefix="llorch-bench-") as temporary:
        logs = Path(temporary) if out is None else out / "logs"
        wanted = asked.wanted(seed, logs)
        logs.mkdir(parents=True, exist_ok=True)
        with _progress(wanted) as tell:
            found = uvloop.run(measure(wanted, tell))
    return found.report(asked.circumstances(wanted, found), asked.notes())


@contextmanager
def _progress(wanted: Wanted) -> Iterator[Tell]:
    """A bar for a person at a terminal, a line for each round for everybody else; on stderr."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
    n_rounds = (wanted.n_rounds + 1) * len(wanted.scenarios)
    task = bar.add_task("starting", total=n_rounds)
    told: set[tuple[int, str]] = set()

    def tell(number: int, scenario: Scenario, side: str) -> None:
        is_new = (number, scenario.name) not in told
        told.add((number, scenario.name))
        words = f"round {number}" if number else "warm-up"
        bar.update(task, description=f"{words}, {scenario.name}, {side}", advance=1 if is_new else 0)
        if is_new and not console.is_terminal:
            click.echo(f"==> {words}, {scenario.name}", err=True)

    with bar:
        yield tell


def _print(report: Report) -> None:
    print_table(COLUMNS, [cells_of(line) for line in own_lines(report)])
    if report.resident:
        print_table(RESIDENT_COLUMNS, [resident_cells(resident) for resident in report.resident])
    if report.overload:
        print_table(OVERLOAD_COLUMNS, overload_rows(report.overload))
    for remark in remarks(report):
        click.echo(remark, err=True)


def _write(report: Report, folder: Path) -> None:
    data = msgspec.json.format(msgspec.json.encode(report), indent=2)
    (folder / "report.json").write_bytes(data + b"\n")
    (folder / "report.md").write_text(page(report), encoding="utf-8")
