"""`python -m tools.fire run|replay|day`: traces of concurrent requests against the law that answers do not
depend on traffic.
"""

import math
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import FrameType
from typing import cast

import rich_click as click

from tools.command_line import exit_code
from tools.fire.campaign import Campaign
from tools.fire.day import Day
from tools.fire.models import ALL, NAMES, Name
from tools.fire.trace import read

_folder = click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path(".fire"),
    show_default=True,
    help="Keep models, answers alone, progress and failed traces in DIR.",
)


def _say(line: str) -> None:
    print(line, flush=True)


@click.group
def fire() -> None:
    """Send a worker many requests at once, and compare each answer with the one that the request has alone."""


@fire.command
@_folder
@click.option("--requests", type=click.IntRange(1), default=100_000, show_default=True, help="Go on until N in all.")
@click.option("--first-seed", type=click.IntRange(0), default=0, show_default=True, help="Begin with this trace.")
@click.option("--model", "models", multiple=True, type=click.Choice(ALL), help="Use this model; may be repeated.")
def run(folder: Path, requests: int, first_seed: int, models: tuple[str, ...]) -> None:
    """Play trace after trace; a campaign that was stopped goes on. Exit 1 if a trace has failed."""
    with closing(Campaign(folder, cast(tuple[Name, ...], models) or NAMES)) as campaign:
        progress = campaign.run(requests, _say, first_seed=first_seed)
        _say(str(progress))
        if progress.failed_seeds:
            sys.exit(1)


@fire.command
@_folder
@click.argument("trace", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--tries", type=click.IntRange(1), default=3, show_default=True, help="Play it up to N times.")
def replay(folder: Path, trace: Path, tries: int) -> None:
    """Play the trace of a file. Exit 1 if it fails."""
    with closing(Campaign(folder)) as campaign:
        found = campaign.again(read(trace), tries)
    _say("\n".join(found) or "no faults")
    if found:
        sys.exit(1)


@fire.command
@_folder
@click.option("--model", "name", type=click.Choice(ALL), default="attention", show_default=True, help="Use this model.")
@click.option("--hours", type=click.FloatRange(0, min_open=True), help="Stop after N hours.  [default: never]")
def day(folder: Path, name: Name, hours: float | None) -> None:
    """Send one worker mixed traffic until Ctrl-C, with figures each minute.

    Exit 1 if an answer was lost or wrong, or if a process grew by more than 5 MB after the first tenth of the time;
    in a run of a few minutes it does anyway.
    The figures are in DIR/day-MODEL.jsonl. A second Ctrl-C ends at once.
    """
    end_s = math.inf if hours is None else time.monotonic() + hours * 3600
    with _asked_to_stop() as is_asked:
        found = Day(folder, name).run(lambda: is_asked() or time.monotonic() >= end_s, _say)
    _say("\n".join(found) or "nothing was lost, and nothing grew")
    if found:
        sys.exit(1)


@contextmanager
def _asked_to_stop() -> Iterator[Callable[[], bool]]:
    """Yield whether SIGINT or SIGTERM has come. The second one does what it does elsewhere."""
    asked = []

    def note(number: int, _frame: FrameType | None) -> None:
        asked.append(number)
        signal.signal(number, before[signal.Signals(number)])
        _say("stopping after the burst at hand")

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(asked)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


if __name__ == "__main__":
    sys.exit(exit_code(fire, "fire", sys.argv[1:]))
