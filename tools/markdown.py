"""Tables as Markdown. Pure."""

from collections.abc import Iterable, Sequence

Cells = tuple[str, ...]


def table(columns: Sequence[str], rows: Iterable[Cells]) -> str:
    """One block, without a line break at its end; a column whose name begins with `>` is aligned to the right."""
    lines = [
        [column.removeprefix(">") for column in columns],
        ["---:" if column.startswith(">") else "---" for column in columns],
        *([cell.replace("|", "\\|") for cell in row] for row in rows),
    ]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
