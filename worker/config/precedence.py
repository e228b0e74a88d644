"""Flag > environment > config file > default: one value for every setting, and by which words the user gave it.

Owns: reading the three spellings (argument text, environment text, TOML) as the setting's type.
Refuses to know: click, and which values are allowed (settings.py). Pure but for reading the config file.
A config file is read as a whole, so that a mistake in it is found at once; of the environment only what decides.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli

from worker.config.option import Option, shown
from worker.config.settings import Settings, check, env_name, flag_name, options
from worker.config.spellings import unknown_variables
from worker.errors import UsageError

CONFIG_ENV = "LLORCH_CONFIG"
_NOT_THE_TOKEN = "LLORCH_API_KEY"  # noqa: S105 - the name a user would expect of --api-key

_TRUE = {"1", "true", "yes", "on"}
_FALSE = {"0", "false", "no", "off"}
_WHOLE_NUMBER = re.compile(r"[+-]?[0-9]{1,30}")
_NUMBER = re.compile(r"[+-]?([0-9]{1,30}(\.[0-9]{0,30})?|\.[0-9]{1,30})([eE][+-]?[0-9]{1,3})?")


@dataclass(frozen=True, slots=True)
class Given:
    """A value of the setting's type; `where` is what an error calls its place."""

    where: str
    value: Any


def settle(flags: Mapping[str, str | bool], config: str | None, environ: Mapping[str, str]) -> Settings:
    """The settings that hold. `flags` are those given, as typed; `config` is `--config`'s value.

    Raises: UsageError, naming the flag, the variable or the file and key.
    """
    if environ.get(_NOT_THE_TOKEN):
        raise UsageError(f"{_NOT_THE_TOKEN} is not read, and without a token every route is open: use LLORCH_API_TOKEN")
    where, path = ("--config", config) if config is not None else (CONFIG_ENV, environ.get(CONFIG_ENV))
    from_file = dict(_config_file(_read_text(where, Path, path))) if path else {}
    given = {
        name: found
        for name, kind, option in options()
        if (found := _from_flag(flags, name, kind) or _from_environ(environ, name, kind, option) or from_file.get(name))
    }
    settings = Settings(**{name: found.value for name, found in given.items()})
    return check(settings, {name: found.where for name, found in given.items()})


def unread(environ: Mapping[str, str]) -> list[tuple[str, str]]:
    """Variables that begin as ours do and are none: their names, and what is to be said of each."""
    known = [CONFIG_ENV, *(env_name(name, option) for name, _, option in options())]
    return list(unknown_variables({name: environ[name] for name in environ if name != _NOT_THE_TOKEN}, known))


def _from_flag(flags: Mapping[str, str | bool], name: str, kind: type) -> Given | None:
    value = flags.get(name)
    if value is None:
        return None
    where = flag_name(name)
    return Given(where, value if isinstance(value, bool) else _read_text(where, kind, value))


def _from_environ(environ: Mapping[str, str], name: str, kind: type, option: Option) -> Given | None:
    """Empty means unset, except for the token: an empty secret must not silently serve without one."""
    variable = env_name(name, option)
    text = environ.get(variable)
    if text is None or (not text and name != "api_key"):
        return None
    return Given(variable, _read_text(variable, kind, text))


def _config_file(path: Path) -> Iterator[tuple[str, Given]]:
    table = {name: (kind, option) for name, kind, option in options()}
    seen: set[str] = set()
    for key, value in _read_toml(path).items():
        where = f"{path}: {key}"
        name = key.replace("-", "_")
        if name not in table:
            raise UsageError(f"{where}: there is no such setting; the keys are the flags of `serve` without `--`")
        if name in seen:
            raise UsageError(f"{where}: the setting is given twice, with `-` and with `_`")
        seen.add(name)
        yield name, Given(where, _read_toml_value(where, *table[name], value))


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomli.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path}: the config file cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: the config file is not TOML: {error}") from error


def _read_toml_value(where: str, kind: type, option: Option, value: Any) -> Any:
    """The value as the setting's type. Messages say the type, not the value, which may be the token."""
    if type(value) is kind:
        return value
    if (kind is Path and type(value) is str) or (kind is float and type(value) is int):
        return _read_text(where, kind, str(value))
    if kind is str and option.pattern and type(value) is int:
        return str(value)  # `gpu-layers = 20`, `device = 0`
    raise UsageError(f"{where}: expected {_WORDING[kind]}, not a TOML {type(value).__name__}")


def _read_text(where: str, kind: type, text: str) -> Any:
    try:
        return _READERS[kind](text)
    except ValueError:
        raise UsageError(f"{where}: {shown(text)} is not {_WORDING[kind]}") from None


def _read_int(text: str) -> int:
    if not _WHOLE_NUMBER.fullmatch(text):
        raise ValueError(text)
    return int(text)


def _read_float(text: str) -> float:
    if not _NUMBER.fullmatch(text):
        raise ValueError(text)
    return float(text)


def _read_bool(text: str) -> bool:
    word = text.lower()
    if word not in _TRUE | _FALSE:
        raise ValueError(text)
    return word in _TRUE


def _read_path(text: str) -> Path:
    if not text or "\0" in text:
        raise ValueError(text)
    try:
        return Path(text).expanduser()
    except RuntimeError as error:  # `~nobody/`
        raise ValueError(text) from error


_READERS: dict[type, Callable[[str], Any]] = {
    str: str,
    int: _read_int,
    float: _read_float,
    bool: _read_bool,
    Path: _read_path,
}
_WORDING: dict[type, str] = {
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "1, true, yes, on, 0, false, no or off",
    Path: "a path",
}
