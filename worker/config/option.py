"""A setting's row as an option of click's, the kinds of values that click has no type for, and the config file.

Click itself chooses the source: flag > environment > config file > default. The file is given to it as its map of
defaults. It is read as a whole, so that a mistake in it is found at once, also where a flag overrides it.
"""

import ipaddress
import os
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field
from functools import partial
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_origin
from urllib.parse import urlsplit

import msgspec
import rich_click as click
from click.core import ParameterSource
from click.types import BoolParamType

from worker.config.row import Form, JsonText
from worker.errors import UsageError

_UNPRINTABLE = r"\x00-\x1f\x7f-\x9f\ud800-\udfff"
"""Control characters, and the bytes of an argument that is not UTF-8."""


class TextType(click.ParamType[str]):
    """Text that a pattern allows; `forms` says in words what that is. `check` reads what no pattern can judge: it
    raises ValueError with the reason, which follows the value and `wrong`, or click.BadParameter with the whole text.
    """

    def __init__(
        self,
        pattern: str = f"[^{_UNPRINTABLE}]+",
        forms: str = "",
        check: Callable[[str], str] = str,
        *,
        wrong: str = "",
        name: str = "text",
    ) -> None:
        self.pattern, self.forms, self.name = pattern, forms, name
        self._check, self._wrong = check, wrong

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if not re.fullmatch(self.pattern, value):
            allowed = self.forms or "text in UTF-8 that is not empty and has no control characters"
            self.fail(f"{value!r} is not valid; allowed is {allowed}", param, ctx)
        try:
            return self._check(value)
        except ValueError as error:
            self.fail(f"{value!r} {self._wrong}: {error}", param, ctx)

    def split_envvar_value(self, rv: str) -> list[str]:
        return rv.replace(",", " ").split()


def _url(url: str) -> str:
    """urlsplit finds no host, a port past 65535, a broken IPv6 address."""
    parts = urlsplit(url)
    if not parts.hostname or parts.port == 0:
        raise ValueError("it needs a host, and a port above 0 if it has one")
    return url


def _endpoint(endpoint: str) -> str:
    """ZeroMQ looks up no names here, and binds two sockets, one at the port and one at the next."""
    parts = urlsplit(endpoint)
    ipaddress.ip_address(parts.hostname or "")
    if parts.port == 65_535:
        raise ValueError("there is no next port for the second socket")
    return endpoint


_WEB_ORIGIN = re.compile(
    r"(https?)://([a-z0-9_]([a-z0-9._-]*[a-z0-9_])?|\[[0-9a-f:.]+\])(?::([0-9]{1,5}))?/?", re.IGNORECASE
)
_APP_ORIGIN = re.compile(r"(?!(?i:https?):)[A-Za-z][A-Za-z0-9+.-]*://((?![/?#@,*\\])[!-~])+/?|file://")
_ORIGINS = "http[s]://host[:port] or a desktop app's scheme://host, without a path"


def _origin(value: str) -> str:
    """An origin, read as the text by which browsers name it in a header.

    They write http and https origins in lower case and without the scheme's own port, and the address of IPv6 in its
    shortest form. Other schemes are those of desktop apps and browsers' extensions, whose hosts stay as they are;
    `file://` has none.
    """
    if found := _WEB_ORIGIN.fullmatch(value):
        scheme, host, port = found[1].lower(), found[2].lower(), int(found[4] or 0)
        if host.startswith("["):
            host = f"[{ipaddress.IPv6Address(host[1:-1])}]"
        if found[4] is not None and not 0 < port < 2**16:
            raise ValueError("the port is 1..65535")
        return f"{scheme}://{host}" + (f":{port}" if port and port != {"http": 80, "https": 443}[scheme] else "")
    if value == "null":
        raise click.BadParameter(
            f"{value!r} is what browsers send for every page in a sandboxed frame, so any site could ask: "
            "serve the page over HTTP and give its origin"
        )
    if not value.isascii():
        raise click.BadParameter(f"{value!r} is not ASCII, which browsers send: write the host's name as xn--…")
    if not _APP_ORIGIN.fullmatch(value):
        raise click.BadParameter(f"{value!r} is not valid; allowed is {_ORIGINS}")
    scheme, _, host = value.partition("://")
    return f"{scheme.lower()}://{host.removesuffix('/')}"


def _token(value: str) -> str:
    if not value.strip():
        raise click.BadParameter("the API token is empty: give it a value, or remove it to serve without one")
    if not value.isascii() or not value.isprintable() or value != value.strip():
        reason = "use printable ASCII without a space or line break at either end"
        raise click.BadParameter(f"the API token is not a header value: {reason}")
    return value


def _json_object(value: str) -> str:
    try:
        msgspec.json.decode(value, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else f"{error}"
        example = '{"enable_thinking": false}'
        raise click.BadParameter(f"{value!r} is not a JSON object, such as {example}: {reason}") from None
    return value


_ANY = "(?s:.*)"
URL = TextType(
    rf"https?://[^\s{_UNPRINTABLE}]+",
    "http://… or https://…",
    _url,
    wrong="is not a URL that can be called",
    name="url",
)
ZMQ_ENDPOINT = TextType(
    r"tcp://([0-9.]+|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5}",
    "tcp://ADDRESS:PORT with an IP address, in brackets if it is of version 6, and a port of 0..65534",
    _endpoint,
    wrong="cannot be bound",
    name="endpoint",
)
ORIGIN = TextType(_ANY, _ORIGINS, _origin, wrong="is not an origin", name="origin")
TOKEN = TextType(_ANY, "", _token, name="token")
"""A secret that a header can carry. No message shows it."""
JSON_OBJECT = TextType(_ANY, "", _json_object, name="json")


class HomePath(click.Path):
    """A path whose `~` is understood: no shell sees the one in a variable, in a file or in `--models-dir=~/x`."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        text = TextType().convert(os.fspath(value), param, ctx)
        try:
            path = Path(text).expanduser()
        except RuntimeError as error:  # `~nobody/`
            self.fail(f"{text!r} is not a path: {error}", param, ctx)
        return super().convert(path, param, ctx)


ANY_PATH = HomePath(path_type=Path, readable=False)
"""Any path; the code that opens it finds out whether something is there."""


def is_service_address(name: str, value: str) -> bool:
    """True if Kubernetes has made the variable: a service named `x` gives every container of its namespace X_PORT."""
    return name.endswith("_PORT") and re.match(r"(tcp|udp|sctp)://", value) is not None


class SettingOption(click.RichOption):
    """A setting's option. `also`: further spellings of the flag. `other_envvar`: a second name of the variable."""

    has_flag = True
    """False if the command takes the setting from the environment and the config file only."""

    def __init__(
        self, flags: Sequence[str], *, also: Sequence[str] = (), other_envvar: str | None = None, **rest: Any
    ) -> None:
        super().__init__([*flags, *also], **rest)
        self.variables = [str(name) for name in (self.envvar, other_envvar) if name is not None]

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        if not self.has_flag:
            return
        super().add_to_parser(parser, ctx)
        # click would read `-tb 4` as `-t b` and `-t=4` as `-t` with the value "=4". A long flag is matched as a whole.
        for flag in self.opts:
            if flag in parser._short_opt:
                parser._long_opt[flag] = parser._short_opt.pop(flag)

    def resolve_envvar_value(self, ctx: click.Context) -> str | None:  # noqa: ARG002 - click's signature
        given = self._variable()
        return None if given is None else given[1]

    def type_cast_value(self, ctx: click.Context, value: Any) -> Any:
        variable = self._variable() if ctx.get_parameter_source(self.name) is ParameterSource.ENVIRONMENT else None
        return self.read(self.opts[0] if variable is None else variable[0], ctx, value)

    def _variable(self) -> tuple[str, str] | None:
        """The variable that gives the setting, and its value. An empty one gives nothing, but for the token's: an
        empty secret must not serve without one. Raises: UsageError for two that differ.
        """
        given = [
            (name, value)
            for name in self.variables
            if (value := os.environ.get(name)) is not None
            and (value or self.type is TOKEN)
            and not is_service_address(name, value)
        ]
        empty = next((one for one in given if not one[1].strip()), None)
        if empty is None and len({value for _, value in given}) > 1:
            names = " and ".join(name for name, _ in given)
            raise UsageError(f"{names} are two names of one setting and have different values: unset one of them")
        return empty or next(iter(given), None)

    def read(self, place: str, ctx: click.Context, value: Any) -> Any:
        """The value as the setting's type. Raises: UsageError with the place, the value and what is allowed."""
        if self.multiple and not isinstance(value, str):
            return tuple(one for each in value or () for one in self.read(place, ctx, each))
        others = [other for other in ctx.command.params if isinstance(other, click.Option)]
        if self.type is not TOKEN and any(value in other.opts for other in others):
            raise UsageError(f"{place}: a value is missing before {value}")
        try:
            found = super().type_cast_value(ctx, (value,) if self.multiple else value)
        except click.BadParameter as error:
            before, value_in_it, after = error.message.partition(repr(value))
            quoted = shown(value) if value_in_it else ""
            raise UsageError(f"{place}: {before}{quoted}{after}{self._range_beside(before + after)}") from None
        if found != found:  # noqa: PLR0124 - nan, which click finds in every range
            raise UsageError(f"{place}: nan is not a number")
        return found

    def _range_beside(self, message: str) -> str:
        """The allowed numbers, if click's message does not have them, apart from the value: about text that is not a
        number it says nothing else.
        """
        if not isinstance(self.type, click.IntRange | click.FloatRange) or str(self.type.max) in message:
            return ""
        return f" Allowed is {self.type.min} to {self.type.max}."


def flag_name(name: str) -> str:
    return "--" + name.replace("_", "-")


def option_of(each: Field[Any]) -> SettingOption:
    """The option of a setting's row (row.py)."""
    row = {"show_default": True, "envvar": f"LLORCH_{each.name.upper()}", **each.metadata}
    kind = _kind_of(row.pop("values"), each.type)
    if each.default is False:
        row["is_flag"] = True
    else:
        row["type"] = kind
    if isinstance(kind, click.IntRange | click.FloatRange):
        row.setdefault("metavar", "N" if isinstance(kind, click.IntRange) else "SECONDS")
    if isinstance(kind, TextType) and kind.forms:
        row["help"] += f" [{kind.forms}]"
    return SettingOption([flag_name(each.name)], default=each.default, **row)


def _kind_of(values: Any, annotation: Any) -> click.ParamType[Any]:
    """The kind of a row: what it says itself, and else what the annotation of its field says."""
    of = get_args(annotation)[0] if NoneType in get_args(annotation) else annotation
    match values:
        case click.ParamType():
            return values
        case Form(pattern, words):
            return TextType(pattern, words)
        case (int() | float(), _):
            return (click.IntRange if of is int else click.FloatRange)(*values)
    if values or get_origin(of) is Literal:
        return click.Choice(values or get_args(of))
    by_type = {Path: ANY_PATH, JsonText: JSON_OBJECT}
    return by_type.get(of) or TextType()


def shown(value: object) -> str:
    """A user's value as an error line may quote it: escaped, and cut when long."""
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def config_option(settings: Sequence[SettingOption]) -> SettingOption:
    """`--config`, which is read before the settings that it gives."""
    return SettingOption(
        ["--config"],
        type=ANY_PATH,
        envvar="LLORCH_CONFIG",
        callback=partial(_use_file, {option.name: option for option in settings}),
        is_eager=True,
        expose_value=False,
        metavar="FILE",
        panel="Operation",
        help="Read settings from this TOML file.",
    )


def _use_file(
    known: Mapping[str, SettingOption], ctx: click.Context, _option: click.Parameter, path: Path | None
) -> None:
    """Raises: UsageError."""
    if path is None:
        return
    found: dict[str, Any] = {}
    for key, value in _read_toml(path).items():
        place, name = f"{path}: {key}", key.replace("-", "_")
        if name not in known:
            raise UsageError(f"{place}: no setting has this name; the keys are the flags of `serve` without `--`")
        if name in found:
            raise UsageError(f"{place}: the setting is given twice, with `-` and with `_`")
        option = known[name]
        if option.multiple and type(value) is list:
            found[name] = tuple(one for each in value for one in _read(option, place, ctx, each))
        else:
            found[name] = _read(option, place, ctx, value)
    ctx.default_map = found


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
        case TextType() if kind.forms and kind is not ORIGIN:
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
