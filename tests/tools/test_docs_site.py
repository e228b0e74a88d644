"""The documentation site: its navigation has every page, and the links of pages outside of docs/ lead there, too."""

import re
from pathlib import Path

import pytest

from tools.docs_site import OUTSIDE, for_site

ROOT = Path(__file__).parents[2]
CONFIG = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
DOCS = ROOT / "docs"


def test_the_navigation_has_every_page_once_and_no_other() -> None:
    named = re.findall(r": ([\w./-]+\.md)$", CONFIG, re.MULTILINE)
    assert sorted(named) == sorted([*OUTSIDE, *(str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md"))])
    # The site asks no other server.
    assert "font: false" in CONFIG
    assert re.findall(r"https?://", CONFIG) == []


@pytest.mark.parametrize(
    ("page", "link", "moved"),
    [
        ("index.md", "[a](docs/operating.md#logs)", "[a](operating.md#logs)"),
        ("index.md", "![a](docs/pictures/board.png)", "![a](pictures/board.png)"),
        ("index.md", "[a](CONTRIBUTING.md)", "[a](contributing.md)"),
        ("operating.md", "[a](protocol.md)", "[a](protocol.md)"),
        ("operating.md", "[a](../README.md)", "[a](index.md)"),
        ("tutorial/agent.md", "[a](../clients.md#agents)", "[a](../clients.md#agents)"),
        ("security.md", "[a](../SECURITY.md)", "[a](security-policy.md)"),
        ("page.md", "[`markdown.js`](../worker/server/web/page/chat/markdown.js)", "`markdown.js`"),
        ("page.md", "[a](https://example.com/x)", "[a](https://example.com/x)"),
        ("page.md", "[a](#token)", "[a](#token)"),
        ("page.md", "```sh\n[a](../README.md)\n```", "```sh\n[a](../README.md)\n```"),
    ],
)
def test_a_link_works_on_the_site(page: str, link: str, moved: str) -> None:
    assert for_site(link, page) == moved


def test_a_source_file_is_linked_if_the_repository_has_an_address() -> None:
    link = for_site("[a](../worker/cli.py)", "page.md", "https://example.com/repo/")
    assert link == "[a](https://example.com/repo/blob/HEAD/worker/cli.py)"


BLOCK = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
STARTS = re.compile(r"^(?P<text>[^\n#|>-][^\n]*)\n(?:\| |- |\* |1\. )", re.MULTILINE)
"""A line of text with a list or a table right behind it, which GitHub shows as such and MkDocs as more text."""


@pytest.mark.parametrize(
    "page", [*OUTSIDE.values(), *(f"docs/{page.relative_to(DOCS)}" for page in DOCS.rglob("*.md"))]
)
def test_lists_and_tables_begin_behind_an_empty_line(page: str) -> None:
    text = BLOCK.sub("", (ROOT / page).read_text(encoding="utf-8"))
    assert STARTS.search("Some text:\n- one\n")
    found = [start["text"] for start in STARTS.finditer(text) if not re.match(r" |[-*] |\d+\. |<!--", start["text"])]
    assert found == []
