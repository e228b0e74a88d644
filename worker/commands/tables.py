"""The output of commands: tables for people, tab-separated lines for pipes, JSON for programs. All goes to stdout.

A GGUF's own texts pass through here, so nothing in them may steer the terminal.
"""

import sys
from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from worker.observe.log_lines import escape


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Rows under their columns. Into a pipe: one line per row, cells separated by tabs, no header.

    Columns whose name begins with `>` are aligned to the right.
    """
    if not sys.stdout.isatty():
        for row in rows:
            print("\t".join(map(escape, row)))
        return
    table = Table(box=SIMPLE_HEAD, show_header=any(columns))
    for column in columns:
        justify: Literal["left", "right"] = "right" if column.startswith(">") else "left"
        table.add_column(column.removeprefix(">"), justify=justify, overflow="fold")
    for row in rows:
        table.add_row(*(Text(escape(cell)) for cell in row))
    Console().print(table)


def print_json(value: object) -> None:
    """A dataclass, or a list of them, as indented JSON."""
    print(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def mib(n_bytes: int) -> str:
    """An amount of memory in the unit of every `--…-mb` flag, 1 MiB of 1,048,576 bytes; less than one in KiB."""
    return f"{n_bytes / 2**20:,.1f} MiB" if n_bytes >= 2**20 else f"{n_bytes / 2**10:.1f} KiB"
