"""The places in which commands look for models: two options that several have, and a model that must be there."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import rich_click as click

from worker.config.option import HomePath
from worker.config.settings import Settings
from worker.errors import ModelNotFound
from worker.models.downloads.catalog import load_catalog, locate

_Command = TypeVar("_Command", bound=Callable[..., Any])


def where(command: _Command) -> _Command:
    """Give a command `--models-dir` and `--catalog`."""
    models_dir = click.option(
        "--models-dir",
        type=HomePath(path_type=Path, file_okay=False),
        default=lambda: Settings().models_dir,
        envvar="LLORCH_MODELS_DIR",
        show_default="user cache directory",
        metavar="DIR",
        help="Look for downloaded models in DIR, and store them there.",
    )
    catalog = click.option(
        "--catalog",
        type=HomePath(path_type=Path),
        envvar="LLORCH_CATALOG",
        show_default="built in",
        metavar="FILE",
        help="Use this model catalogue (a models.toml) instead of the built-in one.",
    )
    return models_dir(catalog(command))


def present(reference: str | None, models_dir: Path, catalog_file: Path | None) -> Path:
    """The file of a model; without a reference, of the catalogue's default. Never downloads. Raises: ModelNotFound."""
    catalog = load_catalog(catalog_file)
    name = reference or catalog.default.name
    located = locate(name, models_dir, catalog)
    if not located.is_present:
        raise not_here(name)
    return located.path


def not_here(reference: str) -> ModelNotFound:
    """The error of commands that never download."""
    return ModelNotFound(f"{reference} is not here: get it with `llorch-worker models pull {reference}`")
