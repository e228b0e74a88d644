"""`python -m tools.reference`: write the generated pages of docs/reference, and the OpenAPI document."""

import sys
from pathlib import Path
from typing import Final

import rich_click as click

from tools import CHECKOUT
from tools.command_line import exit_code
from tools.reference import openapi
from tools.reference.errors import errors_page
from tools.reference.operating import log_events_page, metrics_page
from tools.reference.options import commands_page, configuration_page

FOLDER: Final = CHECKOUT / "docs" / "reference"
PAGES: Final = {
    "configuration.md": configuration_page,
    "commands.md": commands_page,
    "routes.md": openapi.routes_page,
    "errors.md": errors_page,
    "metrics.md": metrics_page,
    "log-events.md": log_events_page,
}


def pages() -> dict[Path, str]:
    """The text of each file."""
    return {openapi.DOCUMENT: openapi.text(), **{FOLDER / name: make() for name, make in PAGES.items()}}


@click.group()
def reference() -> None:
    """Write the reference pages and the OpenAPI document from the worker's own objects."""


@reference.command()
def write() -> None:
    """Write every file that is not what the code says now."""
    for path, text in pages().items():
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            print(path)


if __name__ == "__main__":
    sys.exit(exit_code(reference, "reference", sys.argv[1:]))
