"""The pages for users of other servers: each of our flags on them exists, and llama-server's that we know are there."""

import re
from pathlib import Path

import pytest

from worker.cli import setting_options
from worker.config.spellings import llama_server_flags

FLAGS = llama_server_flags()

FOLDER = Path(__file__).parents[1] / "docs" / "migrating"
PAGES = sorted(FOLDER.glob("*.md"))
OURS = {flag for option in setting_options() for flag in option.opts} | {"--chat", "--help"}
FLAG = re.compile(r"(?<![\w-])--?[a-z][a-z-]*\b")


def cells(page: Path) -> list[list[str]]:
    """The rows of the page's tables, without their heads."""
    rows = (line for line in page.read_text(encoding="utf-8").splitlines() if line.startswith("| "))
    return [[cell.strip() for cell in row.strip("|").split(" | ")] for row in rows]


def flags_in(text: str) -> set[str]:
    """The flags that are set as code in a text."""
    return {flag for code in re.findall(r"`([^`]+)`", text) for flag in FLAG.findall(code.split("|")[0])}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_each_flag_of_ours_exists(page: Path) -> None:
    named = {flag for row in cells(page) for flag in flags_in(row[1])}
    assert len(named) > 5
    assert named - OURS == set()


def test_each_flag_of_llama_servers_that_the_worker_knows_is_on_the_page() -> None:
    page = (FOLDER / "from-llama-server.md").read_text(encoding="utf-8")
    named = {flag for code in re.findall(r"`([^`\n]+)`", page) for flag in re.findall(r"(?<![\w-])--?[\w-]+", code)}
    known = {flag for theirs in (*FLAGS.ours.values(), *FLAGS.advice.values()) for flag in theirs}
    assert sorted(known - named) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_says_what_the_other_server_does_better(page: Path) -> None:
    assert re.search(r"^## What stays better in", page.read_text(encoding="utf-8"), re.MULTILINE)
