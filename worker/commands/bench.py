"""`llorch-worker bench load|steps|sampling|index`: what this machine does with a model. The group; a command is
imported when it is called.
"""

import rich_click as click

from worker.cli import CommandElsewhere
from worker.errors import WorkerError


class BoundMissed(WorkerError):
    """A measured figure is over its bound, or requests failed: one line that says which, exit 1."""


@click.group
def bench() -> None:
    """Measure this machine. Nothing is downloaded."""


for _name, _place, _help in (
    ("load", "worker.commands.bench_load:load", "Put a worker under load over HTTP, beside a peer if you like."),
    ("steps", "worker.commands.bench_steps:steps", "Time what the engine adds to llama_decode."),
    ("sampling", "worker.commands.bench_sampling:sampling", "Compare the cost of drawing a token with llama.cpp's."),
    ("index", "worker.commands.bench_index:index", "Time look-ups and inserts in the prefix index."),
):
    bench.add_command(CommandElsewhere(_name, _place, _help))
