"""The set-up decides which windows are measured, and gives one file the same rows again."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parity.evidence import Window
from parity.setups import EXACT, as_served, compute, evaluated, served
from tests.parity.made_logits import made_reference
from worker.config.engine import configure
from worker.config.settings import Settings
from worker.llama.invariance import has_own_products
from worker.models.facts.info import read_info
from worker.models.loading.load import load_runner, placed


def test_the_longest_windows_are_taken_until_there_are_enough_tokens(tmp_path: Path) -> None:
    reference = made_reference(tmp_path, ["short", "long", "long", "continuation", "long"], length=24)
    assert evaluated(reference, 1) == (1,)
    assert evaluated(reference, 25) == (1, 2)
    assert evaluated(reference, 10_000) == (1, 2, 4)


@pytest.mark.model
def test_rows_of_the_served_file_are_the_same_bits_in_any_chunks(default_model: Path, tmp_path: Path) -> None:
    """Rows of Q4_1 are computed one by one; another K cache is another set-up and gives other rows."""
    windows = [Window("short", tuple(range(1, 41)))]
    setups = {"chunks": as_served(), "single": as_served(n_rows=1), "exact": EXACT}
    rows = {
        name: compute(default_model, setup, windows, folder=tmp_path / name, n_threads=1)
        for name, setup in setups.items()
    }
    assert np.array_equal(rows["chunks"].logits.rows(0), rows["single"].logits.rows(0))
    assert rows["exact"].against(rows["chunks"].logits).max_error > 0.0


def settings(**changes: Any) -> Settings:
    report = Path("report.json")
    return Settings(device="cpu", ctx_size=1024, parallel=1, threads=1, parity_report=report, **changes)


@pytest.mark.model
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"cache_type_k": "f16"},
        {"cache_type_k": "q4_0", "cache_type_v": "q4_0", "flash_attn": "on"},
        {"flash_attn": "off"},
        {"deterministic": True},
    ],
)
def test_the_engine_and_parity_say_the_same_of_one_model_with_the_same_settings(
    shallow_model: Path, changes: dict[str, Any]
) -> None:
    config, info = configure(settings(**changes), shallow_model), read_info(shallow_model)
    loaded = load_runner(config, lambda _: None)
    loaded.runner.close()
    with served(config, info, placed(config, info), n_ctx=64, n_threads=1) as found:
        assert found.numerics == loaded.facts.numerics
    assert found.numerics.device == "cpu"
    assert found.numerics.flash_attn is (config.flash_attn != "off")


@pytest.mark.model
@pytest.mark.parametrize("type_k", ["bf16", "f16"])
def test_the_number_of_threads_is_given_only_if_it_changes_bits(shallow_model: Path, type_k: str) -> None:
    """The last token is alone in its step, over more cells than ggml adds up in one thread; our attention does not."""
    tokens = list(range(1, 18 * 32 + 2))
    rows, counts = [], []
    info = read_info(shallow_model)
    for n_threads in (1, 2):
        config = configure(replace(settings(cache_type_k=type_k), threads=n_threads), shallow_model)
        with served(config, info, placed(config, info), n_ctx=len(tokens), n_threads=n_threads) as found:
            rows.append(found.scorer.logits(tokens)[-1])
            counts.append(found.numerics.threads)
    assert counts == ([1, 2] if type_k == "f16" and not has_own_products() else [None, None])
    assert np.array_equal(*rows) is (counts[0] == counts[1])
