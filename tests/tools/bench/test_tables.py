"""The report as the cells of tables, and as bad news."""

from dataclasses import replace

import pytest

from tests.tools.bench.made_report import line, report
from tools.bench.measures import Unit
from tools.bench.tables import bad_news, tables

EMPTY = replace(report(), lines=[], failures=[], resident=[], overload=None)


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
    (_, [cells]), _ = tables(replace(EMPTY, lines=[line(ours=values, unit=unit)]))
    assert cells[4] == text


def test_the_first_table_has_the_scenarios_own_numbers_and_the_others_memory_overload_and_circumstances() -> None:
    (columns, (first, speculating, jobs)), (_, resident), (_, overload), (_, circumstances) = tables(report())
    assert first == (
        *("1 stream, 64 / 96", "random words", "on", "decode", "151.0 tokens/s", "llama-server", "150.0 tokens/s"),
        *("1.010 (1.000 to 1.020)", "≥ 0.98", "holds", "150.0 tokens/s, 0.900"),
        *("302.0 tokens/s", "0.50", "61.0", "50.0"),
    )
    assert columns[10] == ">llama-bench: its, ours / its"
    assert {len(cells) for cells in (first, speculating, jobs)} == {len(columns)}
    assert speculating[5] == "llama-server-ngram"
    assert jobs == (
        "64 jobs",
        "random words",
        "on",
        "end of the last",
        "1.400 ×",
        *[""] * 3,
        "≤ 1.3",
        "MISSED",
        *[""] * 3,
        "61.0",
        "",
    )
    assert resident == [("llorch-worker, front", "150 MB", "120 MB", "MISSED")]
    assert [cells[1] for cells in overload] == [
        "8 answered, 24 refused, 0 failed",
        "median 120 µs, p99 300 µs",
        "121 µs, 119 µs",
        "95 µs",
    ]
    shown = {cells[0]: cells[1] for cells in circumstances}
    assert shown["model"] == "tiny.gguf"
    assert shown["when"] == "2026-01-02T03:04:05Z, 3 rounds, seed 7"
    assert shown["llorch-worker"] == "llorch-worker --threads 2 (0.1.0)"
    assert shown["8-bit multiply-adds (amx)"] == "1000 G/s"


def test_drafts_and_text_are_distinguished() -> None:
    lines = [line(), line(has_drafts=False), line(text="code, prose, chats")]
    (_, rows), _ = tables(replace(EMPTY, lines=lines))
    assert len({cells[:4] for cells in rows}) == 3


def test_a_peer_that_is_only_shown_has_no_row_of_its_own_unless_there_is_no_other() -> None:
    alone = line(peer="llama-bench", is_beside=True, bound="", verdict="")
    (columns, [cells]), _ = tables(replace(EMPTY, lines=[alone]))
    assert cells[4:8] == ("151.0 tokens/s", "", "", "")
    assert cells[columns.index(">llama-bench: its, ours / its")] == "150.0 tokens/s, 1.010"


def test_bad_news_name_every_bound_that_does_not_hold_and_every_failure() -> None:
    assert list(bad_news(report())) == [
        "1-stream: decode is 0.950 (0.900 to 0.960) beside llama-server-ngram, the bound is ≥ 0.97",
        "64-jobs: end of the last is 1.400 ×, the bound is ≤ 1.3",
        "llorch-worker, front has 150 MB, the bound is 120 MB",
        "mixture: 2 of 24 requests failed on llama-server, first: 500 oh",
    ]
    assert list(bad_news(EMPTY)) == []
