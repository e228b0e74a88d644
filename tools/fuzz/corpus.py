"""The kept inputs of each target, one file a target, which `make test` tries again.

A file has an input in base64 on each line, in the order of length. This module knows no targets and no fuzzer.
"""

from base64 import b64decode, b64encode
from collections.abc import Iterable
from pathlib import Path

from tools import CHECKOUT

FOLDER = CHECKOUT / "tests" / "tools" / "fuzz" / "corpus"


def kept(name: str, folder: Path = FOLDER) -> list[bytes]:
    """Return the inputs of a target; none if nothing was kept yet."""
    path = folder / f"{name}.txt"
    return [b64decode(line, validate=True) for line in path.read_text().splitlines()] if path.exists() else []


def keep(name: str, inputs: Iterable[bytes], folder: Path = FOLDER) -> None:
    """Keep these inputs, each once, in place of those before."""
    lines = [b64encode(each).decode() for each in sorted(set(inputs), key=lambda each: (len(each), each))]
    (folder / f"{name}.txt").write_text("".join(f"{line}\n" for line in lines))
