"""The page of settings: every flag of `serve` with its variable, its key, its values, its default and its help."""

from typing import Final, get_args

import rich_click as click

from tools.markdown import table
from tools.reference.options import allowed, default, without_range
from tools.reference.text import code, codes, page, sentence
from worker.cli import setting_options
from worker.config.option import SettingOption
from worker.config.row import Panel
from worker.config.spellings import legacy_options

_INTRODUCTION: Final = """\
Every setting of `llorch-worker serve`. A value comes from the flag, else from the environment variable, else from the
file that `--config` names, else from the default. `llorch-worker serve --help` shows the same texts.

A switch in the environment is `1`, `true`, `yes`, `on`, `0`, `false`, `no` or `off`. An empty variable counts as not
given, except an empty token, which is an error. The config file is TOML, with the keys of the table:

```toml
model = "smollm2-135m-instruct"
ctx-size = 8192
access-log = true
```

A wrong value ends the worker with exit code 2 and one line that names the flag, the value and what is allowed. A flag
that has no effect on this machine is a warning in the log ([`no_effect`](log-events.md)). For sizes in `-mb`, N is a
number of MiB."""

_COLUMNS: Final = ("flag", "values", "default", "what it does", "variable", "key in the file")

_LEGACY: Final = """\
## Older spellings

These flags of earlier workers still work, and no help shows them. The first ones choose the device if `--device` does
not. The others are accepted and ignored, and a log line names them ([the protocol](../protocol.md#older-clients))."""


def configuration_page() -> str:
    shown = [option for option in setting_options() if isinstance(option, SettingOption)]
    blocks = [
        f"## {panel}\n\n{table(_COLUMNS, (_row(option) for option in shown if option.panel == panel))}"
        for panel in get_args(Panel)
    ]
    older = [(code(option.opts[0]), allowed(option)) for option in legacy_options()]
    return page("Settings", _INTRODUCTION, *blocks, f"{_LEGACY}\n\n{table(('flag', 'values'), older)}")


def _row(option: SettingOption) -> tuple[str, ...]:
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
