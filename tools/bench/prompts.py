"""The prompts of a load: random common words or real text, no two with the same beginning; and texts that repeat
themselves.

All chance comes from the seed.
"""

import random
import re
import tomllib
from functools import cache
from importlib.resources import files
from itertools import cycle
from pathlib import Path
from typing import Literal

from tools import CHECKOUT

Text = Literal["random words", "code, prose, chats"]
WORDS: Text = "random words"
REAL: Text = "code, prose, chats"

_WORDS_TO_A_COMMA = 3
"""A list of plain words has fewer tokens than a text: with a comma after every third, 64 words are 85 tokens of the
default model, as many as in sentences."""


@cache
def common_words() -> tuple[str, ...]:
    """About 1,270 English words, each a single token in the vocabularies of common models, with few exceptions."""
    return tuple((files(__package__) / "words.txt").read_text(encoding="utf-8").split())


_WORD = re.compile(r"\s*(?:\w+|[^\w\s])")
"""A word or a sign with the space before it: in code as in prose, few more are tokens than these."""
_MIN_WORDS = 20
"""The fewest words of a paragraph: shorter lines of a document are headings, code and remarks."""
_PACKAGES = ("click", "litestar", "uvicorn")
"""Dependencies of the worker, under BSD-3-Clause, MIT and BSD-3-Clause."""


@cache
def _lines(kind: str) -> list[str]:
    """The lines of real text, one file behind the other: code of this checkout and of _PACKAGES, or paragraphs of the
    documents, alone or as questions and answers."""
    if kind == "code":
        folders = [CHECKOUT / "worker", *(Path(str(files(package))) for package in _PACKAGES)]
        paths = [path for folder in folders for path in sorted(folder.rglob("*.py"))]
        return [line for path in paths for line in path.read_text(encoding="utf-8").splitlines(keepends=True)]
    paths = [CHECKOUT / "README.md", *sorted((CHECKOUT / "docs").glob("*.md"))]
    lines = [line.removeprefix("- ") for path in paths for line in path.read_text(encoding="utf-8").splitlines()]
    said = [line for line in lines if line[:1].isalpha() and len(line.split()) >= _MIN_WORDS]
    if kind == "prose":
        return [f"{line}\n\n" for line in said]
    return [f"User: What about {' '.join(line.split()[:4])}?\n\nAssistant: {line}\n\n" for line in said]


def _excerpt(kind: str, chance: random.Random, n_words: int) -> str:
    """This number of words from the beginning of some line; of a chat the last question has no answer yet."""
    lines = _lines(kind)
    ending = "\n\nUser: Say that in other words.\n\nAssistant:" if kind == "chat" else ""
    n_words = max(1, n_words - len(_WORD.findall(ending)))
    at, text = chance.randrange(len(lines)), ""
    while len(words := _WORD.findall(text)) < n_words:
        text += lines[at % len(lines)]
        at += 1
    return "".join(words[:n_words]).strip() + ending


class Prompts:
    """Prompts in the order they are asked for; the same seed gives the same ones.

    The first word is another one in each of len(common_words()) prompts in a row, and the first two are never the same
    again before all pairs are used: nothing that keeps prompts finds one of them twice by accident.
    """

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)  # noqa: S311 - chance that can be repeated, not a secret
        self._first = self._shuffled()
        self._second = self._shuffled()
        self._n_given = 0
        self._kinds = cycle(("code", "prose", "chat"))

    def of(self, n_words: int, text: Text = WORDS) -> str:
        """`n_words` words, at least 2, no space at the beginning. The kinds of real text come in turn."""
        assert n_words >= 2, n_words
        if text == WORDS:
            return in_sentences([*self._serial(), *self.words(n_words - 2)])
        return f"{' '.join(self._serial())}\n\n{_excerpt(next(self._kinds), self.chance(), n_words - 2)}"

    def words(self, n_words: int) -> list[str]:
        """Words by chance alone: they follow a start that differs already."""
        return self._random.choices(common_words(), k=n_words)

    def chance(self) -> random.Random:
        """A generator of its own, for what else a scenario draws: lengths, times of arrival, seeds."""
        return random.Random(self._random.getrandbits(64))  # noqa: S311 - as above

    def _serial(self) -> tuple[str, str]:
        later, earlier = divmod(self._n_given, len(self._first))
        self._n_given += 1
        return self._first[earlier], self._second[(earlier + later) % len(self._second)]

    def _shuffled(self) -> list[str]:
        return self._random.sample(common_words(), k=len(common_words()))


def in_sentences(words: list[str]) -> str:
    """The words, a comma after every third."""
    return " ".join(f"{word}," if place % _WORDS_TO_A_COMMA == 0 else word for place, word in enumerate(words, start=1))


_TEXTS: dict[str, str] = tomllib.loads((files(__package__) / "prompts.toml").read_text(encoding="utf-8"))
_EDIT_AFTER = "self.owner = owner\n"
_ADDED_LINE = "        self.currency = None"

_ACTION = "### Action\n"


# A small model continues a repetition of its own accord, so that what follows is in the prompt already.


def growing(prompts: Prompts, common: str, n_turns: int, n_words: int) -> list[str]:
    """A conversation as it is sent again and again: each prompt is the one before with `n_words` words more, a question
    and its scripted answer; both sides get the same prompts."""
    said = f"{common} {' '.join(prompts.words(2))}"
    asked = []
    for _ in range(n_turns):
        said += f"\n\n{in_sentences(prompts.words(n_words))}."
        asked.append(said)
    return asked


def code_edit(prompts: Prompts) -> str:
    """The file twice, and the beginning of a third with a line more: the rest of it follows unchanged."""
    code = _TEXTS["code"]
    beginning = code[: code.index(_EDIT_AFTER) + len(_EDIT_AFTER)]
    return f"# {prompts.of(4)}\n\n{code}\n\n{code}\n\n{beginning}{_ADDED_LINE}"


def agent_loop(prompts: Prompts, n_turns: int) -> list[str]:
    """A growing conversation as it is sent again and again: each prompt ends where the agent is to act, and the next
    one has an action like those before in that place, its result and the next task.

    The prompts contain the agent's scripted actions, not a server's answers: both sides get the same prompts. One turn
    comes before the first prompt, as an example.
    """
    history = f"# {prompts.of(4)}\n\n{_TEXTS['instructions']}"
    asked: list[str] = []
    for _ in range(n_turns + 1):
        name, first, second = prompts.words(3)
        turn = _TEXTS["turn"].format(name=name, title=name.title(), first=first, second=second)
        asked.append(history + turn[: turn.index(_ACTION) + len(_ACTION)])
        history += turn
    return asked[1:]
