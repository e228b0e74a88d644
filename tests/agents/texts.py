"""Texts that look like what agents tell a model: rules, lists, code spans, sections in tags; all of words of our own.

They say nothing. What matters is how long they are, and that their characters make about as many tokens as those of
real instructions: a little more than four a token.
"""

import random
from collections.abc import Callable, Iterator

_VERBS = [
    *("read", "write", "open", "check", "change", "keep", "run", "list", "name", "count", "compare", "move"),
    *("explain", "follow", "skip", "repeat", "finish"),
]
_THINGS = [
    *("the file", "the folder", "each line", "the longest function", "a failing test", "the last answer"),
    *("the configuration", "an unused variable", "the import", "the command's output", "a comment"),
    *("the user's question", "the smallest change", "the documentation", "a branch", "the returned value"),
    *("an error message", "the working directory", "the next step"),
]
_WHEN = [
    *("before you answer", "after every change", "when the task is done", "unless the user says otherwise"),
    *("if there is one", "in the same order", "without a summary", "as long as the tests pass"),
    *("only where it is needed", "one at a time", "and say why", "and nothing else", "with the fewest words"),
    "even when it seems obvious",
]
_NAMES = [
    *("src/main.py", "tests/", "README.md", "build.log", "--verbose", "git_status", "MAX_ITEMS", "index.ts"),
    *(".env", "retry()", "utils/paths.go"),
]
_TAGS = ["rules", "context", "note", "example", "environment", "reminder", "task", "limits"]

Lines = Callable[[random.Random], Iterator[str]]


def sentence(rng: random.Random) -> str:
    """One that tells somebody to do something."""
    words = f"{rng.choice(_VERBS)} {rng.choice(_THINGS)} {rng.choice(_WHEN)}"
    return f"{words[0].upper()}{words[1:]}."


def plain(rng: random.Random) -> Iterator[str]:
    """A paragraph and a list."""
    yield " ".join(sentence(rng) for _ in range(rng.randint(2, 4)))
    yield ""
    for _ in range(rng.randint(3, 6)):
        yield f"- {rng.choice(_NAMES)}: {sentence(rng)}"
    yield ""


def markdown(rng: random.Random) -> Iterator[str]:
    """A section under a heading, now and then with a block of code."""
    yield f"{'#' * rng.randint(1, 3)} {sentence(rng)[:-1]}"
    yield ""
    yield f"{sentence(rng)} **{sentence(rng)}** {sentence(rng)}"
    for _ in range(rng.randint(2, 5)):
        yield f"- {sentence(rng)[:-1]} → `{rng.choice(_NAMES)}`"
    if rng.random() < 0.2:
        yield from ("```", f"{rng.choice(_VERBS)} {rng.choice(_NAMES)} {rng.choice(_NAMES)}", "```")
    yield ""


def tagged(rng: random.Random) -> Iterator[str]:
    """A section in tags."""
    tag = rng.choice(_TAGS)
    yield f"<{tag}>"
    for _ in range(rng.randint(1, 4)):
        yield f"{sentence(rng)} {sentence(rng)}"
    yield f"  <{tag}-{rng.randint(1, 99)}>{rng.choice(_NAMES)}</{tag}>"
    yield f"</{tag}>"


KINDS: dict[str, Lines] = {each.__name__: each for each in (plain, markdown, tagged)}


def text(n_characters: int, lines: Lines, *more: Lines) -> str:
    """A text of this many characters: the kinds of lines in turn, and the same ones in every run."""
    rng = random.Random(n_characters)
    kinds = (lines, *more)
    made, turn = "", 0
    while len(made) < n_characters:
        made += "".join(f"{line}\n" for line in kinds[turn % len(kinds)](rng))
        turn += 1
    return made[:n_characters]
