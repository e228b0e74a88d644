"""`llorch-worker bench index`: what a look-up and an insert in the prefix index cost, whatever its size.

Owns what is printed. Refuses to know how it is timed (bench/index_costs.py). Needs no model and no process.
"""

import rich_click as click

from worker.bench.index_costs import N_PROMPT, IndexCosts, index_costs
from worker.commands.tables import print_json, print_table


@click.command("index")
@click.option(
    "--tokens",
    "sizes",
    type=click.IntRange(N_PROMPT, 10_000_000),
    multiple=True,
    default=(1_000, 10_000, 100_000),
    show_default=True,
    metavar="N",
    help="How many tokens the index holds; may be given more than once.",
)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list instead of a table.")
def index(sizes: tuple[int, ...], *, as_json: bool) -> None:
    """Time look-ups and inserts in the prefix index.

    Medians, for prompts of 400 tokens in an index that is full, so that an insert also makes room. They should not grow
    with its size.
    """
    found = [index_costs(n_tokens) for n_tokens in sizes]
    if as_json:
        print_json(found)
        return
    print_table([">tokens in the index", ">look-up", ">insert"], [_cells(costs) for costs in found])


def _cells(costs: IndexCosts) -> tuple[str, ...]:
    return str(costs.n_tokens), f"{costs.lookup_us:.1f} µs", f"{costs.insert_us:.1f} µs"
