"""Lines of Python have a budget: of each room, of each road, of the tests, the tools and parity. Budgets only fall.

tests/budgets.toml has them. A feature that comes later brings a line of its own under [features]; no other number may
rise, which the file's earlier versions show.
"""

import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.imports import WINGS
from tests.test_road import ROADS, lines_of

ROOT = Path(__file__).parents[1]
FILE = Path("tests/budgets.toml")
Budgets = dict[str, dict[str, int]]
BUDGETS: Budgets = tomllib.loads((ROOT / FILE).read_text(encoding="utf-8"))


def n_lines(*places: str) -> int:
    return sum(
        path.read_text(encoding="utf-8").count("\n")
        for place in places
        for path in ([ROOT / place] if place.endswith(".py") else (ROOT / place).rglob("*.py"))
    )


def room(path: Path) -> str:
    """The budget that pays for a module: its room, or `top` beside all rooms."""
    folders = path.relative_to(ROOT / "worker").parts[:-1]
    is_deep = (folders[:1] and folders[0] in WINGS) or folders[:2] == ("engine", "sampling")
    return ".".join(folders[: 2 if is_deep else 1]) or "top"


def found() -> Budgets:
    rooms: dict[str, int] = {}
    for path in sorted((ROOT / "worker").rglob("*.py")):
        rooms[room(path)] = rooms.get(room(path), 0) + path.read_text(encoding="utf-8").count("\n")
    return {
        "worker": rooms,
        "roads": {road: sum(map(lines_of, names)) for road, names in ROADS.items()},
        "all": {
            "worker": n_lines("worker"),
            "tests": n_lines("tests"),
            "tools and scripts": n_lines("tools", "scripts"),
            "parity": n_lines("parity"),
        },
    }


def earlier() -> Iterator[Budgets]:
    """Yield the file as each commit had it; nothing where there is no history."""
    commits = _git("log", "--format=%H", "--", str(FILE)).split()
    yield from (tomllib.loads(_git("show", f"{commit}:{FILE}")) for commit in commits)


def _git(*arguments: str) -> str:
    command = ["git", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout


@pytest.mark.parametrize("kind", ["worker", "roads", "all"])
def test_nothing_is_longer_than_its_budget(kind: str) -> None:
    """Cut something, or split a feature's lines off into [features]."""
    of_features = BUDGETS["features"]
    allowed = {name: n + of_features.get(name, 0) for name, n in BUDGETS[kind].items()}
    now = found()[kind]
    assert now.keys() == allowed.keys()
    assert {name: (n, allowed[name]) for name, n in now.items() if n > allowed[name]} == {}


def test_a_budget_never_rises() -> None:
    risen = {
        (kind, name): (before, BUDGETS[kind][name])
        for version in earlier()
        for kind in ("worker", "roads", "all")
        for name, before in version.get(kind, {}).items()
        if BUDGETS[kind].get(name, 0) > before
    }
    assert risen == {}
