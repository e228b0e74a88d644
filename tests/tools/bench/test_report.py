"""The report as a record, as a page, as cells."""

from dataclasses import replace

import msgspec
import pytest

from tests.tools.bench.made_report import line, report
from tools.bench.markdown import page, table
from tools.bench.measures import Unit
from tools.bench.report import MB, Report, Resident, resident_of
from tools.bench.wording import COLUMNS, bad_news, cells_of, own_lines, remarks, shown, usual_rows

EMPTY = replace(report(), lines=[], failures=[], resident=[], overload=None, busiest_idle={}, notes=[])


# ── the record ───────────────────────────────────────────────────────────────────────────────────


def test_a_report_survives_json() -> None:
    assert msgspec.json.decode(msgspec.json.encode(report()), type=Report) == report()


def test_those_that_disturb_are_told_from_those_that_rest() -> None:
    assert report().restless == {"llama-server": 0.25}


@pytest.mark.parametrize(
    ("engine_mb", "verdict"), [(100, "holds"), (580, "holds"), (581, "MISSED")], ids=["less", "at most", "more"]
)
def test_our_engine_may_have_80_mb_more_than_the_peer(engine_mb: int, verdict: str) -> None:
    found = resident_of({"ours": {"front": 60 * MB, "engine": engine_mb * MB}, "peer": {"server": 500 * MB}})
    assert found == [
        Resident("ours, front", 60 * MB, 120 * MB, "holds"),
        Resident("ours, engine", engine_mb * MB, 580 * MB, verdict),  # type: ignore[arg-type] # one of the two
        Resident("peer", 500 * MB, None, ""),
    ]


def test_what_cannot_be_looked_into_is_left_out() -> None:
    assert resident_of({"ours": {"front": None, "engine": 5 * MB}, "peer": {}}) == [
        Resident("ours, engine", 5 * MB, None, "")
    ]


# ── words ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("values", "unit", "text"),
    [
        ((150.04, 1.0, 900.0), "tokens/s", "150.0 tokens/s"),
        ((1234.5,), "ms", "1234 ms"),
        ((1.2345,), "×", "1.234 ×"),
        ((0.0,), "ms", "0.0 ms"),
        ((), "ms", "-"),
    ],
)
def test_numbers_are_shown_as_their_median(values: tuple[float, ...], unit: Unit, text: str) -> None:
    assert shown(values, unit) == text


def test_a_line_s_cells_fill_the_columns() -> None:
    assert cells_of(line()) == (
        *("1 stream, 64 / 96", "decode", "151.0 tokens/s", "llama-server", "150.0 tokens/s"),
        *("1.010 (1.000 to 1.020)", "≥ 0.98", "holds"),
    )
    assert len(cells_of(line())) == len(COLUMNS)
    alone = cells_of(line(peer=None, theirs=(), ratio=None))
    assert alone[3:6] == ("", "", "")


def test_bad_news_name_every_bound_that_does_not_hold_and_every_failure() -> None:
    assert list(bad_news(report())) == [
        "1-stream: decode is 0.950 (0.900 to 0.960) beside llama-bench, the bound is ≥ 0.97",
        "64-jobs: end of the last is 1.400 ×, the bound is ≤ 1.3",
        "llorch-worker, front has 150 MB, the bound is 120 MB",
        "mixture: 2 of 24 requests failed on llama-server, first: 500 oh",
    ]
    assert list(bad_news(EMPTY)) == []


def test_remarks_are_the_notes_and_who_was_restless() -> None:
    assert list(remarks(report())) == [
        "64-jobs left out",
        "llama-server used up to 25% of a processor while others were measured",
    ]


def test_the_usual_numbers_have_a_row_for_each_side() -> None:
    rows = usual_rows(report())
    assert [row[:2] for row in rows] == [("1 stream, 64 / 96", "ours"), ("1 stream, 64 / 96", "llama-server")]
    assert rows[0].count("151.0 ms") == 1


# ── the page ─────────────────────────────────────────────────────────────────────────────────────


def test_a_table_is_one_block_in_which_a_cell_s_own_bar_is_text() -> None:
    (block,) = table(["a", ">b"], [("x | y", "1"), ("", "2")])
    assert block == "| a | b |\n| --- | ---: |\n| x \\| y | 1 |\n|  | 2 |"


def test_a_page_has_the_table_and_all_that_must_be_known() -> None:
    text = page(report())
    assert "| 1 stream, 64 / 96 | decode | 151.0 tokens/s | llama-server | 150.0 tokens/s | 1.010 " in text
    assert "| llorch-worker, front | 150 MB | 120 MB | MISSED |" in text
    assert "- llorch-worker: `llorch-worker --threads 2`" in text
    assert "`OMP_WAIT_POLICY=PASSIVE`" in text
    assert "Seed of the prompts: 7." in text
    assert text.count("\n## ") == 3
    for news in bad_news(report()):
        assert f"- {news}" in text
    assert text.endswith("\n")


def test_a_page_of_nothing_says_where_it_was_measured() -> None:
    text = page(EMPTY)
    assert "tiny.gguf on A CPU" in text
    assert "## " not in text.removeprefix("# Under load")


def test_the_scenarios_own_numbers_are_the_table() -> None:
    assert [each.measure for each in own_lines(report())] == ["decode", "decode", "end of the last"]
