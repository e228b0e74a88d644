"""`bench doors`: what is measured and judged, never how fast it is."""

from pathlib import Path

import pytest

from tools.bench.__main__ import run
from tools.bench.doors import COMPARISONS, Found, bad_news


@pytest.mark.process
@pytest.mark.model
def test_both_doors_are_timed_on_one_worker(shallow_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doors", "--model", str(shallow_model), "--threads", "1", "--rounds", "1"]) in {0, 1}
    rows = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert [row[0] for row in rows] == [comparison.title for comparison in COMPARISONS]
    for _, execute, chat, *_, verdict in rows:
        assert float(execute.split()[0]) > 0
        assert float(chat.split()[0]) > 0
        assert verdict in {"ok", "MISSED"}


def test_a_chat_may_be_three_milliseconds_later_and_a_fiftieth_slower() -> None:
    first, one, eight = COMPARISONS
    fine = [Found(first, [(20.0, 22.9)]), Found(one, [(100.0, 98.1)]), Found(eight, [(300.0, 400.0)])]
    missed = [Found(first, [(20.0, 23.1)]), Found(one, [(100.0, 97.9)]), Found(eight, [(300.0, 290.0)])]
    assert bad_news(fine) == []
    assert len(bad_news(missed)) == 3


def test_doors_are_compared_within_a_round() -> None:
    _, one, _ = COMPARISONS
    rounds = [(100.0, 99.0), (50.0, 49.5), (10.0, 20.0)]
    assert Found(one, rounds).cells[1:4] == ("50.00 tokens/s", "49.50 tokens/s", "× 0.990")
    assert bad_news([Found(one, rounds)]) == []
