"""Words and sentences of the documentation.

A sentence is prose between two ends. Code in blocks, tables and comments are left out, code in a line counts as one
word, and a list item or a heading ends a sentence.
"""

import re
from dataclasses import dataclass
from typing import Final

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
