"""Hooks of MkDocs: the pages outside of docs/, and links as they work on the site.

Pages are written for a reader of the repository: a link leads to a file beside the page, which may be outside of docs/.
On the site some of these files are pages, too. A link to any other file of the repository becomes its text, or a link
to `repo_url` if mkdocs.yml has one. Never in the wheel; loaded by MkDocs, which only an environment of `make docs` has.
"""

import posixpath
import re
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[1]

OUTSIDE: Final = {
    "index.md": "README.md",
    "changelog.md": "CHANGELOG.md",
    "contributing.md": "CONTRIBUTING.md",
    "security-policy.md": "SECURITY.md",
    "code-of-conduct.md": "CODE_OF_CONDUCT.md",
}
"""A page of the site → its file in the repository."""

_PAGES: Final = {path: page for page, path in OUTSIDE.items()}
_FENCED: Final = re.compile(r"^( *```.*?^ *```)$", re.MULTILINE | re.DOTALL)
_LINK: Final = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that are outside of docs/."""
    from mkdocs.structure.files import File  # noqa: PLC0415 - only the site's environment has it

    for page, path in OUTSIDE.items():
        files.append(File.generated(config, page, content=(ROOT / path).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:  # noqa: ARG001 - MkDocs names them
    """The page with the site's links. Pages of wide tables and the front page have the window's width."""
    if page.file.src_uri.startswith("reference/"):
        page.meta["hide"] = ["toc"]
    elif page.file.src_uri == "index.md":
        page.meta["hide"] = ["navigation"]
    return for_site(markdown, page.file.src_uri, config.repo_url)


def for_site(markdown: str, page: str, repo_url: str | None = None) -> str:
    """The text of a page of the site, with links as they work there. `page` is its path below docs/. Pure."""
    here = OUTSIDE.get(page, f"docs/{page}")

    def moved(link: re.Match[str]) -> str:
        mark, text, target = link.groups()
        path, hash_, anchor = target.partition("#")
        if re.match(r"[a-z]+:", target) or not path:
            return link[0]
        there = posixpath.normpath(posixpath.join(posixpath.dirname(here), path))
        at = there.removeprefix("docs/") if there.startswith("docs/") else _PAGES.get(there)
        if at is not None and (ROOT / there).is_file():
            return f"{mark}[{text}]({posixpath.relpath(at, posixpath.dirname(page) or '.')}{hash_}{anchor})"
        return f"[{text}]({repo_url.rstrip('/')}/blob/HEAD/{there})" if repo_url else text

    parts = _FENCED.split(markdown)
    return "".join(part if number % 2 else _LINK.sub(moved, part) for number, part in enumerate(parts))
