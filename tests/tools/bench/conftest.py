"""The tiny model is that of tests/llama."""

import os
from pathlib import Path

import pytest

from tests.llama.conftest import tiny

__all__ = ["tiny"]


@pytest.fixture
def no_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder of models. A look-up finds nothing there, and no setting of this machine is used."""
    for name in [name for name in os.environ if name.startswith("LLORCH_")]:
        monkeypatch.delenv(name)
    folder = tmp_path / "models"
    monkeypatch.setenv("LLORCH_MODELS_DIR", str(folder))
    return folder
