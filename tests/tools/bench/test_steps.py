"""`bench steps`: what is measured and judged, never how fast it is."""

import json
from pathlib import Path

import pytest

from tools.bench.__main__ import run
from tools.bench.llama.step_costs import StepCosts
from tools.bench.measures import BoundMissed
from tools.bench.steps import BOUNDS, check


@pytest.mark.model
def test_a_step_is_llama_decode_and_the_rest(model_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["steps", "--model", str(model_path), "--rounds", "1", "--json"]) in {0, 1}
    found = json.loads(capsys.readouterr().out)
    assert [costs["n_streams"] for costs in found] == list(BOUNDS)
    for costs in found:
        assert costs["step_ms"] > costs["decode_ms"] > 0
        assert costs["python_us"] == pytest.approx(1e3 * (costs["step_ms"] - costs["decode_ms"]))
        assert costs["overhead"] == pytest.approx(costs["python_us"] / 1e3 / costs["decode_ms"])


def test_each_share_over_its_bound_is_named() -> None:
    check([StepCosts(n_streams, 10.0, 9.9, 100.0, bound) for n_streams, bound in BOUNDS.items()])
    with pytest.raises(BoundMissed, match=r"1 streams takes 3\.1% more.*; a step of 16"):
        check([StepCosts(n_streams, 10.0, 9.0, 1000.0, bound + 0.001) for n_streams, bound in BOUNDS.items()])


def test_a_model_that_is_not_here_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["steps", "--model", str(tmp_path / "missing.gguf")]) == 1
    assert "missing.gguf" in capsys.readouterr().err
