"""`bench sampling`: the verdict as a function of the times, what is measured, the exit code; never how fast it is."""

import math
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from llama_cpp import llama_cpp as capi

from tests.llama.conftest import slice_of
from tools.bench.__main__ import run
from tools.bench.llama.chain import Chain, Stage, dist, temp, top_p
from tools.bench.sampling import (
    BOUNDS,
    Comparison,
    Origin,
    Settings,
    bad_news,
    compare,
    costs_by_threads,
    field_costs,
    model_rows,
    synthetic_rows,
)
from worker.host import cpu_quota
from worker.llama.context import Context
from worker.llama.model import Model
from worker.wire.jobs import TokenId

SETTINGS: tuple[Settings, ...] = get_args(Settings)


@pytest.mark.parametrize(("settings", "origin"), BOUNDS)
def test_a_bound_holds_up_to_its_share_of_llama_cpp_and_is_named_when_missed(
    settings: Settings, origin: Origin
) -> None:
    most = BOUNDS[settings, origin]
    kept, missed = (
        Comparison(settings, origin, 152_064, 12, factor * most * 100, 100.0, "a chain") for factor in (1.0, 1.1)
    )
    assert kept.holds
    (news,) = bad_news([kept, missed])
    assert news.startswith(f"{settings} on {origin} rows of 152064 tokens costs {1.1 * most:.3f} ")


@pytest.mark.parametrize("stages", [[], [temp(0.8), top_p(0.95)], [top_p(0.95), temp(0.8)]])
def test_a_row_given_to_a_chain_is_sampled_like_the_same_row_in_a_context(tiny: Model, stages: list[Stage]) -> None:
    """The library's own llama_sampler_sample, on logits that are written where it reads them."""
    n_vocab = tiny.n_vocab
    context = Context(tiny, n_ctx=256, n_batch=8, n_ubatch=8, n_seq_max=1, n_threads=1, n_threads_batch=1)
    (index,) = context.decode([slice_of(0, 0, [TokenId(1)])])
    theirs = np.ctypeslib.as_array(capi.llama_get_logits_ith(context.handle, index), shape=(n_vocab,))
    chance = np.random.default_rng(0)
    with Chain(n_vocab, [*stages, dist(7)]) as given, Chain(n_vocab, [*stages, dist(7)]) as in_place:
        for _ in range(50):
            theirs[:] = chance.normal(0, 2, n_vocab)
            assert given.sample(context.rows()[0]) == in_place.sample_output(context, index)


def test_everything_is_measured_on_the_same_rows_each_time() -> None:
    rows = synthetic_rows(2000)
    assert np.array_equal(rows.logits, synthetic_rows(2000).logits)
    for settings in SETTINGS:
        found = compare(rows, settings, 2)
        assert (found.settings, found.origin, found.n_vocab) == (settings, "synthetic", 2000)
        assert min(found.ours_us, found.llama_cpp_us) > 0
        assert (found.n_kept == 1) == (settings == "greedy")
    fields = field_costs(rows, 1)
    assert len(fields) == 18
    assert all(us > 0 for us in fields.values())
    costs = costs_by_threads(rows, 1)
    assert list(costs) == [n for n in (1, 2, 4) if n <= cpu_quota()]
    assert all(ms > 0 for ms in costs.values())


@pytest.mark.model
def test_a_model_s_rows_are_its_answers_to_a_text(default_model: Path) -> None:
    with model_rows(default_model) as rows:
        assert (rows.origin, rows.n_vocab, len(rows.logits), len(rows.indexes)) == ("model", 49_152, 15, 15)
        assert len({int(row.argmax()) for row in rows.logits}) > 5
        assert all(math.isfinite(row.sum()) for row in rows.logits)
        assert 1 < compare(rows, "worst case", 1).n_kept < 1000


def test_the_table_says_what_the_exit_code_says_and_nothing_is_fetched(
    no_models: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One bound that no machine can meet, one that every machine can."""
    for settings, origin in BOUNDS:
        monkeypatch.setitem(BOUNDS, (settings, origin), 0.0 if settings == "greedy" else math.inf)
    assert run(["sampling", "--rounds", "1"]) == 1
    shown = capsys.readouterr()
    assert "smollm2-135m-instruct is not here: synthetic rows only" in shown.err
    compared = [line.split("\t") for line in shown.out.splitlines() if "synthetic\t" in line]
    assert [(cells[0], cells[2], cells[-1]) for cells in compared] == [
        (settings, vocabulary, "MISSED" if settings == "greedy" else "ok")
        for vocabulary in ("49152", "152064")
        for settings in SETTINGS
    ]
    assert "greedy on synthetic rows of 49152 tokens" in shown.err
    assert "worst case" not in shown.err
    assert not no_models.exists()
