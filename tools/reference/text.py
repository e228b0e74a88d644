"""The parts that the generated pages share: their texts, a note about their origin, code in tables, links. Pure."""

import re
import tomllib
from pathlib import Path
from typing import Any, Final

TEXTS: Final[dict[str, Any]] = tomllib.loads(Path(__file__).with_name("texts.toml").read_text(encoding="utf-8"))
PAGE_TEXTS: Final[dict[str, str]] = TEXTS["pages"]

GENERATED: Final = "<!-- Generated from the code by `make reference`. Do not edit this page. -->"

_PAGE = re.compile(r"\bdocs/([\w/-]+\.md)")
_FLAG = re.compile(r"(?<![\w`/-])--[a-z][a-z-]*[a-z]")


def page(title: str, introduction: str, *blocks: str) -> str:
    """A whole page, with the introduction of that name; blocks are separated by empty lines."""
    return "\n\n".join([f"# {title}", GENERATED, PAGE_TEXTS[introduction], *blocks]) + "\n"


def code(text: str) -> str:
    return f"`{text}`" if text else ""


def codes(texts: list[str] | tuple[str, ...]) -> str:
    return ", ".join(map(code, texts))


def sentence(text: str) -> str:
    """The text on one line, with links, flags as code, and no mark that a table or Markdown would read."""
    line = " ".join(text.split())
    coded = _FLAG.sub(r"`\g<0>`", line.replace("<", "&lt;").replace("*", "\\*"))
    return _PAGE.sub(r"[\1](../\1)", coded)
