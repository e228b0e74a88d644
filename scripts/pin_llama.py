#!/usr/bin/env python3
"""Write one release of llama-cpp-python into every place that pins it, and print it.

Usage: pin_llama.py VERSION    or `newest`, for which pip asks the package index
"""

import re
import subprocess
import sys
from pathlib import Path

PACKAGE = "llama-cpp-python"
ROOT = Path(__file__).resolve().parents[1]

PINS = {
    "pyproject.toml": rf'"{PACKAGE}==([\w.]+)"',
    "constraints.txt": rf"^{PACKAGE}==([\w.]+)$",
    "worker/models/upstream/numbers.py": r'^PINNED_VERSION = "([\w.]+)"$',
}
"""Each file that has the version, and the pattern of its line; the group is the version."""


def pinned(root: Path) -> dict[str, str]:
    """The version in each place."""
    return {name: _found(root / name, pattern)[1] for name, pattern in PINS.items()}


def pin(root: Path, version: str) -> None:
    """Write the version into all places, and change nothing else there."""
    for name, pattern in PINS.items():
        found = _found(root / name, pattern)
        text = found.string
        (root / name).write_text(text[: found.start(1)] + version + text[found.end(1) :])


def newest() -> str:
    """The newest release that pip finds for this Python."""
    command = [sys.executable, "-m", "pip", "index", "versions", PACKAGE, "--disable-pip-version-check"]
    answer = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    match = re.match(rf"{PACKAGE} \(([\w.]+)\)", answer)
    if match is None:
        sys.exit(f"pip index versions {PACKAGE} gives no version: {answer!r}")
    return match[1]


def _found(path: Path, pattern: str) -> re.Match[str]:
    found = list(re.finditer(pattern, path.read_text(), re.MULTILINE))
    if len(found) != 1:
        sys.exit(f"{path}: {len(found)} lines pin {PACKAGE}, not one")
    return found[0]


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit("usage: pin_llama.py VERSION|newest")
    version = newest() if sys.argv[1] == "newest" else sys.argv[1]
    pin(ROOT, version)
    sys.stdout.write(f"{version}\n")


if __name__ == "__main__":
    main()
