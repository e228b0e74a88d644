"""The imports and calls of the modules of worker/, parity/ and client/, read from their source without running it."""

import ast
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.util import resolve_name
from pathlib import Path

import client
import parity
import worker

WINGS = ("server", "apis", "formats", "models")  # their folders are rooms

ROOTS = tuple(Path(str(package.__file__)).parent for package in (worker, parity, client))


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """One module, the same only as itself; `name` is dotted, a package is named without `__init__`."""

    name: str
    package: str
    text: str
    tree: ast.Module


@cache
def sources() -> tuple[Source, ...]:
    """Every module of worker/, parity/ and client/."""
    return tuple(_read(path, root.parent) for root in ROOTS for path in sorted(root.rglob("*.py")))


def source(text: str, name: str = "worker.example", package: str = "worker") -> Source:
    return Source(name, package, text, ast.parse(text))


def _read(path: Path, checkout: Path) -> Source:
    parts = path.relative_to(checkout).with_suffix("").parts
    package = ".".join(parts[:-1])
    name = package if parts[-1] == "__init__" else ".".join(parts)
    return source(path.read_text(encoding="utf-8"), name, package)


@cache
def imports(module: Source) -> frozenset[str]:
    """Dotted names of all it imports, at the top or inside a function, and their packages.

    `from a import b` counts as a.b too, since b may be a module.
    """
    return frozenset(parent for name in _imported(module) for parent in _with_parents(name))


def _imported(module: Source) -> Iterator[str]:
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = resolve_name("." * node.level + (node.module or ""), module.package)
            yield from (f"{base}.{alias.name}" for alias in node.names)


def _with_parents(name: str) -> Iterator[str]:
    parts = name.split(".")
    return (".".join(parts[:n]) for n in range(1, len(parts) + 1))


def is_in(name: str, room: str) -> bool:
    """True if a dotted name is the room or lies inside it."""
    return f"{name}.".startswith(f"{room}.")


def is_in_any(name: str, rooms: tuple[str, ...]) -> bool:
    return any(is_in(name, room) for room in rooms)


def reachable(*roots: str) -> set[str]:
    """The roots and everything they import, directly or not. Only modules of `sources` are followed."""
    graph = {module.name: imports(module) for module in sources()}
    seen: set[str] = set()
    ahead = list(roots)
    while ahead:
        name = ahead.pop()
        if name not in seen:
            seen.add(name)
            ahead += graph.get(name, ())
    return seen


def arrows() -> dict[str, frozenset[str]]:
    """Each module, and the modules that it names in its imports; also those for type checkers, and inside functions."""
    names = {module.name for module in sources()}
    return {
        module.name: frozenset(
            found
            for name in _imported(module)
            if (found := next((part for part in (name, name.rpartition(".")[0]) if part in names), None)) is not None
        )
        for module in sources()
    }


def room_of(name: str) -> str:
    """`worker.llama` of `worker.llama.model`, `worker.server.web` of its modules, `parity` of `parity.case`; a module
    beside the rooms is its own."""
    parts = name.split(".")
    return ".".join(parts[: (3 if parts[1:2] and parts[1] in WINGS else 2) if parts[0] == "worker" else 1])


def between_rooms(modules: Mapping[str, Collection[str]]) -> dict[str, frozenset[str]]:
    """The arrows of modules as arrows of their rooms."""
    found: dict[str, set[str]] = {room_of(name): set() for name in modules}
    for name, targets in modules.items():
        found[room_of(name)] |= {room_of(target) for target in targets} - {room_of(name)}
    return {room: frozenset(targets) for room, targets in found.items()}


def circles(graph: Mapping[str, Collection[str]]) -> set[frozenset[str]]:
    """The largest sets of names of which each reaches all others and itself."""
    reached = {name: _reached(graph, name) for name in graph}
    return {
        frozenset(other for other in reached[name] if name in reached[other]) for name in graph if name in reached[name]
    }


def _reached(graph: Mapping[str, Collection[str]], start: str) -> set[str]:
    """All that lies behind at least one arrow."""
    seen: set[str] = set()
    ahead = list(graph[start])
    while ahead:
        name = ahead.pop()
        if name not in seen:
            seen.add(name)
            ahead += graph.get(name, ())
    return seen


def calls(module: Source, function: str) -> list[int]:
    """Lines that call a function by its bare name."""
    return [
        node.lineno
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == function
    ]


def uses(module: Source, owner: str, *members: str) -> list[int]:
    """Lines that use a member of a module, as `owner.member` or imported by name."""
    attributes = [
        node.lineno
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == owner
        and node.attr in members
    ]
    by_name = [
        node.lineno
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ImportFrom)
        and node.module == owner
        and any(alias.name in members for alias in node.names)
    ]
    return attributes + by_name


def functions(module: Source) -> Iterator[tuple[str, int]]:
    """(name, lines from `def` to its end) of every function and method."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None:
            yield node.name, node.end_lineno - node.lineno + 1
