"""`bench sampling`: the verdict as a function of the times, what is printed, the exit code; never how fast it is."""

import math
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from tools.bench.__main__ import run
from tools.bench.llama.logit_rows import Origin, Rows, model_rows, synthetic_rows
from tools.bench.sampling import (
    BOUNDS,
    Comparison,
    Settings,
    bad_news,
    compare,
    costs_by_threads,
    field_costs,
)
from worker.host import cpu_quota

SETTINGS: tuple[Settings, ...] = get_args(Settings)


def comparison(settings: Settings, ours_us: float, llama_cpp_us: float, origin: Origin = "synthetic") -> Comparison:
    return Comparison(
        settings=settings,
        origin=origin,
        n_vocab=152_064,
        n_kept=12,
        ours_us=ours_us,
        llama_cpp_us=llama_cpp_us,
        chain="a chain",
    )


# ── the verdict ──────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("settings", "origin", "most_us"),
    [
        ("greedy", "synthetic", 10.0),
        ("greedy", "model", 10.0),
        ("worst case", "synthetic", 5.0),
        ("worst case", "model", 25.0),
    ],
)
def test_a_bound_holds_up_to_its_share_of_llama_cpp(settings: Settings, origin: Origin, most_us: float) -> None:
    for ours_us, holds in ((most_us, True), (most_us + 0.1, False)):
        judged = comparison(settings, ours_us, 100.0, origin)
        assert judged.holds == holds
        assert judged.ratio == pytest.approx(ours_us / 100)


def test_every_missed_bound_is_named_and_no_other() -> None:
    missed = [comparison("greedy", 30.0, 100.0), comparison("worst case", 20.0, 100.0)]
    assert bad_news([comparison("greedy", 1.0, 100.0), comparison("worst case", 1.0, 100.0)]) == []
    first, second = bad_news([comparison("greedy", 4.5, 100.0), *missed])
    assert first.startswith("greedy on synthetic rows of 152064 tokens costs 0.300 ")
    assert first.endswith("at most 0.1 is allowed")
    assert second.startswith("worst case on synthetic rows of 152064 tokens costs 0.200 ")
    assert second.endswith("at most 0.05 is allowed")


# ── what is measured ─────────────────────────────────────────────────────────────────────────────


def small_rows() -> Rows:
    return synthetic_rows(2000)


def test_synthetic_rows_are_the_same_every_time_and_have_their_peaks() -> None:
    first, second = small_rows(), small_rows()
    assert np.array_equal(first.logits, second.logits)
    assert (first.n_vocab, first.origin) == (2000, "synthetic")
    for row in first.logits:
        assert row.dtype == np.float32
        assert 2.9 < row.std() < 3.3
        assert 8.0 <= row.max() < 15.0


@pytest.mark.parametrize("settings", SETTINGS)
def test_a_comparison_times_both_on_the_same_rows(settings: Settings) -> None:
    found = compare(small_rows(), settings, 2)
    assert (found.settings, found.origin, found.n_vocab) == (settings, "synthetic", 2000)
    assert found.ours_us > 0
    assert found.llama_cpp_us > 0
    assert (found.n_kept == 1) == (settings == "greedy")
    assert found.chain in {"greedy", "top_p, temp, dist", "temp, top_p, dist"}


def test_every_field_s_cost_is_measured_alone() -> None:
    costs = field_costs(small_rows(), 1)
    assert all(us > 0 for us in costs.values())
    measured = " ".join(costs)
    for field in ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "frequency_penalty", "typical_p"):
        assert field in measured
    for field in ("presence_penalty", "dry_multiplier", "top_n_sigma", "xtc_probability", "logit_bias", "logprobs"):
        assert field in measured
    for field in ("ignore_eos", "min_tokens"):
        assert field in measured


def test_a_step_s_rows_are_timed_with_as_many_threads_as_there_are_processors() -> None:
    costs = costs_by_threads(small_rows(), 1)
    assert list(costs) == [n for n in (1, 2, 4) if n <= cpu_quota()]
    assert all(ms > 0 for ms in costs.values())


@pytest.mark.model
def test_a_model_s_rows_are_its_answers_to_a_text(default_model: Path) -> None:
    with model_rows(default_model) as rows:
        assert rows.origin == "model"
        assert rows.n_vocab == 49_152
        assert len(rows.logits) == len(rows.indexes) == 15
        assert len({int(row.argmax()) for row in rows.logits}) > 5
        assert all(math.isfinite(row.sum()) for row in rows.logits)
        found = compare(rows, "worst case", 1)
        assert 1 < found.n_kept < 1000


# ── the command ──────────────────────────────────────────────────────────────────────────────────


def test_without_a_model_synthetic_rows_are_measured_and_nothing_is_fetched(
    no_models: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for bound in BOUNDS:
        monkeypatch.setitem(BOUNDS, bound, math.inf)
    assert run(["sampling", "--rounds", "1"]) == 0
    shown = capsys.readouterr()
    assert "smollm2-135m-instruct is not here: synthetic rows only" in shown.err
    compared = [line.split("\t") for line in shown.out.splitlines() if "synthetic" in line]
    assert [cells[:3] for cells in compared] == [
        [settings, "synthetic", vocabulary] for vocabulary in ("49152", "152064") for settings in SETTINGS
    ]
    assert {cells[-1] for cells in compared} == {"ok"}
    assert not no_models.exists()


@pytest.mark.model
def test_the_table_says_what_the_exit_code_says(
    default_model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One bound that no machine can meet, one that every machine can."""
    for settings, origin in BOUNDS:
        monkeypatch.setitem(BOUNDS, (settings, origin), 0.0 if settings == "greedy" else math.inf)
    assert run(["sampling", "--rounds", "1", "--model", str(default_model)]) == 1
    shown = capsys.readouterr()
    rows = [line.split("\t") for line in shown.out.splitlines()]
    compared = [row for row in rows if row[0] in SETTINGS]
    assert [row[1] for row in compared] == ["model"] * 2 + ["synthetic"] * 4
    assert [row[-1] for row in compared] == ["MISSED", "ok"] * 3
    assert {len(row) for row in rows if row not in compared} == {2, 3}
    assert "greedy on model rows of 49152 tokens" in shown.err
    assert "worst case" not in shown.err
