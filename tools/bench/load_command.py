"""`python -m tools.bench load`: the scenarios of docs/performance.md, on a worker and beside it on peers.

Starts servers as child processes; never loads llama.cpp, never downloads.
"""

import secrets
import shlex
import signal
import tempfile
from pathlib import Path
from typing import Any

import msgspec
import rich_click as click
import uvloop

from tools.bench.asked import LARGE_BYTES, NAMES, ROUNDS, ROUNDS_OF_LARGE, Asked
from tools.bench.measures import check
from tools.bench.report import Report, bad_news, tables
from tools.bench.scenarios import Scenario
from tools.bench.session import measure
from tools.markdown import table
from worker.commands.places import where
from worker.commands.tables import print_table
from worker.errors import UsageError

_FILE = click.Path(path_type=Path, exists=True, dir_okay=False)
_FOLDER = click.Path(path_type=Path, file_okay=False)


def split_flags(context: click.Context, option: click.Parameter, value: str) -> list[str]:  # noqa: ARG001 - click's
    """The callback of --worker-flags. Raises: UsageError."""
    try:
        return shlex.split(value)
    except ValueError as error:
        raise UsageError(f"--worker-flags {value}: {error}") from None


@click.command("load")
@click.option("--model", "models", metavar="REF", multiple=True, help="As for serve. [default: the catalogue's]")
@where
@click.option(
    "--rounds",
    type=click.IntRange(1, 1000),
    show_default=f"{ROUNDS}; {ROUNDS_OF_LARGE} of a file of over {LARGE_BYTES // 1_000_000} MB",
    help="How often, besides a warm-up.",
)
@click.option("--scenario", "scenarios", type=click.Choice(NAMES), multiple=True, help="Only these. [default: all]")
@click.option("--ctx-size", type=click.IntRange(512), default=16_384, show_default=True, help="Of all sides.")
@click.option("--parallel", type=click.IntRange(1, 256), default=16, show_default=True, help="Of all sides.")
@click.option("--threads", type=click.IntRange(1, 512), default=2, show_default=True, help="Of all sides.")
@click.option("--worker-flags", default="", callback=split_flags, help="More flags of serve, as one argument.")
@click.option("--url", metavar="URL", help="Measure this running worker instead of starting one.")
@click.option("--api-key", envvar="LLORCH_API_TOKEN", metavar="TOKEN", help="Of the worker at --url.")
@click.option(
    "--peer",
    "peers",
    multiple=True,
    metavar="NAME=URL",
    help="A running peer: llama-server=URL, or another worker by any other name. May be given more than once.",
)
@click.option("--peer-binary", type=_FILE, help="Start this llama-server as the peer to keep up with.")
@click.option(
    "--our-flags-binary", type=_FILE, help="Start this llama-server, too: built as our llama.cpp is, a column."
)
@click.option("--llama-bench", type=_FILE, help="Compare one stream with this llama-bench.")
@click.option("--llama-batched-bench", type=_FILE, help="Compare several streams with this llama-batched-bench.")
@click.option("--seed", type=click.IntRange(0, 2**64 - 1), help="Of the prompts. [default: random]")
@click.option(
    "--out",
    type=_FOLDER,
    help="Write report.json, report.md and the servers' logs there; of several models in folders.",
)
def load(*, models: tuple[str, ...], seed: int | None, out: Path | None, **options: Any) -> None:
    """Put a worker under load over HTTP, and report its numbers; with a peer also the ratios.

    By default a worker is started, measured and ended. With a peer the sides take turns, round by round, never both at
    once, with the same prompts. Several models are measured one after another; a large one is asked less. Exit 1 when a
    bound of docs/performance.md does not hold, or when requests failed. Measure on an idle machine.
    """
    # As Ctrl-C, so that the servers that were started go with the command.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    seed = secrets.randbits(32) if seed is None else seed
    all_asked = [Asked(model=model, **options) for model in models or (None,)]
    for asked in all_asked:
        asked.wanted(seed, Path())  # a mistake ends the command before anything is started
    news: list[str] = []
    for asked in all_asked:
        report = measured(asked, seed, out / asked.file.stem if out and len(all_asked) > 1 else out)
        for columns, rows in tables(report):
            print_table(columns, rows)
        news += [f"{asked.file.stem}: {one}" if len(all_asked) > 1 else one for one in bad_news(report)]
        if left_out := asked.left_out:
            click.echo(f"left out: {', '.join(left_out)}, which need a worker without drafts", err=True)
    check(news)


def measured(asked: Asked, seed: int, out: Path | None) -> Report:
    """Measure what was asked; with `out` write the report and the logs there. Raises: NotStarted, NotReached."""
    with tempfile.TemporaryDirectory(prefix="llorch-bench-") as temporary:
        logs = Path(temporary) if out is None else out / "logs"
        wanted = asked.wanted(seed, logs)
        logs.mkdir(parents=True, exist_ok=True)
        report = uvloop.run(measure(wanted, announce))
    if out is not None:
        data = msgspec.json.format(msgspec.json.encode(report), indent=2)
        (out / "report.json").write_bytes(data + b"\n")
        (out / "report.md").write_text("\n\n".join(table(*each) for each in tables(report)) + "\n", encoding="utf-8")
    return report


def announce(number: int, scenario: Scenario) -> None:
    """Print the next step to stderr."""
    click.echo(f"==> {f'round {number}, ' if number else ''}{scenario.name}", err=True)
