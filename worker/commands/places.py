"""Where the commands look for models: two options that several have, and what is said of a model that is not there.

Refuses to know what a command does with a model.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import rich_click as click

from worker.errors import ModelNotFound
from worker.settings import Settings

_Command = TypeVar("_Command", bound=Callable[..., Any])


def where(command: _Command) -> _Command:
    """`--models-dir` and `--catalog`."""
    models_dir = click.option(
        "--models-dir",
        type=click.Path(path_type=Path, file_okay=False),
        default=lambda: Settings().models_dir,
        envvar="LLORCH_MODELS_DIR",
        show_default="user cache directory",
        metavar="DIR",
        help="Where named models are stored.",
    )
    catalog = click.option(
        "--catalog",
        type=click.Path(path_type=Path),
        envvar="LLORCH_CATALOG",
        show_default="built in",
        metavar="FILE",
        help="Another models.toml.",
    )
    return models_dir(catalog(command))


def not_here(reference: str) -> ModelNotFound:
    """For commands that never download."""
    return ModelNotFound(f"{reference} is not here: get it with `llorch-worker models pull {reference}`")
