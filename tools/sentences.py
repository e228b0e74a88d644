"""Words and long sentences of the documentation: `python -m tools.sentences` prints a line for each page.

A sentence is prose between two ends. Code in blocks, tables and comments are left out, code in a line counts as one
word, and a list item or a heading ends a sentence.
"""

import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
MAX_WORDS: Final = 25
"""The rule for a sentence."""

LONG_WORDS: Final = 30
"""A sentence with more words is counted as long."""

_LEFT_OUT: Final = re.compile(
    r"^ *```.*?^ *```$|<!--.*?-->|^ *\|[^\n]*$|^#[^\n]*$|^!\[[^\n]*$", re.MULTILINE | re.DOTALL
)
_CODE: Final = re.compile(r"`[^`\n]+`")
_LINK: Final = re.compile(r"!?\[((?:[^\[\]]|\[[^\]]*\])*)\]\([^)]*\)")
_END: Final = re.compile(r"(?<=[.!?])[*_)\"']*\s+(?=[\"'(*]*[A-ZÄÖÜ0-9¹²³])|\n\s*\n|\n(?= *(?:[-*] |\d+\. ))")
_WORD: Final = re.compile(r"[^\s]*\w[^\s]*")


@dataclass(frozen=True, slots=True)
class Counted:
    """A page in numbers."""

    words: int
    """All words of the page, with tables and code."""
    sentences: tuple[str, ...]

    @property
    def long(self) -> tuple[str, ...]:
        """The sentences of more than LONG_WORDS words."""
        return tuple(one for one in self.sentences if n_words(one) > LONG_WORDS)

    @property
    def chained(self) -> tuple[str, ...]:
        """The sentences with two semicolons or more."""
        return tuple(one for one in self.sentences if one.count(";") > 1)


def n_words(text: str) -> int:
    return len(_WORD.findall(text))


def counted(text: str) -> Counted:
    """The words and the sentences of a page. Pure."""
    prose = _LINK.sub(r"\1", _CODE.sub("Code", _LEFT_OUT.sub("\n", text)))
    sentences = (" ".join(one.split()) for one in _END.split(prose))
    return Counted(len(text.split()), tuple(one for one in sentences if n_words(one) > 1))


def pages() -> list[Path]:
    return [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]


def main() -> None:
    n_long = n_all = n_total = 0
    print("words  sentences  over 30  share  chains  page")
    for page in pages():
        found = counted(page.read_text(encoding="utf-8"))
        n_long, n_all, n_total = n_long + len(found.long), n_all + len(found.sentences), n_total + found.words
        share = len(found.long) / max(1, len(found.sentences))
        line = f"{found.words:5}  {len(found.sentences):9}  {len(found.long):7}  {share:5.1%}  {len(found.chained):6}"
        print(f"{line}  {page.relative_to(ROOT)}")
        if "--show" in sys.argv[1:]:
            for one in found.long:
                print(f"       {n_words(one)}: {one}")
    print(f"{n_total:5}  {n_all:9}  {n_long:7}  {n_long / n_all:5.1%}          all")


if __name__ == "__main__":
    main()
