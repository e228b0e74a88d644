"""The page of commands: every option of those other than `serve`."""

from collections.abc import Iterator
from typing import Final

import rich_click as click

from tools.markdown import table
from tools.reference.configuration import flags_of
from tools.reference.options import allowed, default, without_range
from tools.reference.text import codes, page, sentence
from worker.cli import imported, setting_options

PLACES: Final = {
    **{name: f"worker.commands.{name}:{name}" for name in ("generate", "chat", "models", "launch", "devices")},
    "inspect": "worker.commands.inspect_gguf:inspect",
    "parity": "parity.command:parity",
}
"""The command's name → module:attribute."""

_INTRODUCTION: Final = """\
`llorch-worker COMMAND`. Without a command, `serve` is meant; [Settings](configuration.md) has its flags. A command that
loads a model also accepts the settings of `serve` that it needs, with the same variables; they are not repeated here.

Results go to standard output, progress and log lines to standard error. The exit code is 0 after success, 1 after an
error, 2 for a wrong command line, 130 after Ctrl-C and 141 if the reader of the output has left."""

_COLUMNS: Final = ("option", "values", "default", "what it does")


def commands_page() -> str:
    return page("Commands", _INTRODUCTION, *(block for name in PLACES for block in _blocks(name)))


def _blocks(name: str) -> Iterator[str]:
    for path, command in _leaves(name, imported(PLACES[name])):
        about = " ".join((command.help or "").split("\f")[0].split("\n\n")[0].split())
        rows = [_row(option) for option in flags_of(command) if option.opts[0] not in _OF_SERVE]
        title = f"{'##' if path == name else '###'} `llorch-worker {path}{_arguments(command)}`"
        yield f"{title}\n\n{sentence(about)}" + (f"\n\n{table(_COLUMNS, rows)}" if rows else "")


def _leaves(path: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        for name, below in command.commands.items():
            yield from _leaves(f"{path} {name}", below)


def _arguments(command: click.Command) -> str:
    names = [
        param.make_metavar(click.Context(command)) for param in command.params if isinstance(param, click.Argument)
    ]
    return "".join(f" {name}" for name in names)


def _row(option: click.Option) -> tuple[str, ...]:
    flags = codes([*option.opts, *option.secondary_opts]) + (f" {option.metavar}" if option.metavar else "")
    return flags, sentence(allowed(option)), sentence(default(option)), sentence(without_range(option.help or ""))


_OF_SERVE: Final = {flag for option in setting_options() for flag in option.opts}
