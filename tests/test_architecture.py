"""The rooms of docs/architecture.md as tables: who may import what, checked by walking the source.

A new rule is a new line in a table. tests/imports.py reads the source. The page itself is read, too: it is the map by
which a newcomer finds a place.
"""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.imports import (
    arrows,
    between_rooms,
    calls,
    circles,
    functions,
    imports,
    is_in,
    is_in_any,
    reachable,
    room_of,
    source,
    sources,
    uses,
)

ONLY_IN: dict[str, tuple[str, ...]] = {
    "ctypes": ("worker.llama", "parity.llama"),
    "llama_cpp": ("worker.llama", "parity.llama"),
    "llguidance": ("worker.constraints",),
    "minijinja": ("worker.formats.render.sandbox",),
    "torch": ("parity.reference",),
    "transformers": ("parity.reference",),
    "litestar": ("worker.server.web",),
    "uvicorn": ("worker.server.web", "worker.serve"),
    "zmq": ("worker.server.front.kv_events",),
    "gguf": ("parity",),
    "safetensors": ("parity",),
    "opentelemetry": ("worker.observe.traces",),
    "numpy": ("worker.engine.sampling", "worker.llama", "worker.server.saved", "worker.constraints", "parity"),
}
"""A package and the only rooms that import it."""

PURE_ROOMS = (
    *("worker.engine", "worker.engine.sampling", "worker.formats.read", "worker.formats.grammar"),
    *("worker.models.plan", "worker.models.upstream"),
)

IMPURE: dict[str, tuple[str, ...]] = {
    "C": ("ctypes", "cffi", "mmap"),
    "HTTP": ("http", "urllib", "httpx2", "litestar", "uvicorn", "asyncio"),
    "files": ("pathlib", "io", "os", "shutil", "tempfile", "glob"),
    "sockets": ("socket", "select", "selectors", "ssl"),
    "clock": ("time", "datetime"),
    "chance": ("random", "secrets", "uuid"),
    "threads": ("threading", "queue", "concurrent", "multiprocessing", "signal"),
    "processes": ("subprocess", "sys"),
    "logs": ("logging", "structlog"),
}
"""The things that a pure room does without: it is given what it needs, so that tests run it in milliseconds."""

_MAY_IMPORT = """
errors:
limits:
host: errors
wire:
config: limits models.upstream wire observe errors
observe: models.upstream wire errors
server.front: apis formats.read wire models.facts models.downloads config observe host errors
server.web: server.front apis wire config observe errors
server.process: models.loading engine config wire errors
server.saved: models.upstream engine wire host errors
apis.core: formats.read wire errors
apis.pool: apis.core wire errors
apis.chat: apis.core formats.read wire errors
apis.completions: apis.core wire errors
apis.infill: apis.core wire errors
apis.responses: apis.core formats.read wire errors
apis.messages: apis.core formats.read wire errors
formats: wire errors
formats.render: wire errors
formats.read: wire errors
formats.grammar: formats.read wire errors
engine: config limits wire errors
engine.sampling: wire
constraints: formats engine wire errors
llama: engine formats server.saved constraints models.plan models.facts config limits models.upstream wire host errors
models.facts: models.upstream errors
models.downloads: config host errors
models.plan: models.facts config limits models.upstream wire errors
models.loading: llama engine formats server.saved models.plan models.facts config models.upstream wire host errors
models.upstream:
"""
MAY_IMPORT: dict[str, tuple[str, ...]] = {
    "client": ("client", "worker.config", "worker.errors"),
    **{
        f"worker.{room}": tuple(f"worker.{name}" for name in (room, *names.split()))
        for room, _, names in (line.partition(":") for line in _MAY_IMPORT.strip().splitlines())
    },
}
"""A room, and all of the worker it may import."""

NEVER_IMPORT: dict[str, tuple[str, ...]] = {
    "worker": ("parity", "client", "tools", "tests"),
    "parity": ("tools", "tests"),
}
"""A room, and the rooms it never meets."""

FRONT = ("worker.serve", "worker.commands.generate", "worker.commands.chat")
"""The modules with which the front process begins."""

NOT_IN_THE_FRONT = (
    *("worker.llama", "worker.models.loading", "worker.models.plan", "worker.constraints", "worker.server.process"),
    *("worker.engine", "worker.formats.render", "worker.formats.grammar", "parity"),
    *("llama_cpp", "llguidance", "minijinja", "ctypes", "gguf", "numpy", "torch", "transformers"),
)

READS_THE_ENVIRONMENT = ("worker.config", "worker.__main__")
PRINTS = ("worker.cli", "worker.commands")
IMPORTS_BY_NAME = ("worker.cli",)
"""A module named by a string escapes every table here."""

MAX_FUNCTION_LINES = 60

ROOT = Path(__file__).parents[1]
MAP = (ROOT / "docs" / "architecture.md").read_text()
PAGES = {"docs/architecture.md": MAP, "CONTRIBUTING.md": (ROOT / "CONTRIBUTING.md").read_text()}
PROGRAMS = ("worker", "parity", "client", "tools", "scripts", "tests", "docs")
"""The folders in which the pages name files."""


def offenders(forbidden: str, allowed: tuple[str, ...]) -> list[str]:
    return [module.name for module in sources() if forbidden in imports(module) and not is_in_any(module.name, allowed)]


# ── rule 1: the front never loads llama.cpp ──────────────────────────────────────────────────────


@pytest.mark.parametrize("root", FRONT)
@pytest.mark.parametrize("forbidden", NOT_IN_THE_FRONT)
def test_the_front_never_reaches_what_can_crash_it(root: str, forbidden: str) -> None:
    """Imports inside functions count too, which run later or never."""
    assert root in {module.name for module in sources()}
    assert [name for name in reachable(root) if is_in(name, forbidden)] == []


@pytest.mark.parametrize("root", FRONT)
def test_the_front_when_it_runs_has_not_loaded_llama_cpp(root: str) -> None:
    """The source cannot show a dependency that loads it for us. They may load ctypes; we may not."""
    script = f"import sys, {root}; print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    loaded = found.stdout.split()
    assert root in loaded
    library = tuple(name for name in NOT_IN_THE_FRONT if name != "ctypes")
    assert [name for name in loaded if is_in_any(name, library)] == []


# ── rule 2: every foreign package has its room ───────────────────────────────────────────────────


@pytest.mark.parametrize("package", ONLY_IN)
def test_a_package_is_imported_only_in_its_room(package: str) -> None:
    assert offenders(package, ONLY_IN[package]) == []


# ── rule 3: the engine and the samplers are pure ─────────────────────────────────────────────────


@pytest.mark.parametrize("room", PURE_ROOMS)
@pytest.mark.parametrize("effect", IMPURE)
def test_a_pure_room_has_no(effect: str, room: str) -> None:
    found = {
        module.name: sorted(imports(module).intersection(IMPURE[effect]))
        for module in sources()
        if is_in(module.name, room)
    }
    assert {name: names for name, names in found.items() if names} == {}


@pytest.mark.parametrize("room", PURE_ROOMS)
def test_a_pure_room_opens_no_file_and_asks_for_no_input(room: str) -> None:
    inside = [module for module in sources() if is_in(module.name, room)]
    assert [module.name for module in inside for name in ("open", "print", "input") if calls(module, name)] == []


# ── layers ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_a_lower_room_imports_nothing_above_it(room: str) -> None:
    packages = {module.package for module in sources()}
    modules = {module.name for module in sources()} - packages
    found = {
        (module.name, name)
        for module in sources()
        if is_in(module.name, room)
        for name in imports(module) & modules
        if not is_in_any(name, MAY_IMPORT[room])
    }
    assert found == set()


@pytest.mark.parametrize("room", NEVER_IMPORT)
def test_rooms_that_never_meet_do_not_import_each_other(room: str) -> None:
    found = {
        (module.name, name)
        for module in sources()
        if is_in(module.name, room)
        for name in imports(module)
        if is_in_any(name, NEVER_IMPORT[room])
    }
    assert found == set()


# ── circles ──────────────────────────────────────────────────────────────────────────────────────


def test_no_modules_import_each_other_in_a_circle() -> None:
    """Imports for type checkers and inside functions count too: a reader follows them as well."""
    assert circles(arrows()) == set()


def test_no_rooms_import_each_other_in_a_circle() -> None:
    assert circles(between_rooms(arrows())) == set()


# ── habits ───────────────────────────────────────────────────────────────────────────────────────


def test_only_the_command_line_reads_the_environment() -> None:
    readers = {
        module.name: lines
        for module in sources()
        if (lines := uses(module, "os", "environ", "environb", "getenv", "getenvb"))
        and not is_in_any(module.name, READS_THE_ENVIRONMENT)
    }
    assert readers == {}


def test_only_the_command_line_prints() -> None:
    printers = {
        module.name: lines
        for module in sources()
        if (lines := calls(module, "print")) and not is_in_any(module.name, PRINTS)
    }
    assert printers == {}


def test_only_the_command_line_imports_a_module_by_its_name() -> None:
    found = [
        module.name
        for module in sources()
        if uses(module, "importlib", "import_module")
        or calls(module, "__import__")
        or uses(module, "runpy", "run_module")
    ]
    assert [name for name in found if name not in IMPORTS_BY_NAME] == []


def test_no_function_is_longer_than_a_page() -> None:
    lengths = [(module.name, name, n_lines) for module in sources() for name, n_lines in functions(module)]
    assert [found for found in lengths if found[2] > MAX_FUNCTION_LINES] == []


# ── the map ──────────────────────────────────────────────────────────────────────────────────────


def set_as_code(page: str) -> list[str]:
    """The texts in backticks, without the blocks of code."""
    return re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```$", "", page, flags=re.MULTILINE | re.DOTALL))


def rooms_of_the_map() -> dict[str, str]:
    """Each room that the map draws inside worker/, by its dotted name, with the text behind it."""
    (tree,) = re.findall(r"^```\nworker/\n(.*?)^```$", MAP, re.MULTILINE | re.DOTALL)
    found: dict[str, str] = {}
    wing = ""
    for indent, name, text in re.findall(r"^(  |    )(\w+)/(.*)$", tree, re.MULTILINE):
        wing = name if indent == "  " else wing
        found["worker." + (name if indent == "  " else f"{wing}.{name}")] = text
    return found


def packages(folder: str) -> list[Path]:
    return sorted(path.parent.relative_to(ROOT) for path in (ROOT / folder).rglob("__init__.py"))


def members() -> Iterator[str]:
    """`Class.member` for all that a class of the worker defines."""
    for module in sources():
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ClassDef):
                yield from (
                    f"{node.name}.{one.name}"
                    for one in node.body
                    if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)
                )


@pytest.mark.parametrize("page", PAGES)
def test_every_file_and_folder_that_a_page_names_is_there(page: str) -> None:
    """A file has its path from the checkout or from worker/, or its name alone behind another of its folder."""
    named = [text for text in set_as_code(PAGES[page]) if re.fullmatch(r"\w[\w./-]*(\.(py|md|sh|toml)|/)", text)]
    there = {path.name for folder in PROGRAMS for path in (ROOT / folder).rglob("*.*")}
    assert len(named) > 10
    assert [
        one for one in named if not (ROOT / one).exists() and not (ROOT / "worker" / one).exists() and one not in there
    ] == []


def test_every_name_on_the_map_is_in_the_code() -> None:
    words = set(re.findall(r"\w+", "".join(module.text for module in sources()))) | set(globals())
    defined = set(members())
    names = [text for text in set_as_code(MAP) if re.fullmatch(r"[A-Za-z_]\w+(\.(?!py$)[a-z_]\w+)?", text)]
    assert len(names) > 10
    assert [name for name in names if name not in (defined if "." in name else words)] == []


def test_the_map_draws_every_room() -> None:
    rooms = {room_of(".".join(path.parts)) for path in packages("worker")} - {"worker"}
    assert set(rooms_of_the_map()) == rooms | {"worker.engine.drafting", "worker.engine.sampling"}


def test_a_stranger_sees_at_most_twelve_folders() -> None:
    assert len([path for path in (ROOT / "worker").iterdir() if (path / "__init__.py").is_file()]) <= 12


def test_the_map_says_which_rooms_are_pure() -> None:
    assert {room for room, text in rooms_of_the_map().items() if "(pure)" in text} == set(PURE_ROOMS)


@pytest.mark.parametrize("folder", ["worker", "parity", "client", "tools", "deploy"])
def test_every_package_says_what_it_is_for(folder: str) -> None:
    silent = [
        str(path)
        for path in packages(folder)
        if not ast.get_docstring(ast.parse((ROOT / path / "__init__.py").read_text()))
    ]
    assert silent == []


# ── the walk itself ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("import ctypes", "ctypes"),
        ("import ctypes.util as cu", "ctypes"),
        ("from ctypes import c_int", "ctypes"),
        ("def f():\n    import ctypes", "ctypes"),
        ("try:\n    pass\nfinally:\n    from ctypes.util import find_library", "ctypes"),
        ("from worker.llama import model", "worker.llama.model"),
        ("from worker import llama", "worker.llama"),
        ("from . import llama", "worker.llama"),
        ("from .llama.model import Model", "worker.llama.model"),
    ],
)
def test_the_walk_finds_an_import_however_it_is_written(text: str, found: str) -> None:
    assert found in imports(source(text))


def test_the_walk_finds_what_is_used_and_called() -> None:
    module = source("import os\nfrom os import getenv\nx = os.environ['A']\nprint(x)\nconsole.print(x)\n")
    assert uses(module, "os", "environ", "getenv") == [3, 2]
    assert calls(module, "print") == [4]


def test_the_walk_knows_a_room_from_a_name_that_begins_like_it() -> None:
    assert is_in("worker.engine.loop", "worker.engine")
    assert is_in("worker.engine", "worker.engine")
    assert not is_in("worker.engine_room", "worker.engine")


def test_the_walk_finds_circles_of_any_length() -> None:
    graph = {"a": "b", "b": "c", "c": "a", "d": "a", "e": "e", "f": ""}
    assert circles(graph) == {frozenset("abc"), frozenset("e")}


def test_the_walk_knows_which_module_an_import_for_type_checkers_means() -> None:
    assert "worker.observe.traces" in arrows()["worker.server.front.admission"]
    assert between_rooms({"worker.a.b": ["worker.c.d"], "worker.c.d": []}) == {
        "worker.a": frozenset({"worker.c"}),
        "worker.c": frozenset(),
    }


def test_the_walk_follows_imports_to_their_end() -> None:
    assert {"worker.wire.jobs", "worker.engine.channels", "worker.engine.sequence"} <= reachable("worker.engine.loop")
    assert "worker.llama.model" in reachable("worker.commands.devices", "worker.llama.runner")
