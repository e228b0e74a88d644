"""The search for members of a JSON value that no field of its reader's types has.

Pure.
"""

from collections.abc import Iterator
from functools import cache
from typing import Any, get_args

import msgspec


def unread(place: str, value: object, kind: Any) -> Iterator[str]:
    """Yield the places of members that are not null and that no struct of the type `kind` has, without the numbers of
    entries: `messages.content.cache_control`. A place may come more than once.
    """
    shape = _struct_in(kind)
    if shape is None:
        return
    match value:
        case list():
            for entry in value:
                yield from unread(place, entry, kind)
        case dict():
            fields = _fields(shape)
            for name, inner in value.items():
                if inner is None:
                    continue
                if name in fields:
                    yield from unread(f"{place}.{name}", inner, fields[name])
                else:
                    yield f"{place}.{name}"


@cache
def _struct_in(kind: Any) -> type[msgspec.Struct] | None:
    """The struct that values of the type, or their entries, may be; no type here has two."""
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return kind
    return next((found for inner in get_args(kind) if (found := _struct_in(inner)) is not None), None)


@cache
def _fields(shape: type[msgspec.Struct]) -> dict[str, Any]:
    return {field.name: field.type for field in msgspec.structs.fields(shape)}
