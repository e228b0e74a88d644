"""The texts that users read: help says what an option does, memory is in MiB, and every package named exists."""

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import rich_click as click

from tests.imports import Source, sources
from worker.cli import setting_options

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
COMMANDS = (
    *(f"worker.commands.{name}:{name}" for name in ("chat", "devices", "generate", "launch", "models")),
    *("worker.commands.inspect_gguf:inspect", "parity.command:parity"),
)
"""module:attribute"""

_VERBS = """
Accept Aim Allow Announce Answer Apply Begin Call Choose Compare Compute Do Draft Draw Drop End Generate Give
Guess Judge Keep Leave Let Limit Listen Log Look Make Measure Name Open Override Pass Print Process Publish Put
Read Refuse Repeat Report Require Restart Run Send Serve Share Show Split Store Submit Take Use Wait
Write
"""
VERBS = frozenset(_VERBS.split())
"""The verbs that an option's help may begin with. Add another verb here when a help text needs it."""

SAYS_MEGABYTES = {"worker.models.downloads.fetch"}
"""Sizes of files on disks and servers, which count in millions there."""


def options_of(command: click.Command) -> Iterator[tuple[str, click.Option]]:
    for param in command.params:
        if isinstance(param, click.Option) and not param.hidden:
            yield f"{command.name} {param.opts[0]}", param
    if isinstance(command, click.Group):
        for below in command.commands.values():
            yield from options_of(below)


def every_option() -> dict[str, click.Option]:
    found = {f"serve {option.opts[0]}": option for option in setting_options()}
    for module, _, attribute in (place.partition(":") for place in COMMANDS):
        found |= dict(options_of(getattr(importlib.import_module(module), attribute)))
    return found


OPTIONS = every_option()


def strings_of(module: Source) -> Iterator[str]:
    """The module's texts that are no docstrings."""
    documents = {id(node.value) for node in ast.walk(module.tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documents:
            yield node.value


@pytest.mark.parametrize("name", OPTIONS)
def test_help_begins_with_what_the_option_does_and_is_whole_sentences(name: str) -> None:
    told = (OPTIONS[name].help or "").strip()
    assert told.split()[0] in VERBS, told
    assert told.endswith((".", "]")), told


@pytest.mark.parametrize("name", [name for name in OPTIONS if name.endswith("-mb")])
def test_an_amount_of_memory_says_its_unit(name: str) -> None:
    assert "N MiB" in str(OPTIONS[name].help)


@pytest.mark.parametrize("name", [name for name in OPTIONS if name.endswith("-sec")])
def test_a_time_says_its_unit(name: str) -> None:
    assert OPTIONS[name].metavar == "SECONDS"


def test_no_text_calls_a_mebibyte_a_megabyte() -> None:
    wrong = [
        (module.name, text)
        for module in sources()
        if module.name not in SAYS_MEGABYTES
        for text in strings_of(module)
        if re.search(r"\bMB\b", text)
    ]
    assert not wrong


def test_nothing_is_installed_from_an_index_under_our_name() -> None:
    """No index has the package, so that anybody could register the name."""
    pattern = re.compile(r"pip install ['\"]?llorch-worker")
    wrong = [module.name for module in sources() if pattern.search(module.text)]
    wrong += [path.name for path in PAGES if pattern.search(path.read_text(encoding="utf-8"))]
    assert not wrong


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_no_page_claims_that_drafts_leave_every_answer_the_same(page: Path) -> None:
    """They do only if wide steps have the same bits (docs/determinism.md), and K-quants and F16 do not."""
    text = page.read_text(encoding="utf-8")
    assert not re.findall(r"changes the speed only|never the answer|never silently left out|work unchanged", text)
