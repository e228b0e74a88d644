"""Data of tests: the file `x.json` beside `x.py` has tables by their names, a row a line, and each test's cases by its.

A text that is long is written as its parts, {"joined": [...]}, and as what is repeated how often, {"times": [..., n]}.
"""

import json
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import pytest

Test = TypeVar("Test", bound=Callable[..., None])


def cases(test: Test) -> Test:
    """Try a test with each of its cases: their members are its arguments, and `id` is the name of the case."""
    rows = table(sys.modules[test.__module__].__file__, test.__name__)
    names = [name for name in rows[0] if name != "id"]
    params = [pytest.param(*(row[name] for name in names), id=row.get("id")) for row in rows]
    marked: Test = pytest.mark.parametrize(names, params)(test)
    return marked


def table(module: str | None, name: str) -> Any:
    """The rows that the file beside a module has under this name."""
    assert module is not None
    return _tables(Path(module).with_suffix(".json"))[name]


@cache
def _tables(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"), object_hook=_long)


def _long(members: dict[str, Any]) -> Any:
    match members:
        case {"joined": [*parts], **rest} if not rest:
            return "".join(parts)
        case {"times": [str() | list() as value, int() as n], **rest} if not rest:
            return value * n
        case _:
            return members
