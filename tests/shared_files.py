"""Files that take seconds to make, made once for all processes of a test run."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock


def made_once(path: Path, make: Callable[[Path], object]) -> Path:
    """`path`, alone in its folder, which the first process of the test run that needs it has made."""
    path.parent.mkdir(exist_ok=True)
    with FileLock(f"{path.parent}.lock"):
        if not path.exists():
            make(path)
    return path


def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same for all processes of a test run."""
    mine = tmp_path_factory.getbasetemp()
    return mine.parent if "PYTEST_XDIST_WORKER" in os.environ else mine
