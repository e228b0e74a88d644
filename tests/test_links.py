"""Every link of a page leads to a file of the repository and to a heading in it; so does every page that code names."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / ".github").rglob("*.md"),
        ROOT / "patches" / "README.md",
    ]
)
ROOMS = ("worker", "parity", "client", "tools", "deploy", "scripts", "tests")
CODE = [
    *(
        file
        for room in ROOMS
        for file in (ROOT / room).rglob("*")
        if file.suffix in {".py", ".sh", ".toml", ".yaml", ".yml"}
    ),
    *(ROOT / name for name in ("Makefile", "pyproject.toml", "models.toml")),
    *ROOT.glob("Dockerfile.*"),
]

BLOCK = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)\)|<(?:img|a)\b[^>]*\b(?:src|href)=\"([^\"]+)\"")
HEADING = re.compile(r"^#{1,6} +(.+?) *$", re.MULTILINE)
NAMED = re.compile(r"(?<!/)\bdocs/[\w/-]+\.md(?:#[\w-]+)?(?:(?:,| and) #[\w-]+)*(?: \d+\b)?")
"""A page as code names it: `docs/protocol.md`, and with anchors, `docs/protocol.md#http and #life-of-a-job`. The number
of a section behind a space is found, too, because it is wrong: sections are cited by their anchors."""


def text_of(page: Path) -> str:
    """The page without its blocks of code."""
    return BLOCK.sub("", page.read_text(encoding="utf-8"))


def slug(heading: str) -> str:
    """The anchor that GitHub gives a heading."""
    kept = re.sub(r"\]\([^)]*\)", "", heading)
    return re.sub(r"[^\w\- ]", "", kept).lower().replace(" ", "-")


def anchors(page: Path) -> set[str]:
    found: dict[str, int] = {}
    for heading in HEADING.findall(text_of(page)):
        one = slug(heading)
        found[one] = found.get(one, -1) + 1
    return {one if not number else f"{one}-{number}" for one, last in found.items() for number in range(last + 1)}


def broken(page: Path, target: str) -> bool:
    if re.match(r"[a-z]+:", target):
        return False
    path, _, anchor = target.partition("#")
    there = (page.parent / path).resolve() if path else page
    return not there.exists() or bool(anchor and anchor not in anchors(there))


def links(page: Path) -> Iterator[str]:
    for one, other in LINK.findall(text_of(page)):
        yield one or other


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_of_a_page_leads_somewhere(page: Path) -> None:
    assert [target for target in links(page) if broken(page, target)] == []


def is_there(named: str) -> bool:
    """True if the page that code names exists and has all the anchors, and no section is cited by its number."""
    path, *cited = re.split(r",? (?:and )?(?=#)|(?<=\.md)(?=#)", named)
    page = ROOT / path
    return page.is_file() and {anchor.removeprefix("#") for anchor in cited} <= anchors(page)


def test_every_page_that_code_names_is_there() -> None:
    wrong = [
        f"{file.relative_to(ROOT)}: {named}"
        for file in CODE
        for named in NAMED.findall(file.read_text(encoding="utf-8"))
        if not is_there(named)
    ]
    assert wrong == []


@pytest.mark.parametrize("target", ["gone.md", "#gone", "openai.md#gone"])
def test_a_link_that_leads_nowhere_is_found(target: str) -> None:
    """Positive control: without it a pattern that matches nothing would pass for ever."""
    assert broken(ROOT / "docs" / "protocol.md", target)
    assert list(LINK.finditer(f"see [it]({target})"))


@pytest.mark.parametrize("tail", ["protocol.md", "protocol.md#http", "protocol.md#http and #life-of-a-job"])
def test_a_citation_of_anchors_is_read(tail: str) -> None:
    named = f"docs/{tail}"
    assert NAMED.findall(f"see {named} or {named}.") == [named, named]
    assert is_there(named)


@pytest.mark.parametrize("tail", ["gone.md", "protocol.md#gone", "protocol.md#http and #gone", "protocol.md 3"])
def test_a_citation_that_leads_nowhere_is_found(tail: str) -> None:
    named = f"docs/{tail}"
    assert NAMED.findall(f"see {named}") == [named]
    assert not is_there(named)


def test_a_heading_has_githubs_anchor() -> None:
    assert slug("4 `POST /execute`") == "4-post-execute"
    assert slug("llama.cpp and the machine") == "llamacpp-and-the-machine"
