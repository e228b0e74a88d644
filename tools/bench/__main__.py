"""`python -m tools.bench load|sizes|doors|steps|account|sampling`: what this machine does with a model.

Owns the group, and one line on stderr for every mistake. A command is imported when it is called: `load` does without
llama.cpp in its process.
"""

import sys
from collections.abc import Sequence

import rich_click as click
from click.exceptions import Exit, NoArgsIsHelpError

from worker.cli import CommandElsewhere
from worker.errors import UsageError, WorkerError

_INTERRUPTED = 130


@click.group
def bench() -> None:
    """Measure this machine. Nothing is downloaded."""


for _name, _place, _help in (
    ("load", "tools.bench.load_command:load", "Put a worker under load over HTTP, beside a peer if you like."),
    ("sizes", "tools.bench.sizes:sizes", "Measure models of several sizes and file types."),
    ("doors", "tools.bench.doors:doors", "Compare chats at /v1 with their prompts at /execute."),
    ("steps", "tools.bench.steps:steps", "Time what the engine adds to llama_decode."),
    ("account", "tools.bench.account:account", "Tell where the time of streams goes that begin together."),
    ("sampling", "tools.bench.sampling:sampling", "Compare the cost of drawing a token with llama.cpp's."),
):
    bench.add_command(CommandElsewhere(_name, _place, _help))


def run(argv: Sequence[str]) -> int:
    """The command's exit code: 1 where a bound is missed or something failed, 2 for a mistake in the arguments."""
    try:
        with bench.make_context("python -m tools.bench", list(argv)) as context:
            bench.invoke(context)
    except Exit as left:
        return left.exit_code
    except NoArgsIsHelpError:
        return _fail("a command is missing; see python -m tools.bench --help", 2)
    except click.ClickException as error:
        return _fail(error.format_message(), error.exit_code)
    except WorkerError as error:
        return _fail(str(error), 2 if isinstance(error, UsageError) else 1)
    except (click.Abort, KeyboardInterrupt):
        return _INTERRUPTED
    return 0


def _fail(message: str, code: int) -> int:
    print(f"bench: error: {message}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
