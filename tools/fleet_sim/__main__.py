"""`python -m tools.fleet_sim`: how many workers a load needs, and by which policy, as a table in Markdown."""

import sys
from pathlib import Path

import rich_click as click

from tools.command_line import exit_code
from tools.fleet_sim.fleet import COLUMNS, Fleet
from tools.fleet_sim.policies import POLICIES
from tools.fleet_sim.sim_worker import read_costs
from tools.fleet_sim.workloads import WORKLOADS
from tools.markdown import table

_COSTS = Path(__file__).parent / "costs.json"


@click.command
@click.option("--workers", type=click.IntRange(1, 10_000), multiple=True, required=True, help="How many; repeatable.")
@click.option("--policy", type=click.Choice(POLICIES), multiple=True, help="Only these. [default: all]")
@click.option("--workload", type=click.Choice(list(WORKLOADS)), default="conversations", show_default=True)
@click.option("--rate", type=click.FloatRange(0, min_open=True), required=True, help="Requests a second.")
@click.option("--requests", type=click.IntRange(1, 10**6), default=2_000, show_default=True, help="How many.")
@click.option("--seed", type=click.IntRange(0, 2**32 - 1), default=0, show_default=True, help="Of all chance.")
@click.option("--costs", type=click.Path(path_type=Path, dir_okay=False), default=_COSTS, help="Of steps, as JSON.")
def fleet_sim(
    *,
    workers: tuple[int, ...],
    policy: tuple[str, ...],
    workload: str,
    rate: float,
    requests: int,
    seed: int,
    costs: Path,
) -> None:
    """Simulate policies and sizes of a fleet under the same load. Nothing is downloaded."""
    read = read_costs(costs)
    sessions = WORKLOADS[workload].sessions(seed=seed, n_requests=requests, rate=rate)
    fleets = [Fleet([read] * n_workers, name, seed=seed) for n_workers in workers for name in policy or POLICIES]
    for fleet in fleets:
        fleet.run(sessions)
    click.echo(table(COLUMNS, [fleet.result() for fleet in fleets]))


if __name__ == "__main__":
    sys.exit(exit_code(fleet_sim, "fleet_sim", sys.argv[1:]))
