"""What a level found: checks against bounds, tables for people, series to draw. The report is made of nothing else.

Plain values only, so that one encoder writes them and `parity verify` can read them back.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Literal

Verdict = Literal["pass", "fail", "not run"]
Relation = Literal["at most", "at least"]

LEVELS = ("tokenizer", "weights", "checkpoints", "logits", "generation", "serving", "sampling")
"""In the order in which they run and are reported."""


@dataclass(frozen=True, slots=True)
class Check:
    """A measured number against its bound. A value that is not finite holds no bound."""

    name: str
    """What was measured, in words that name the place: `blk.3 attn_norm, relative error`."""
    value: float
    relation: Relation
    bound: float
    reason: str
    """Why the bound is where it is; from the bounds file."""
    note: str = ""
    """Where the value comes from: the tensor, position or text that is worst."""

    @property
    def holds(self) -> bool:
        if not isfinite(self.value):
            return False
        return self.value <= self.bound if self.relation == "at most" else self.value >= self.bound


@dataclass(frozen=True, slots=True)
class Table:
    """Text cells under their columns. A column whose name begins with `>` is aligned to the right."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""


@dataclass(frozen=True, slots=True)
class Series:
    """Numbers to draw: `values` over `labels`, or a histogram of `values` where there are no labels.

    They are in report.json alone; nothing here draws.
    """

    name: str
    """Lower case, words joined by `-`."""
    title: str
    values: tuple[float, ...]
    labels: tuple[str, ...] = ()
    unit: str = ""
    is_log: bool = True
    line: str = ""
    """Series of the same `name` and another `line` belong into one picture."""


@dataclass(frozen=True, slots=True)
class Level:
    """One level's outcome. `seconds` and `budget_seconds` are wall time of this machine; a budget is no bound."""

    name: str
    verdict: Verdict
    summary: str
    """One line: what was found, or why nothing was."""
    checks: tuple[Check, ...] = ()
    tables: tuple[Table, ...] = ()
    series: tuple[Series, ...] = ()
    seconds: float = 0.0
    budget_seconds: float = 0.0


def judged(
    name: str,
    summary: str,
    checks: Sequence[Check],
    *,
    tables: Iterable[Table] = (),
    series: Iterable[Series] = (),
) -> Level:
    """A level that ran: it passes when every check holds and there is at least one. `summary` when it passes;
    otherwise the first broken check is the summary."""
    broken = next((check for check in checks if not check.holds), None)
    if not checks:
        return Level(name, "fail", "nothing was compared", tables=tuple(tables), series=tuple(series))
    return Level(
        name,
        "fail" if broken else "pass",
        says(broken) if broken else summary,
        tuple(checks),
        tuple(tables),
        tuple(series),
    )


def not_run(name: str, why: str) -> Level:
    """A level that could not run here; `why` says what it lacks."""
    return Level(name, "not run", why)


def says(check: Check) -> str:
    """A check as one line: what, how much, and the bound."""
    where = f" ({check.note})" if check.note else ""
    return f"{check.name}: {check.value:.3g}, {check.relation} {check.bound:.3g} is allowed{where}"
