"""The architectures that llama.cpp's source names, and what a program says of each, a line of JSON for each.

A program gets what is asked and names; it ends where the library ends it, and is begun again with the next name.
"""

import json
import re
import subprocess
import sys
from collections.abc import Iterable
from functools import cache
from typing import Any

from tests.llama_source import source


@cache
def architectures() -> dict[str, str]:
    """The names of all architectures by their identifiers in the source, those that the library only knows included."""
    return dict(re.findall(r'\{ *(LLM_ARCH_\w+), *"([^"(]+)" *\}', source("llama-arch.cpp")))


def reported(program: str, asked: str, names: Iterable[str]) -> dict[str, Any]:
    """Return what the program says of each name, None where it says nothing: also of those that end the process."""
    found: dict[str, Any] = {}
    left = list(names)
    while left:
        command = [sys.executable, "-m", program, asked, *left]
        done = subprocess.run(command, capture_output=True, text=True, timeout=800, check=False)
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        found |= {line["name"]: line["reported"] for line in lines}
        if len(lines) < len(left):
            assert done.returncode < 0, done.stderr
            found[left[len(lines)]] = None
        left = left[len(lines) + 1 :]
    return found
