"""A run's outcome as one value, and as report.json: written once, read back strictly, judged again from its numbers.

Owns: what a report holds, when the whole passes, the JSON. Refuses to know: how levels are run (run.py), how a report
looks (markdown.py), where it lies (bundle.py). worker/front/certificate.py reads a few of its keys in the front.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from worker.front.certificate import REPORT_FORMAT
from worker.parity.plain import NOT_FINITE, json_document, plain
from worker.parity.provenance import GENERATED_BY, Machine
from worker.parity.results import LEVELS, Check, Level, Verdict


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
    """What it was compared with."""

    kind: Literal["checkpoint", "logits"]
    name: str
    """Of the folder or file, without what lies above it."""
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
    """Of the command, without folders."""
    versions: Mapping[str, str]
    machine: Machine
    levels: tuple[Level, ...]
    """Those of results.LEVELS in their order, then `matrix` where it was asked for."""


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
    )


def overall(levels: Iterable[Level]) -> Verdict:
    """`pass` only when no level failed and at least one ran."""
    verdicts = {level.verdict for level in levels}
    if "fail" in verdicts:
        return "fail"
    return "pass" if "pass" in verdicts else "not run"


# ── judged again ─────────────────────────────────────────────────────────────────────────────────


def contradictions(report: Report) -> list[str]:
    """Where a recorded verdict is not the one that values and bounds give; a line each, none for an honest report."""
    found = list(_missing_or_twice([level.name for level in report.levels]))
    for level in report.levels:
        expected = _verdict_of(level)
        if level.verdict != expected:
            found.append(f"level {level.name} says {level.verdict!r}; its checks give {expected!r}")
    if report.verdict != overall(report.levels):
        found.append(f"the report says {report.verdict!r}; its levels give {overall(report.levels)!r}")
    return found


def _verdict_of(level: Level) -> Verdict:
    """As `judged` and `not_run` make it: a level without checks has compared nothing, which never passes."""
    if not level.checks:
        return "fail" if level.verdict == "pass" else level.verdict
    return "pass" if all(check.holds for check in level.checks) else "fail"


def _missing_or_twice(names: Sequence[str]) -> Iterator[str]:
    for name in LEVELS:
        if name not in names:
            yield f"level {name} is missing; one that did not run is listed with its reason"
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield f"level {name} is there {names.count(name)} times"


def broken_first(checks: Iterable[Check]) -> list[Check]:
    """The broken ones before those that hold, otherwise in their order."""
    return sorted(checks, key=lambda check: check.holds)


# ── JSON ─────────────────────────────────────────────────────────────────────────────────────────

_NUMBER_KEYS = ("value", "values")
"""Where numbers may be measured that JSON does not have: there, the words for them are numbers and no text."""
_WORDS = {word: float(text) for text, word in NOT_FINITE.items()}


def to_json(report: Report) -> bytes:
    """report.json."""
    return json_document(report)


def from_json(data: bytes) -> Report:
    """The report again, value for value.

    Raises: ValueError for anything that `to_json` does not write: also unknown and missing keys, and other formats.
    """
    found = msgspec.json.decode(data)
    report = msgspec.convert(_with_numbers(found), Report)
    if report.format != REPORT_FORMAT:
        raise ValueError(f"its format is {report.format[:64]!r}; this version reads {REPORT_FORMAT!r}")
    if plain(report) != found:
        raise ValueError("it has keys that no report has, or lacks some")
    return report


def _with_numbers(node: Any, key: str = "") -> Any:
    match node:
        case str() if key in _NUMBER_KEYS:
            return _WORDS.get(node, node)
        case dict():
            return {name: _with_numbers(value, name) for name, value in node.items()}
        case list():
            return [_with_numbers(value, key) for value in node]
    return node
