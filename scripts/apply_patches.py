"""Applies patches to an unpacked source distribution: each hunk at its own line and nowhere else.

    python apply_patches.py VERSION FOLDER PATCH…

A patch is what `diff -U0` or `git diff -U0` prints, with paths under a/ and b/, below a line that says for which
version of llama-cpp-python it was made. Because a patch has no lines of context, nothing else shows that it lands at
the right place, so a patch for another version is refused. The program `patch` could do this, but not every machine
that compiles llama.cpp has it.
"""

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+\d+(?:,\d+)? @@")


class PatchError(Exception):
    """A patch that cannot be applied; the text says which and why."""


@dataclass
class Hunk:
    """One place of a file."""

    first: int
    """The line before which it begins, counted from 0."""
    removed: list[str]
    added: list[str]


def apply(patch: Path, version: str, folder: Path) -> None:
    """Change the files that a patch names. Raises: PatchError, before it has changed any."""
    text = _read(patch)
    if f"llama-cpp-python {version}" not in re.split(r"^--- ", text, flags=re.MULTILINE)[0]:
        raise PatchError(f"{patch}: not for this version: its head must say `llama-cpp-python {version}`")
    changed = {path: _changed(patch, path, hunks) for path, hunks in _files(patch, text, folder)}
    if not changed:
        raise PatchError(f"{patch}: no change in it; remove it")
    for path, lines in changed.items():
        path.write_bytes("".join(lines).encode())


def _files(patch: Path, text: str, folder: Path) -> Iterator[tuple[Path, list[Hunk]]]:
    parts = re.split(r"^--- \S+.*\n\+\+\+ b/(\S+).*\n", text, flags=re.MULTILINE)
    for name, body in zip(parts[1::2], parts[2::2], strict=True):
        path = folder / name
        if not path.is_file():
            raise PatchError(f"{patch}: there is no file {name}")
        yield path, list(_hunks(patch, body))


def _hunks(patch: Path, body: str) -> Iterator[Hunk]:
    hunk = None
    for line in _lines(body):
        if match := HUNK.match(line):
            if hunk is not None:
                yield hunk
            n_removed = int(match[2] or 1)
            # With nothing removed the number is that of the line before.
            hunk = Hunk(int(match[1]) - (1 if n_removed else 0), [], [])
        elif hunk is not None and line.startswith("-"):
            hunk.removed.append(line[1:])
        elif hunk is not None and line.startswith("+"):
            hunk.added.append(line[1:])
        elif line.startswith(("diff ", "index ")):
            continue
        else:
            raise PatchError(f"{patch}: a line that is neither added nor removed ({line.rstrip()!r}): use diff -U0")
    if hunk is not None:
        yield hunk


def _changed(patch: Path, path: Path, hunks: list[Hunk]) -> list[str]:
    lines = _lines(_read(path))
    for hunk in reversed(hunks):
        last = hunk.first + len(hunk.removed)
        if last > len(lines) or lines[hunk.first : last] != hunk.removed:
            raise PatchError(f"{patch}: does not apply to {path.name}, line {hunk.first + 1}")
        lines[hunk.first : last] = hunk.added
    return lines


def _read(path: Path) -> str:
    """The text with its line ends as they are."""
    return path.read_bytes().decode()


def _lines(text: str) -> list[str]:
    """Lines as diff counts them; str.splitlines would also end them at a form feed."""
    return re.findall(r"[^\n]*\n|[^\n]+", text)


if __name__ == "__main__":
    try:
        for name in sys.argv[3:]:
            apply(Path(name), sys.argv[1], Path(sys.argv[2]))
    except PatchError as error:
        sys.exit(f"apply_patches: {error}")
