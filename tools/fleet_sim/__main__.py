"""`python -m tools.fleet_sim run|compare|measure`: how many workers a load needs, and by which policy.

Owns the options, and what is printed and written: tables are Markdown, as docs/scaling.md has them. Never loads
llama.cpp, never downloads.
"""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import rich_click as click
import uvloop

from tools.bench.exchange import Address
from tools.command_line import exit_code
from tools.fleet_sim.costs import StepCosts, as_json, read_costs
from tools.fleet_sim.fleet import Fleet
from tools.fleet_sim.measure import Probe, costs_of
from tools.fleet_sim.policies import POLICIES
from tools.fleet_sim.result import COLUMNS, Result, result_of
from tools.fleet_sim.workloads import WORKLOADS
from tools.markdown import table
from worker.errors import UsageError

_COSTS = Path(__file__).parent / "costs.json"
_FILE = click.Path(path_type=Path, dir_okay=False)
_Command = TypeVar("_Command", bound=Callable[..., Any])


@click.group
def fleet_sim() -> None:
    """Simulate fleets of workers. Nothing is downloaded."""


def _load(command: _Command) -> _Command:
    """Give a command the options of a load."""
    for option in (
        click.option("--out", type=_FILE, help="Write the results there, as JSON."),
        click.option("--costs", type=_FILE, default=_COSTS, show_default="the default model's", help="Of steps."),
        click.option("--seed", type=click.IntRange(0, 2**32 - 1), default=0, show_default=True, help="Of all chance."),
        click.option("--requests", type=click.IntRange(1, 10**6), default=2_000, show_default=True, help="How many."),
        click.option("--rate", type=click.FloatRange(0, min_open=True), required=True, help="Requests a second."),
        click.option("--workload", type=click.Choice(list(WORKLOADS)), default="conversations", show_default=True),
    ):
        command = option(command)
    return command


_workers = click.IntRange(1, 10_000)


@fleet_sim.command()
@click.option("--workers", type=_workers, required=True, help="How many.")
@click.option("--policy", type=click.Choice(POLICIES), default="prefix", show_default=True)
@_load
def run(*, workers: int, policy: str, **load: Any) -> None:
    """Simulate one fleet under one load."""
    _simulate([workers], [policy], **load)


@fleet_sim.command()
@click.option("--workers", type=_workers, multiple=True, required=True, help="How many; may be given more than once.")
@click.option("--policy", type=click.Choice(POLICIES), multiple=True, help="Only these. [default: all]")
@_load
def compare(*, workers: tuple[int, ...], policy: tuple[str, ...], **load: Any) -> None:
    """Simulate several policies or sizes of a fleet under the same load."""
    _simulate(workers, policy or POLICIES, **load)


def _simulate(
    sizes: Sequence[int],
    policies: Sequence[str],
    *,
    workload: str,
    rate: float,
    requests: int,
    seed: int,
    costs: Path,
    out: Path | None,
) -> None:
    read = read_costs(costs)
    sessions = WORKLOADS[workload].sessions(seed=seed, n_requests=requests, rate=rate)
    results: list[Result] = []
    for n_workers in sizes:
        for policy in policies:
            fleet = Fleet([read] * n_workers, policy, seed=seed)
            fleet.run(sessions)
            results.append(result_of(policy, fleet))
    click.echo(table(COLUMNS, [result.cells for result in results]))
    _write(
        out, {"workload": workload, "rate": rate, "requests": requests, "seed": seed, "costs": read, "results": results}
    )


@fleet_sim.command()
@click.option("--url", required=True, metavar="URL", help="Of a worker with --prompt-lookup off and nothing to do.")
@click.option("--rounds", type=click.IntRange(1, 1000), default=3, show_default=True, help="Besides a warm-up.")
@click.option("--seed", type=click.IntRange(0, 2**32 - 1), default=0, show_default=True, help="Of the prompts.")
@click.option("--out", type=_FILE, required=True, help="Write the costs there, as JSON.")
def measure(*, url: str, rounds: int, seed: int, out: Path) -> None:
    """Measure what the steps of a running worker cost."""

    async def measured() -> StepCosts:
        address = Address.of(url)
        probe = await Probe.of(address, seed)
        _, *waits = [await probe.waits() for _ in range(1 + rounds)]
        return await costs_of(address, waits)

    _write(out, uvloop.run(measured()))


def _write(out: Path | None, value: object) -> None:
    if out is None:
        return
    try:
        out.write_bytes(as_json(value))
    except OSError as error:
        raise UsageError(f"--out {out}: {error.strerror or error}") from None


if __name__ == "__main__":
    sys.exit(exit_code(fleet_sim, "fleet_sim", sys.argv[1:]))
