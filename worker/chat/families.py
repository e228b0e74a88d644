"""The families of models whose notation is declared.

Owns the recognition of a family by the marks in a template's source. The notations are data: formats.toml.
"""

from functools import cache
from importlib.resources import files

import msgspec

from worker.wire.chat_format import ChatFormat


class Family(msgspec.Struct, frozen=True):
    """A notation, and the texts that a template of this family contains."""

    marks: tuple[str, ...]
    """All of these are in the source."""
    format: ChatFormat
    without: tuple[str, ...] = ()
    """None of these is in the source."""


@cache
def families() -> tuple[Family, ...]:
    """Return the known families. The first one that fits counts."""
    found = msgspec.toml.decode(
        files(__package__).joinpath("formats.toml").read_bytes(), type=dict[str, tuple[Family, ...]]
    )["family"]
    return tuple(
        msgspec.structs.replace(one, format=msgspec.structs.replace(one.format, source="declared")) for one in found
    )


def declared(source: str) -> ChatFormat | None:
    """Return the notation of the family that a template's source is of, or None if it is of no known family."""
    for family in families():
        if all(mark in source for mark in family.marks) and not any(mark in source for mark in family.without):
            return family.format
    return None
