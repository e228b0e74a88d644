"""The config file: TOML whose keys are the flags of `serve`, given to click as its map of defaults.

Owns: which keys and types a file may have. It is read as a whole, so that a mistake in it is found at once, also where
a flag overrides it.
"""

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import rich_click as click
from click.types import BoolParamType

from worker.config.option import ANY_PATH, Origin, SettingOption, TextType
from worker.config.settings import options
from worker.errors import UsageError


def config_option() -> SettingOption:
    """`--config`, which is read before the settings."""
    return SettingOption(
        ["--config"],
        type=ANY_PATH,
        envvar="LLORCH_CONFIG",
        callback=_use_file,
        is_eager=True,
        expose_value=False,
        metavar="FILE",
        panel="Operation",
        help="Read settings from this TOML file.",
    )


def _use_file(ctx: click.Context, _option: click.Parameter, path: Path | None) -> None:
    if path is not None:
        ctx.default_map = dict(_settings_of(ctx, path))


def _settings_of(ctx: click.Context, path: Path) -> Iterator[tuple[str, Any]]:
    known = {option.name: option for option in options()}
    seen: set[str] = set()
    for key, value in _read_toml(path).items():
        place, name = f"{path}: {key}", key.replace("-", "_")
        if name not in known:
            raise UsageError(f"{place}: no setting has this name; the keys are the flags of `serve` without `--`")
        if name in seen:
            raise UsageError(f"{place}: the setting is given twice, with `-` and with `_`")
        seen.add(name)
        option = known[name]
        if option.multiple and type(value) is list:
            yield name, tuple(one for each in value for one in _read(option, place, ctx, each))
        else:
            yield name, _read(option, place, ctx, value)


def _read(option: SettingOption, place: str, ctx: click.Context, value: Any) -> Any:
    types = _toml_types(option.type)
    if type(value) not in types:  # says the type and not the value, which may be the token
        expected = " or ".join(each.__name__ for each in (*types, *([list] if option.multiple else [])))
        raise UsageError(f"{place}: expected a TOML {expected}, not {type(value).__name__}")
    return option.read(place, ctx, str(value))


def _toml_types(kind: click.ParamType[Any]) -> tuple[type, ...]:
    match kind:
        case click.FloatRange():
            return (float, int)
        case click.IntRange():
            return (int,)
        case BoolParamType():
            return (bool,)
        case TextType() if kind.forms and not isinstance(kind, Origin):
            return (str, int)  # `gpu-layers = 20`, `device = 0`
        case _:
            return (str,)


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path}: the config file cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: the config file is not TOML: {error}") from error
