"""`bench index`: what is printed, never how fast it is."""

import json

import pytest

from worker.bench.index_costs import N_PROMPT
from worker.cli import run


def test_each_size_has_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "index", "--tokens", "2000", "--tokens", "4000"]) == 0
    rows = [row.split("\t") for row in capsys.readouterr().out.splitlines()]
    assert [2000 - N_PROMPT < int(row[0]) <= 2000 for row in rows] == [True, False]
    assert all(cell.endswith(" µs") for row in rows for cell in row[1:])


def test_json_has_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "index", "--tokens", "2000", "--json"]) == 0
    (costs,) = json.loads(capsys.readouterr().out)
    assert set(costs) == {"lookup_us", "insert_us", "n_tokens"}
    assert min(costs.values()) > 0


def test_an_index_has_room_for_a_prompt(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "index", "--tokens", "10"]) == 2
    assert "--tokens" in capsys.readouterr().err
