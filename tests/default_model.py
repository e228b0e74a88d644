"""The place in which `make model` puts the default model."""

from pathlib import Path

from tests.config.given import settings_of
from worker.models.downloads.catalog import load_catalog


def default_path() -> Path:
    models_dir = settings_of(["--model", "any"]).models_dir
    return models_dir / load_catalog(None).default.file


def default_file() -> Path:
    """Raises: AssertionError when it is not there."""
    path = default_path()
    assert path.is_file(), f"{path} is missing: run `make model`"
    return path
