"""`bench steps`: what is measured and judged, never how fast it is."""

from pathlib import Path

import pytest

from tools.bench.__main__ import run
from tools.bench.steps import BOUNDS, StepCosts, bad_news
from tools.made_model import SHAPES, made_model


@pytest.mark.model
def test_a_step_is_llama_decode_and_the_rest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = made_model(tmp_path, SHAPES["tiny"])
    assert run(["steps", "--model", str(model), "--rounds", "1"]) in {0, 1}
    rows = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert [int(row[0]) for row in rows] == list(BOUNDS)
    for _, step, decode, rest, share, bound, verdict in rows:
        step_ms, decode_ms, rest_us = (float(cell.split()[0]) for cell in (step, decode, rest))
        assert step_ms > decode_ms > 0
        assert rest_us == pytest.approx(1e3 * (step_ms - decode_ms), abs=11)
        assert verdict == ("ok" if float(share.rstrip("%")) <= float(bound.rstrip("%")) else "MISSED")


def test_each_share_over_its_bound_is_named() -> None:
    assert bad_news([StepCosts(n_streams, 10.0, 9.9, 100.0, bound) for n_streams, bound in BOUNDS.items()]) == []
    found = [StepCosts(n_streams, 10.0, 9.0, 1000.0, bound + 0.001) for n_streams, bound in BOUNDS.items()]
    assert bad_news(found) == [
        "a step of 1 streams takes 3.1% more than llama_decode, at most 3.0% is allowed",
        "a step of 16 streams takes 1.6% more than llama_decode, at most 1.5% is allowed",
    ]
