"""What all tests share: the real default model, where `make test` put it."""

import os
from pathlib import Path

import pytest

from worker.catalog import load_catalog
from worker.cli import parse


@pytest.fixture(scope="session")
def default_model() -> Path:
    """The default model's file, in the default models directory."""
    models_dir = parse(["--model", "any"], os.environ).models_dir
    path = models_dir / load_catalog(None).default.file
    assert path.is_file(), f"{path} is missing: run `make model`"
    return path
