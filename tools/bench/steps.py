"""`python -m tools.bench steps`: what the engine adds to llama_decode, for one stream and for many.

Owns the bounds, the verdict and what is printed. Refuses to know how it is measured (llama/step_costs.py). Runs in a
short-lived process of its own, which may load llama.cpp. Never downloads.
"""

from pathlib import Path

import rich_click as click

from tools.bench.llama.step_costs import StepCosts, step_costs
from tools.bench.measures import BoundMissed
from worker.commands.places import present, where
from worker.commands.tables import print_json, print_table
from worker.config.settings import Settings
from worker.front.engine_setup import configure

BOUNDS = {1: 0.03, 16: 0.05}
"""streams → the most that the rest of a step may take, as a share of llama_decode."""


@click.command("steps")
@click.option("--model", metavar="REF", help="A model that is here. [default: the catalogue's]")
@where
@click.option("--threads", type=click.IntRange(1, 512), default=2, show_default=True, help="CPU threads.")
@click.option("--rounds", type=click.IntRange(1, 1000), default=7, show_default=True, help="How often.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list instead of a table.")
def steps(
    model: str | None, models_dir: Path, catalog: Path | None, threads: int, rounds: int, *, as_json: bool
) -> None:
    """Time decode steps of 1 and 16 streams, and llama_decode within them.

    No sockets: what a client sees is in `bench load`. Exit 1 when the engine's own work takes more than 3 % of
    llama_decode at one stream, or 5 % at sixteen. Measure on an idle machine.
    """
    path = present(model, models_dir, catalog)
    settings = Settings(threads=threads, parallel=max(BOUNDS), ctx_size=16_384)
    found = [step_costs(configure(settings, path), n_streams, rounds) for n_streams in BOUNDS]
    if as_json:
        print_json(found)
    else:
        columns = [">streams", ">step", ">llama_decode", ">the rest", ">share", ">bound", ""]
        print_table(columns, [_cells(costs) for costs in found])
    check(found)


def check(found: list[StepCosts]) -> None:
    """Raises: BoundMissed, naming every bound that does not hold."""
    missed = [
        f"a step of {costs.n_streams} streams takes {costs.overhead:.1%} more than llama_decode, "
        f"at most {BOUNDS[costs.n_streams]:.0%} is allowed"
        for costs in found
        if costs.overhead > BOUNDS[costs.n_streams]
    ]
    if missed:
        raise BoundMissed("; ".join(missed))


def _cells(costs: StepCosts) -> tuple[str, ...]:
    bound = BOUNDS[costs.n_streams]
    return (
        str(costs.n_streams),
        f"{costs.step_ms:.2f} ms",
        f"{costs.decode_ms:.2f} ms",
        f"{costs.python_us:.0f} µs",
        f"{costs.overhead:.1%}",
        f"{bound:.0%}",
        "ok" if costs.overhead <= bound else "MISSED",
    )
