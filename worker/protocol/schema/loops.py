"""Definitions that refer to each other without end, found in a plain schema (reader.py).

Pure; runs on the front's event loop.
"""

from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from typing import Any

Plain = dict[str, Any]
"""A schema of the few shapes reader.py writes; references are to the definitions by name."""


def loops(definitions: dict[str, Plain]) -> Iterator[tuple[str, str]]:
    """Definitions no text can be made of, by name, and why: the grammar would have no beginning, or the text no end."""
    try:
        TopologicalSorter({name: set(_begins(plain)) for name, plain in definitions.items()}).prepare()
    except CycleError as error:
        yield error.args[1][0], "refers to itself with no object or array in between"
    for name in _endless(definitions):
        yield name, "requires a part that requires it again, without end"


def _endless(definitions: dict[str, Plain]) -> list[str]:
    """Those of which no value is finite. The reader puts a definition behind those it refers to, but for loops."""
    left, finite = list(definitions), set[str]()
    while True:
        for name in left:
            if _ends(definitions[name], finite):
                finite.add(name)
        if len(left) == len(definitions) - len(finite):
            return left
        left = [name for name in left if name not in finite]


def _begins(plain: Plain) -> Iterator[str]:
    """The definitions a value may be one of before its first character is written."""
    for branch in plain.get("anyOf", [plain]):
        if "$ref" in branch:
            yield _name(branch)
        elif "anyOf" in branch:
            yield from _begins(branch)


def _ends(plain: Plain, finite: set[str]) -> bool:
    """Whether some value of it is finite, when those of `finite` are."""
    match plain:
        case {"$ref": _}:
            return _name(plain) in finite
        case {"anyOf": branches}:
            return any(_ends(branch, finite) for branch in branches)
        case {"properties": properties, "required": required}:
            return all(_ends(properties[name], finite) for name in required if name in properties)
        case {"prefixItems": items}:
            return all(_ends(item, finite) for item in items)
        case {"items": item, "minItems": least}:
            return least == 0 or _ends(item, finite)
        case _:
            return True


def _name(reference: Plain) -> str:
    return str(reference["$ref"]).rsplit("/", 1)[-1]
