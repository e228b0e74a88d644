"""Real text for prompts: code, prose and chats, cut to the length asked for.

The code is this checkout's own and that of installed packages under permissive licences; the prose and the chats are
the checkout's documents. Reads files when a text is first asked for; all chance is the caller's.
"""

import random
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path

from tools import CHECKOUT

PACKAGES = ("click", "litestar", "uvicorn")
"""Dependencies of the worker, under BSD-3-Clause, MIT and BSD-3-Clause."""

_WORD = re.compile(r"\s*(?:\w+|[^\w\s])")
"""A word or a sign with the space before it: in code as in prose, few more are tokens than these."""
_HEADING = re.compile(r"#+ +(?P<words>.+)")
_MIN_WORDS = 20
"""The fewest words of a paragraph: shorter lines of a document are headings, code and remarks."""
_LINE, _QUESTION = re.compile(r"\n+(?=\S)"), re.compile(r"\n+(?=User: )")
"""An excerpt may begin after these patterns, or at the beginning of a text."""
_LAST_TURN = "\n\nUser: Say that in other words.\n\nAssistant:"

Kind = Callable[[random.Random, int], str]


def code(chance: random.Random, n_words: int) -> str:
    """An excerpt of code that begins at a line of some file."""
    return _sources().excerpt(chance, n_words)


def prose(chance: random.Random, n_words: int) -> str:
    """Paragraphs of some document."""
    return _paragraphs().excerpt(chance, n_words)


def chat(chance: random.Random, n_words: int) -> str:
    """Questions and answers after the sections of some document; the last question has no answer yet."""
    n_last = len(_WORD.findall(_LAST_TURN))
    return _dialogues().excerpt(chance, max(1, n_words - n_last)) + _LAST_TURN


KINDS: tuple[Kind, ...] = (code, prose, chat)


def n_words_of(text: str) -> int:
    """Signs count as words."""
    return len(_WORD.findall(text))


@dataclass(frozen=True, slots=True)
class Corpus:
    """Texts, and where an excerpt may begin: the number of a text and a place in it."""

    texts: Sequence[str]
    beginnings: Sequence[tuple[int, int]]

    @classmethod
    def of(cls, texts: Iterable[str], beginning: re.Pattern[str]) -> "Corpus":
        kept = [text for text in texts if text]
        found = [
            (number, place)
            for number, text in enumerate(kept)
            for place in (0, *(match.end() for match in beginning.finditer(text)))
        ]
        return cls(kept, found)

    def excerpt(self, chance: random.Random, n_words: int) -> str:
        """This number of words from some beginning; if a text is too short, the excerpt continues with the next."""
        number, place = chance.choice(self.beginnings)
        text = self.texts[number][place:]
        while len(words := _WORD.findall(text)) < n_words:
            number = (number + 1) % len(self.texts)
            text += "\n" + self.texts[number]
        return "".join(words[:n_words]).strip()


@cache
def _sources() -> Corpus:
    return Corpus.of((path.read_text(encoding="utf-8") for path in _source_paths()), _LINE)


def _source_paths() -> Iterator[Path]:
    yield from sorted((CHECKOUT / "worker").rglob("*.py"))
    for package in PACKAGES:
        yield from sorted(Path(str(files(package))).rglob("*.py"))


@cache
def _documents() -> tuple[str, ...]:
    paths = [CHECKOUT / "README.md", *sorted((CHECKOUT / "docs").glob("*.md"))]
    return tuple(path.read_text(encoding="utf-8") for path in paths)


@cache
def _paragraphs() -> Corpus:
    return Corpus.of(("\n\n".join(_prose_of(document)) for document in _documents()), _LINE)


@cache
def _dialogues() -> Corpus:
    return Corpus.of(("\n\n".join(_turns(document)) for document in _documents()), _QUESTION)


def _prose_of(document: str) -> Iterator[str]:
    """Its paragraphs and the items of its lists, each of which is one line."""
    for line in document.splitlines():
        text = line.removeprefix("- ")
        if (text[:1].isalpha() or text.startswith("**")) and len(text.split()) >= _MIN_WORDS:
            yield text


def _turns(document: str) -> Iterator[str]:
    """A question for each heading, and for each paragraph after it an answer; questions between the answers."""
    question = ""
    for line in document.splitlines():
        if heading := _HEADING.match(line):
            question = f"What should I know about this: {heading['words']}?"
        for answer in _prose_of(line):
            yield f"User: {question or 'What else?'}\n\nAssistant: {answer}"
            question = ""
