"""An installation of this tree would declare these: its name and its entry points, as pyproject.toml has them.

The environment may have been installed from another tree, or before an entry point was added.
"""

import os
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from worker import __version__

PYPROJECT = Path(__file__).parents[1] / "pyproject.toml"


def entry_points_of_the_tree() -> dict[str, dict[str, str]]:
    """group → name → module:attribute."""
    declared: dict[str, dict[str, str]] = tomllib.loads(PYPROJECT.read_text())["project"]["entry-points"]
    return declared


@contextmanager
def installed(folder: Path, entry_points: Mapping[str, Mapping[str, str]]) -> Iterator[None]:
    """Meanwhile llorch-worker is installed with these entry points, here and in processes that are started."""
    metadata = folder / "llorch_worker-0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.4\nName: llorch-worker\nVersion: {__version__}\n")
    lines = [
        line
        for group, places in entry_points.items()
        for line in (f"[{group}]", *(f"{name} = {place}" for name, place in places.items()))
    ]
    (metadata / "entry_points.txt").write_text("\n".join([*lines, ""]))
    before = os.environ.get("PYTHONPATH")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        patch.setenv("PYTHONPATH", os.pathsep.join([str(folder), *([before] if before else [])]))
        yield
