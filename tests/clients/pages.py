"""The code of our pages, as a reader pastes it."""

from pathlib import Path

_ROOT = Path(__file__).parents[2]


def blocks(page: str, heading: str, language: str) -> list[str]:
    """The blocks of code of that language under the heading, down to the next of its level or above.

    `page` is a path in the repository.
    """
    found: list[str] = []
    block: list[str] | None = None
    level = 0
    is_wanted = False
    for line in (_ROOT / page).read_text(encoding="utf-8").splitlines(keepends=True):
        if line.startswith("```") and block is None:
            block, is_wanted = [], level > 0 and line[3:].strip() == language
        elif line.startswith("```") and block is not None:
            found += ["".join(block)] * is_wanted
            block = None
        elif block is not None:
            block.append(line)
        elif line.startswith("#"):
            n_marks = len(line) - len(line.lstrip("#"))
            if line[n_marks:].strip() == heading:
                level = n_marks
            elif n_marks <= level:
                level = 0
    return found
