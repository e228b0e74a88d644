"""The results of a parity run, as values and as report.json: written once, read back strictly, judged again by its
numbers.

Pure.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, Literal

import msgspec
import numpy as np

from parity.provenance import GENERATED_BY, Machine
from worker.server.front.certificate import REPORT_FORMAT
from worker.wire.load import Numerics

# ── a level ──────────────────────────────────────────────────────────────────────────────────────

Verdict = Literal["pass", "fail", "not run"]
Relation = Literal["at most", "at least"]

LEVELS = ("tokenizer", "weights", "checkpoints", "logits", "generation", "serving", "sampling")
"""The levels in the order in which they run and are reported."""


@dataclass(frozen=True, slots=True)
class Check:
    """A measured number against its bound. A value that is not finite holds no bound."""

    name: str
    """The measured value, named by its place: `blk.3 attn_norm, relative error`."""
    value: float
    relation: Relation
    bound: float
    reason: str
    """The reason for the bound, from the bounds file."""
    note: str = ""
    """The origin of the value: the worst tensor, position or text."""

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
class Level:
    """One level's outcome. `seconds` and `budget_seconds` are wall time of this machine; a budget is no bound."""

    name: str
    verdict: Verdict
    summary: str
    """One line: what was found, or why nothing was."""
    checks: tuple[Check, ...] = ()
    tables: tuple[Table, ...] = ()
    seconds: float = 0.0
    budget_seconds: float = 0.0


def judged(
    name: str,
    summary: str,
    checks: Sequence[Check],
    *,
    tables: Iterable[Table] = (),
) -> Level:
    """A level that ran: it passes when every check holds and there is at least one. `summary` when it passes;
    otherwise the first broken check is the summary."""
    broken = next((check for check in checks if not check.holds), None)
    if not checks:
        return Level(name, "fail", "nothing was compared", tables=tuple(tables))
    return Level(
        name,
        "fail" if broken else "pass",
        says(broken) if broken else summary,
        tuple(checks),
        tuple(tables),
    )


def not_run(name: str, why: str) -> Level:
    """A level that could not run here; `why` says what it lacks."""
    return Level(name, "not run", why)


def says(check: Check) -> str:
    """A check as one line: what, how much, and the bound."""
    where = f" ({check.note})" if check.note else ""
    return f"{check.name}: {check.value:.3g}, {check.relation} {check.bound:.3g} is allowed{where}"


@dataclass(frozen=True, slots=True)
class ModelFile:
    """The GGUF that was compared."""

    file: str
    """Name without its folder."""
    sha256: str
    size_bytes: int
    quantisation: str
    architecture: str


@dataclass(frozen=True, slots=True)
class ReferenceUsed:
    """The reference of the comparison."""

    kind: Literal["checkpoint", "logits"]
    name: str
    """The name of the folder or file, without its parents."""
    sha256: str


@dataclass(frozen=True, slots=True)
class BoundsUsed:
    """The file that judged: `built in` or the user's, by name."""

    name: str
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Made by `report_of`; the fields are report.json's keys, in this order."""

    format: str = REPORT_FORMAT
    generated_by: str = GENERATED_BY
    run_id: str
    created: str
    """RFC 3339."""
    verdict: Verdict
    model: ModelFile
    reference: ReferenceUsed
    bounds: BoundsUsed
    parameters: Mapping[str, str]
    """The parameters of the command, without folders."""
    versions: Mapping[str, str]
    machine: Machine
    levels: tuple[Level, ...]
    """The levels in the order of LEVELS, then others of earlier versions."""
    numerics: Numerics | None = None
    """The numerics of the model; None if no level computed with it, and in older reports."""


def report_of(
    *,
    run_id: str,
    created: str,
    model: ModelFile,
    reference: ReferenceUsed,
    bounds: BoundsUsed,
    parameters: Mapping[str, str],
    versions: Mapping[str, str],
    machine: Machine,
    levels: Sequence[Level],
    numerics: Numerics | None = None,
) -> Report:
    """The report of a run, with its verdict.

    Raises: ValueError when the levels are not complete; one that could not run is there as `not_run`.
    """
    problem = next(_missing_or_twice([level.name for level in levels]), None)
    if problem is not None:
        raise ValueError(problem)
    return Report(
        run_id=run_id,
        created=created,
        verdict=overall(levels),
        model=model,
        reference=reference,
        bounds=bounds,
        parameters=dict(parameters),
        versions=dict(versions),
        machine=machine,
        levels=tuple(levels),
        numerics=numerics,
    )


def overall(levels: Iterable[Level]) -> Verdict:
    """`pass` only when no level failed and at least one ran."""
    verdicts = {level.verdict for level in levels}
    if "fail" in verdicts:
        return "fail"
    return "pass" if "pass" in verdicts else "not run"


def contradictions(report: Report) -> list[str]:
    """The recorded verdicts that values and bounds contradict, one line each; none for an honest report."""
    found = list(_missing_or_twice([level.name for level in report.levels]))
    for level in report.levels:
        expected = _verdict_of(level)
        if level.verdict != expected:
            found.append(f"level {level.name} says {level.verdict!r}; its checks give {expected!r}")
    if report.verdict != overall(report.levels):
        found.append(f"the report says {report.verdict!r}; its levels give {overall(report.levels)!r}")
    return found


def _verdict_of(level: Level) -> Verdict:
    """The verdict by the rules of `judged` and `not_run`: a level without checks has compared nothing and never
    passes."""
    if not level.checks:
        return "fail" if level.verdict == "pass" else level.verdict
    return "pass" if all(check.holds for check in level.checks) else "fail"


def _missing_or_twice(names: Sequence[str]) -> Iterator[str]:
    for name in LEVELS:
        if name not in names:
            yield f"level {name} is missing; one that did not run is listed with its reason"
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield f"level {name} is there {names.count(name)} times"


# ── JSON ─────────────────────────────────────────────────────────────────────────────────────────

_WORDS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
"""The spelling in report.json of numbers that JSON does not have."""
_NUMBER_KEYS = ("value", "values")
"""The keys whose values may be such numbers: in them the words are numbers, elsewhere text."""


def to_json(report: Report) -> bytes:
    """report.json."""
    return json_document(report)


def from_json(data: bytes) -> Report:
    """The report again, value for value.

    Raises: ValueError for anything that `to_json` does not write: also unknown and missing keys, and other formats.
    """
    found = _without_series(msgspec.json.decode(data))
    report = msgspec.convert(_with_numbers(found), Report)
    if report.format != REPORT_FORMAT:
        raise ValueError(f"its format is {report.format[:64]!r}; this version reads {REPORT_FORMAT!r}")
    if _plain(report) != {"numerics": None, **found}:
        raise ValueError("it has unknown keys, or lacks keys of a report")
    return report


def _without_series(found: Any) -> Any:
    """Reports of earlier versions had numbers to draw with each level."""
    levels = found.get("levels") if isinstance(found, dict) else None
    for level in levels if isinstance(levels, list) else ():
        if isinstance(level, dict):
            level.pop("series", None)
    return found


def json_document(value: object) -> bytes:
    """Any value of a bundle as UTF-8, indented, with a line end at the end.

    What JSON has no form for becomes text, instead of failing at the end of a long run: NaN, infinities and lone
    surrogates are spelled out, numpy's numbers are numbers.
    """
    return msgspec.json.format(msgspec.json.encode(_plain(value)), indent=1) + b"\n"


def json_lines(records: Iterable[object]) -> bytes:
    """The lines of records like `json_document`, one record per line."""
    return b"".join(msgspec.json.encode(_plain(record)) + b"\n" for record in records)


def _plain(value: object) -> Any:
    return _spelled(msgspec.to_builtins(value, enc_hook=_of_numpy))


def _of_numpy(value: object) -> object:
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")


def _spelled(node: Any) -> Any:
    match node:
        case float() if not isfinite(node):
            return "NaN" if math.isnan(node) else "Infinity" if node > 0 else "-Infinity"
        case str():
            return node.encode(errors="backslashreplace").decode()
        case dict():
            return {_spelled(key): _spelled(value) for key, value in node.items()}
        case list() | tuple():
            return [_spelled(value) for value in node]
    return node


def _with_numbers(node: Any, key: str = "") -> Any:
    match node:
        case str() if key in _NUMBER_KEYS:
            return _WORDS.get(node, node)
        case dict():
            return {name: _with_numbers(value, name) for name, value in node.items()}
        case list():
            return [_with_numbers(value, key) for value in node]
    return node
