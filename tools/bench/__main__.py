"""`python -m tools.bench load|kernels|steps|sampling`: what this machine does with a model.

A command is imported when it is called: `load` does without llama.cpp in its process.
"""

import sys
from collections.abc import Sequence

import rich_click as click

from tools.command_line import exit_code
from worker.cli import CommandElsewhere


@click.group
def bench() -> None:
    """Measure this machine. Nothing is downloaded."""


for _name, _place, _help in (
    ("load", "tools.bench.load_command:load", "Put a worker under load over HTTP, beside a peer if you like."),
    ("kernels", "tools.bench.kernels:kernels", "Compare this build's products with stock llama.cpp's."),
    ("steps", "tools.bench.steps:steps", "Time what the engine adds to llama_decode."),
    ("sampling", "tools.bench.sampling:sampling", "Compare the cost of drawing a token with llama.cpp's."),
):
    bench.add_command(CommandElsewhere(_name, _place, _help))


def run(argv: Sequence[str]) -> int:
    """The command's exit code."""
    return exit_code(bench, "bench", argv)


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
