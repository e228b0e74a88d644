"""The covering of secrets in what a process shows or hands on besides its log: its arguments and its environment.

Knows nothing of /proc. Pure.
"""

import re
from collections.abc import Mapping, Sequence
from functools import partial

from worker.observe.redaction import MASK, SECRET_KEY, SECRETS_IN_TEXT


def cover_arguments(arguments: Sequence[str]) -> list[str]:
    """The arguments of a command, of the same lengths, with a star for each character of a secret."""
    covered, is_value = [], False
    for argument in arguments:
        flag, equals, value = argument.partition("=") if argument.startswith("-") else ("", "", "")
        if is_value:
            covered.append(_stars(argument))
        elif value and SECRET_KEY.search(flag):
            covered.append(f"{flag}{equals}{_stars(value)}")
        else:
            covered.append(_cover_text(argument))
        is_value = not is_value and argument.startswith("--") and SECRET_KEY.search(argument) is not None
    return covered


def without_secrets(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables whose names do not say that they hold a secret."""
    return {name: value for name, value in environment.items() if not SECRET_KEY.search(name)}


def _cover_text(text: str) -> str:
    for pattern, replacement in SECRETS_IN_TEXT:
        text = pattern.sub(partial(_cover, replacement), text)
    return text


def _cover(replacement: str, found: re.Match[str]) -> str:
    before, _, after = found.expand(replacement).partition(MASK)
    return f"{before}{_stars(found[0][len(before) : len(found[0]) - len(after)])}{after}"


def _stars(secret: str) -> str:
    return "*" * len(secret)
