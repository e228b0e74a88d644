"""The generated files by their paths: the pages of docs/reference, and the OpenAPI document."""

from collections.abc import Callable
from pathlib import Path
from typing import Final

from tools import CHECKOUT
from tools.reference import openapi
from tools.reference.commands import commands_page
from tools.reference.configuration import configuration_page
from tools.reference.errors import errors_page
from tools.reference.log_events import log_events_page
from tools.reference.metrics import metrics_page
from tools.reference.routes import routes_page

FOLDER: Final = CHECKOUT / "docs" / "reference"

PAGES: Final[dict[str, Callable[[], str]]] = {
    "configuration.md": configuration_page,
    "commands.md": commands_page,
    "routes.md": routes_page,
    "errors.md": errors_page,
    "metrics.md": metrics_page,
    "log-events.md": log_events_page,
}


def pages() -> dict[Path, str]:
    """The text of each file."""
    return {openapi.DOCUMENT: openapi.text(), **{FOLDER / name: make() for name, make in PAGES.items()}}
