"""One setting: how it is spelled and explained, and which values it may have.

Owns: the rules for a single value and their wording. Refuses to know: which settings there are (settings.py) and how a
value was given (precedence.py). Pure.
"""

import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from worker.errors import UsageError

Group = Literal["Model", "Device and memory", "Jobs", "Network", "Operation"]


@dataclass(frozen=True, slots=True)
class Option:
    """How a setting is spelled and checked. `env` is None where the rule LLORCH_NAME holds."""

    help: str
    group: Group
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] | None = None
    pattern: str | None = None
    forms: str | None = None
    """What the pattern allows, in words."""
    env: str | None = None
    metavar: str | None = None
    shown_default: str | None = None

    @property
    def allowed(self) -> str:
        """The range, the choices or the forms, for help and for errors; empty where anything goes."""
        if self.forms:
            return self.forms
        if self.choices:
            return ", ".join(self.choices)
        if self.low is None or self.high is None:
            return ""
        return f"{self.low:.15g}..{self.high:.15g}"


def setting(default: Any, help: str, group: Group, *, factory: Callable[[], Any] | None = None, **rest: Any) -> Any:
    """A dataclass field that is a setting; `rest` are the option's own fields. Any: a field has its setting's type."""
    metadata = {"option": Option(help, group, **rest)}
    if factory is not None:
        return field(default_factory=factory, metadata=metadata)
    return field(default=default, metadata=metadata)


def check_value(place: str, option: Option, value: Any) -> None:
    """Raises: UsageError with the place, the value and what is allowed."""
    if isinstance(value, str | Path):
        _check_text(place, str(value))
    if option.choices and value not in option.choices:
        raise UsageError(f"{place}: {shown(value)} is not one of {option.allowed}")
    if option.low is not None and option.high is not None and not option.low <= value <= option.high:
        raise UsageError(f"{place}: {shown(value)} is out of range; allowed is {option.allowed}")
    if option.pattern and not re.fullmatch(option.pattern, str(value)):
        raise UsageError(f"{place}: {shown(value)} is not valid; allowed is {option.allowed}")
    if option.metavar == "URL":
        _check_url(place, value)


def _check_text(place: str, text: str) -> None:
    if not text:
        raise UsageError(f"{place}: the value is empty; give one, or leave it out")
    if any(unicodedata.category(char) in {"Cc", "Cs"} for char in text):
        raise UsageError(f"{place}: {shown(text)} has control characters or is not UTF-8")


def _check_url(place: str, url: str) -> None:
    """urlsplit finds the mistakes a pattern cannot: no host, a port past 65535, a broken IPv6 address."""
    try:
        parts = urlsplit(url)
        if parts.hostname and (parts.port is None or parts.port > 0):
            return
        reason = "it needs a host, and a port above 0 if one is named"
    except ValueError as error:
        reason = str(error)
    raise UsageError(f"{place}: {shown(url)} is not a URL that can be called: {reason}")


def check_token(token: str | None) -> None:
    """A token is what a header can carry, and never part of a message. Raises: UsageError."""
    if token is None:
        return
    if not token.strip():
        raise UsageError("the API token is empty: give LLORCH_API_TOKEN a value, or leave it out to serve without one")
    if not token.isascii() or not token.isprintable() or token != token.strip():
        raise UsageError(
            "the API token is not a header value: use printable ASCII without a space or line break at either end"
        )


def shown(value: object) -> str:
    """A user's value as an error line may quote it: escaped, and cut when long."""
    text = repr(value) if isinstance(value, str) else str(value)
    return text if len(text) <= 80 else text[:77] + "..."
