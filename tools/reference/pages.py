"""The generated pages by their names in docs/reference."""

from collections.abc import Callable
from pathlib import Path
from typing import Final

from tools.reference.commands import commands_page
from tools.reference.configuration import configuration_page
from tools.reference.errors import errors_page
from tools.reference.log_events import log_events_page
from tools.reference.metrics import metrics_page
from tools.reference.routes import routes_page

FOLDER: Final = Path(__file__).parents[2] / "docs" / "reference"

PAGES: Final[dict[str, Callable[[], str]]] = {
    "configuration.md": configuration_page,
    "commands.md": commands_page,
    "routes.md": routes_page,
    "errors.md": errors_page,
    "metrics.md": metrics_page,
    "log-events.md": log_events_page,
}


def pages() -> dict[str, str]:
    """The text of each page."""
    return {name: make() for name, make in PAGES.items()}
