"""The pages of settings and commands: every option with its values, its default and its help.

The page of settings has the flags of `serve`, each with its variable and its key; the other has all other commands.
"""

from collections.abc import Iterator
from typing import Final, get_args

import rich_click as click
from click.types import FloatParamType, IntParamType

from tools.markdown import table
from tools.reference.text import PAGE_TEXTS, code, codes, page, sentence
from worker.cli import imported, setting_options
from worker.config.option import JSON_OBJECT, SettingOption, TextType
from worker.config.row import Panel
from worker.config.spellings import legacy_options

_OF_SETTINGS: Final = ("flag", "values", "default", "what it does", "variable", "key in the file")


def configuration_page() -> str:
    shown = [option for option in setting_options() if isinstance(option, SettingOption)]
    blocks = [
        f"## {panel}\n\n{table(_OF_SETTINGS, (_setting(option) for option in shown if option.panel == panel))}"
        for panel in get_args(Panel)
    ]
    older = table(("flag", "values"), [(code(option.opts[0]), allowed(option)) for option in legacy_options()])
    return page("Settings", "configuration", *blocks, f"{PAGE_TEXTS['older-spellings']}\n\n{older}")


def _setting(option: SettingOption) -> tuple[str, ...]:
    return (
        codes([*option.opts]) + (f" {option.metavar}" if option.metavar else ""),
        sentence(allowed(option)),
        sentence(default(option)),
        sentence(without_range(str(option.help))),
        codes(option.variables),
        code(option.opts[0].removeprefix("--")) if option.name not in {"config", "hf_repo"} else "",
    )


def flags_of(command: click.Command) -> list[click.Option]:
    """The options of a command that its help shows."""
    return [param for param in command.params if isinstance(param, click.Option) and not param.hidden]


PLACES: Final = {
    **{name: f"worker.commands.{name}:{name}" for name in ("generate", "chat", "models", "launch", "devices")},
    "inspect": "worker.commands.inspect_gguf:inspect",
    "parity": "parity.command:parity",
}
"""The command's name → module:attribute."""

_OF_COMMANDS: Final = ("option", "values", "default", "what it does")


def commands_page() -> str:
    return page("Commands", "commands", *(block for name in PLACES for block in _blocks(name)))


def _blocks(name: str) -> Iterator[str]:
    for path, command in _leaves(name, imported(PLACES[name])):
        about = " ".join((command.help or "").split("\f")[0].split("\n\n")[0].split())
        rows = [_option(option) for option in flags_of(command) if option.opts[0] not in _OF_SERVE]
        title = f"{'##' if path == name else '###'} `llorch-worker {path}{_arguments(command)}`"
        yield f"{title}\n\n{sentence(about)}" + (f"\n\n{table(_OF_COMMANDS, rows)}" if rows else "")


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


def _option(option: click.Option) -> tuple[str, ...]:
    flags = codes([*option.opts, *option.secondary_opts]) + (f" {option.metavar}" if option.metavar else "")
    return flags, sentence(allowed(option)), sentence(default(option)), sentence(without_range(option.help or ""))


_OF_SERVE: Final = {flag for option in setting_options() for flag in option.opts}
_WORDS: Final[dict[type, str]] = {
    click.Path: "a path",
    click.File: "a path",
    IntParamType: "a whole number",
    FloatParamType: "a number",
}


def allowed(option: click.Option) -> str:
    """The values that an option accepts."""
    kind: object = option.type
    if option.is_flag:
        return "on or off"
    if isinstance(kind, click.Choice):
        return codes([str(choice) for choice in kind.choices])
    if isinstance(kind, click.IntRange | click.FloatRange):
        low, high = _number(kind.min), _number(kind.max)
        return f"{low} to {high}" if high else f"{low} or more"
    if isinstance(kind, TextType) and kind.forms:
        return kind.forms
    if kind is JSON_OBJECT:
        return "a JSON object"
    return next((words for of, words in _WORDS.items() if isinstance(kind, of)), "a text")


def default(option: click.Option) -> str:
    """The value without the option, as its help shows it."""
    if isinstance(option.show_default, str):
        return option.show_default
    if option.is_flag or option.required:
        return "off" if option.is_flag else "required"
    value = option.default
    if value is None or value == () or callable(value) or "UNSET" in str(value):
        return "none"
    return code(_number(value) if isinstance(value, int | float) else str(value))


def without_range(text: str) -> str:
    """A help text without the values in brackets at its end, which have a column of their own."""
    head, bracket, _ = text.rpartition(" [")
    return head if bracket and text.endswith("]") else text


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"
