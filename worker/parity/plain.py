"""Values as JSON can carry them: what it has no form for becomes text, instead of failing at the end of a long run.

Owns: that translation, and how JSON looks here. Refuses to know what the values mean. Pure.
"""

from collections.abc import Iterable
from math import isfinite
from typing import Any, Final

import msgspec
import numpy as np

NOT_FINITE: Final = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
"""str(number) → the word that stands for it."""


def json_document(value: object) -> bytes:
    """UTF-8, indented, a line end at the end."""
    return msgspec.json.format(msgspec.json.encode(plain(value)), indent=1) + b"\n"


def json_lines(records: Iterable[object]) -> bytes:
    """A record a line."""
    return b"".join(msgspec.json.encode(plain(record)) + b"\n" for record in records)


def plain(value: object) -> Any:
    """Of dicts, lists, text, numbers and None: dataclasses and numpy's numbers opened, NaN, infinities and lone
    surrogates spelled out."""
    return _spelled(msgspec.to_builtins(value, enc_hook=_of_numpy))


def _of_numpy(value: object) -> object:
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{type(value).__name__} has no form in JSON")


def _spelled(node: Any) -> Any:
    match node:
        case float() if not isfinite(node):
            return NOT_FINITE[str(node)]
        case str():
            return node.encode(errors="backslashreplace").decode()
        case dict():
            return {_spelled(key): _spelled(value) for key, value in node.items()}
        case list() | tuple():
            return [_spelled(value) for value in node]
    return node
