"""A report is read back as it was written, and its verdicts follow from its numbers."""

import json
import re
from dataclasses import replace
from itertools import product
from math import isnan

import pytest

from parity.markdown import cell, to_markdown
from parity.report import (
    LEVELS,
    Check,
    Level,
    Verdict,
    contradictions,
    from_json,
    not_run,
    overall,
    to_json,
)
from tests.parity.reports import ANYTHING, BROKEN, FAILED, HOLDS, NOT_A_NUMBER, level, levels, report

VERDICTS: tuple[Verdict, ...] = ("pass", "fail", "not run")


def failed_report() -> str:
    return to_markdown(report(levels(checkpoints=FAILED)))


@pytest.mark.parametrize("verdicts", list(product(VERDICTS, repeat=3)))
def test_the_whole_passes_only_when_no_level_failed_and_one_ran(verdicts: tuple[Verdict, ...]) -> None:
    found = overall([Level(str(n), verdict, "") for n, verdict in enumerate(verdicts)])
    assert (found == "pass") == ("fail" not in verdicts and "pass" in verdicts)
    assert (found == "fail") == ("fail" in verdicts)


def test_an_honest_report_has_no_contradiction() -> None:
    assert contradictions(report()) == []
    assert contradictions(report(levels(checkpoints=FAILED))) == []
    assert contradictions(report([not_run(name, "no time") for name in LEVELS])) == []


@pytest.mark.parametrize("recorded", VERDICTS)
@pytest.mark.parametrize("checks", [(HOLDS,), (HOLDS, BROKEN), (NOT_A_NUMBER,), ()])
def test_a_level_that_says_otherwise_than_its_checks_is_found(recorded: Verdict, checks: tuple[Check, ...]) -> None:
    made = report()
    other = Level("logits", recorded, "it says so", checks)
    found = contradictions(replace(made, levels=tuple(other if one.name == "logits" else one for one in made.levels)))
    allowed = {(HOLDS,): {"pass"}, (): {"fail", "not run"}}.get(checks, {"fail"})
    assert any("level logits" in problem for problem in found) == (recorded not in allowed)


@pytest.mark.parametrize("checks", [(HOLDS,), (BROKEN, HOLDS)])
def test_a_report_is_read_back_value_for_value(checks: tuple[Check, ...]) -> None:
    made = report(levels(logits=replace(level("logits", *checks), tables=())))
    without_lone_surrogates = replace(made, levels=tuple(replace(one, tables=()) for one in made.levels))
    assert from_json(to_json(without_lone_surrogates)) == without_lone_surrogates
    assert to_json(from_json(to_json(made))) == to_json(made)


def test_a_report_from_before_there_were_numerics_and_when_levels_had_series_is_still_read() -> None:
    made = report(numerics=None)
    old = json.loads(to_json(made))
    del old["numerics"]
    for one in old["levels"]:
        one["series"] = [{"name": "kl-histogram", "values": ["NaN", 1.0]}]
    assert to_json(from_json(json.dumps(old).encode())) == to_json(made)


def test_numbers_that_are_none_are_read_back_as_such() -> None:
    infinite = Check("a", float("-inf"), "at least", 0.0, "r")
    made = report(levels(logits=level("logits", NOT_A_NUMBER, infinite)))
    (logits,) = [one for one in from_json(to_json(made)).levels if one.name == "logits"]
    assert isnan(logits.checks[0].value)
    assert logits.checks[1].value == float("-inf")
    assert json.loads(to_json(made), parse_constant=pytest.fail)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"verdict"', b'"verdikt"'),
        (b'"run_id"', b'"note": "x", "run_id"'),
        (b'"name": "tokenizer"', b'"name": "tokenizer", "waived": true'),
        (b'"at most"', b'"about"'),
        (b'"pass"', b'"passed"'),
        (b"llorch-parity-report/1", b"llorch-parity-report/2"),
        (b'"value": ', b'"value": null, "was": '),
        (b'"size_bytes": 98000000', b'"size_bytes": "98000000"'),
        (b"{", b"[{"),
    ],
)
def test_what_no_report_has_is_refused(old: bytes, new: bytes) -> None:
    changed = to_json(report()).replace(old, new, 1)
    with pytest.raises(ValueError):  # noqa: PT011 - msgspec words most of them; which is not the claim
        from_json(changed)


def test_the_verdict_comes_first_then_a_line_for_each_level() -> None:
    text = failed_report()
    assert text.startswith("# Parity: FAIL\n")
    rows = [line for line in text.splitlines() if re.match(rf"\| ({'|'.join(LEVELS)}) \|", line)]
    assert [row.split(" | ")[0] for row in rows] == [f"| {name}" for name in LEVELS]
    assert "1.2 s" in rows[0]
    assert "60.0 s" in rows[0]
    assert rows[LEVELS.index("serving")] == "| serving | **NOT RUN** |  |  | no worker was asked for |"


@pytest.mark.parametrize("text", [ANYTHING, "|", "\\|", "\\", "`", " the", "x ", "", " ", "\n", "\x00", "<script>"])
def test_a_cell_is_one_printable_line_from_which_no_markup_escapes(text: str) -> None:
    shown = cell(text)
    assert shown.isprintable()
    assert shown == shown.strip()
    assert not re.search(r"[|`*<>\[\]]", re.sub(r"\\.", "", shown))
    assert bool(shown) == bool(text)
