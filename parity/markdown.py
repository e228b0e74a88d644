"""A report as Markdown for a person: the verdict first, then a line per level, then each level's numbers.

Pure: the same report gives the same text. Whatever stands in a cell, also a token's piece or a model's answer, stays
text in that cell.
"""

import re
from collections.abc import Iterable, Sequence
from math import isfinite

from parity.report import Check, Level, Report, Table
from worker.observe.log_lines import escape

LONGEST_OPEN_TABLE = 25
"""Rows; longer ones are folded, so that the next heading is in sight."""

_MARKUP = re.compile(r"[\\`*{}\[\]<>#|~$&!]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")
_MAX_DIGITS = 17
"""This many digits distinguish any two floats."""


def to_markdown(report: Report) -> str:
    """The whole report."""
    blocks = [f"# Parity: {_word(report.verdict)}", _subject(report), _overview(report.levels)]
    for level in report.levels:
        blocks += _level(level)
    made = [(cell(name), cell(value)) for name, value in facts(report)]
    blocks += ["## How this was made", _table(("what", "value"), made)]
    return "\n\n".join(block for block in blocks if block) + "\n"


def cell(text: str) -> str:
    """Any text as one that Markdown shows as it is: on one line, control characters and spaces at its ends visible."""
    inner = text.strip(" ")
    if not inner:
        return "␣" * len(text)
    before, after = text.index(inner), len(text) - text.index(inner) - len(inner)
    return "␣" * before + _MARKUP.sub(r"\\\g<0>", escape(inner)) + "␣" * after


def number(value: float, n_digits: int = 3) -> str:
    """Three significant digits where the number is not whole, thousands apart."""
    if not isfinite(value):
        return str(value)
    if value == int(value) and abs(value) < 1e15:
        return f"{value:,.0f}"
    return f"{value:,.1f}" if abs(value) >= 1000 and n_digits == 3 else f"{value:.{n_digits}g}"


def seconds(value: float) -> str:
    return f"{value:.1f} s" if value < 100 else f"{value:.0f} s"


def _subject(report: Report) -> str:
    model, reference = report.model, report.reference
    return (
        f"**{cell(model.file)}** ({cell(model.quantisation)}, {cell(model.architecture)}) against the {reference.kind} "
        f"{cell(reference.name)}. Run {cell(report.run_id)}, {cell(report.created)}."
    )


# ── levels ───────────────────────────────────────────────────────────────────────────────────────


def _overview(levels: Sequence[Level]) -> str:
    rows = [(cell(level.name), f"**{_word(level.verdict)}**", *_times(level), cell(level.summary)) for level in levels]
    total = seconds(sum(level.seconds for level in levels))
    rows.append(("all", "", total, seconds(sum(level.budget_seconds for level in levels)), ""))
    return _table(("level", "verdict", ">time", ">budget", "found"), rows)


def _times(level: Level) -> tuple[str, str]:
    if level.verdict == "not run":
        return "", ""
    over = " (over)" if 0 < level.budget_seconds < level.seconds else ""
    return seconds(level.seconds) + over, seconds(level.budget_seconds) if level.budget_seconds else ""


def _level(level: Level) -> list[str]:
    broken = [check for check in level.checks if not check.holds]
    holding = [check for check in level.checks if check.holds]
    blocks = [f"## {cell(level.name)}: {_word(level.verdict)}", cell(level.summary)]
    if broken:
        blocks += [f"**{_counted(len(broken), 'check')} broken**", *_checks(broken)]
    if holding:
        blocks += [f"{_counted(len(holding), 'check')} within bounds", *_checks(holding)]
    for table in level.tables:
        blocks += _titled(table)
    return blocks


def _checks(checks: Sequence[Check]) -> list[str]:
    """A table, and below it the reasons it refers to by number: many checks share one."""
    reasons = list(dict.fromkeys(check.reason for check in checks))
    rows = [
        (
            cell(check.name),
            *_value_and_bound(check),
            f"({reasons.index(check.reason) + 1})",
            cell(check.note),
        )
        for check in checks
    ]
    table = _table(("checked", ">value", ">bound", "why", "where"), rows)
    return [
        _folded(table, len(rows)),
        "\n".join(f"({n}) {cell(reason)}  " for n, reason in enumerate(reasons, start=1)),
    ]


def _value_and_bound(check: Check) -> tuple[str, str]:
    """The value and the bound, with enough digits to see which one is larger."""
    texts = ("", "")
    for n_digits in range(3, _MAX_DIGITS + 1):
        texts = number(check.value, n_digits), number(check.bound, n_digits)
        if check.value == check.bound or texts[0] != texts[1]:
            break
    return texts[0], f"{'≤' if check.relation == 'at most' else '≥'} {texts[1]}"


def _titled(table: Table) -> list[str]:
    rows = [tuple(cell(text) for text in row) for row in table.rows]
    title = f"**{cell(table.title)}**" if table.title else ""
    shown = _folded(_table([_heading(column) for column in table.columns], rows), len(rows))
    return [title, shown, cell(table.note)]


def _heading(column: str) -> str:
    return ">" + cell(column[1:]) if column.startswith(">") else cell(column)


def facts(report: Report) -> list[tuple[str, str]]:
    """(name, value) of what the report is about and of all that it was made with."""
    machine = report.machine
    return [
        ("model sha256", report.model.sha256),
        ("model size", f"{report.model.size_bytes:,} bytes"),
        ("reference", f"{report.reference.kind} {report.reference.name}, sha256 {report.reference.sha256}"),
        ("bounds", f"{report.bounds.name}, sha256 {report.bounds.sha256}"),
        ("CPU", f"{machine.cpu}, {machine.n_cores} cores, {machine.n_usable} usable, {machine.n_threads} threads"),
        ("system", machine.system),
        *(report.numerics.shown() if report.numerics else ()),
        *report.versions.items(),
        *((f"parameter {name}", value) for name, value in report.parameters.items()),
    ]


# ── Markdown ─────────────────────────────────────────────────────────────────────────────────────


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Cells are Markdown already. A column whose name begins with `>` is aligned to the right."""
    lines = [
        _row([column.removeprefix(">") for column in columns]),
        _row(["---:" if column.startswith(">") else "---" for column in columns]),
        *(_row(row) for row in rows),
    ]
    return "\n".join(lines)


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _folded(table: str, n_rows: int) -> str:
    if n_rows <= LONGEST_OPEN_TABLE:
        return table
    return f"<details><summary>{n_rows} rows</summary>\n\n{table}\n\n</details>"


def _counted(n: int, noun: str) -> str:
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def _word(verdict: str) -> str:
    return verdict.upper()
