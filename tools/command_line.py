"""The end of a developer's command: its exit code, and one line on stderr for every mistake."""

import sys
from collections.abc import Sequence

import rich_click as click
from click.exceptions import Exit, NoArgsIsHelpError

from worker.errors import UsageError, WorkerError

_INTERRUPTED = 130


def exit_code(command: click.Command, name: str, argv: Sequence[str]) -> int:
    """Run `python -m tools.NAME`. 1 where a bound is missed or something failed, 2 for a mistake in the arguments."""
    try:
        with command.make_context(f"python -m tools.{name}", list(argv)) as context:
            command.invoke(context)
    except Exit as left:
        return left.exit_code
    except NoArgsIsHelpError:
        return _fail(name, f"a command is missing; see python -m tools.{name} --help", 2)
    except click.ClickException as error:
        return _fail(name, error.format_message(), error.exit_code)
    except WorkerError as error:
        return _fail(name, str(error), 2 if isinstance(error, UsageError) else 1)
    except (click.Abort, KeyboardInterrupt):
        return _INTERRUPTED
    return 0


def _fail(name: str, message: str, code: int) -> int:
    print(f"{name}: error: {message}", file=sys.stderr)
    return code
