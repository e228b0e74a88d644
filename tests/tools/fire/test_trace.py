"""Traces: drawn from a seed, kept in a file, with flags that a worker takes."""

from pathlib import Path

import pytest

from tools.fire.trace import Cancel, Cut, Pause, draw, read, saved


@pytest.mark.parametrize("seed", range(6))
def test_a_file_has_the_whole_trace(seed: int, tmp_path: Path) -> None:
    trace = draw(seed, n_requests=60)
    assert trace.n_requests == 60
    assert read(saved(trace, tmp_path / "trace.json")) == trace == draw(seed, n_requests=60)


def test_all_that_a_client_can_do_happens() -> None:
    lives = [life for seed in range(20) for life in draw(seed).lives]
    fates = {type(act.fate) for life in lives for act in life.acts}
    assert fates == {Cut, Cancel, Pause, type(None)}
    assert any(life.kills_ms for life in lives)
    assert {draw(seed).has_cache_dir for seed in range(20)} == {True, False}
    assert {draw(seed).has_draft_model for seed in range(20)} == {True, False}
