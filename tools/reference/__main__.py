"""`python -m tools.reference`: write the generated pages of docs/reference, and the OpenAPI document."""

import sys

import rich_click as click

from tools.command_line import exit_code
from tools.reference.pages import pages


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
