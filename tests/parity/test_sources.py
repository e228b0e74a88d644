"""Where the error comes from: every change is measured by itself and in its place, and a wrong one is named."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tests.parity.made_logits import made_reference
from worker.parity import corpus, sources
from worker.parity.bounds import Bounds
from worker.parity.compare import Summary, compare_full, summarise
from worker.parity.evidence import Window
from worker.parity.full_logits import FullLogits
from worker.parity.gguf_copy import read_tensor, rewrite
from worker.parity.results import Level
from worker.parity.setups import evaluated
from worker.parity.sources import Source

if TYPE_CHECKING:
    from worker.parity.reference.model import Reference

N_TOKENS = 48
QUANTISED = "activations quantised"


# ── made-up numbers ──────────────────────────────────────────────────────────────────────────────


def summary(error: float) -> Summary:
    """Of rows that differ by `error` in one logit."""
    rows = np.random.default_rng(1).normal(size=(8, 50)).astype(np.float32)
    other = rows.copy()
    other[:, 3] += np.float32(error)
    return summarise([compare_full(rows, other, range(7))])


def made() -> list[Source]:
    same, little, much = summary(0.0), summary(1e-5), summary(0.1)
    return [
        Source("float32", "float32 arithmetic", alone=little, so_far=little),
        Source("weights", "weights quantised", step=same, so_far=little),
        Source("activations", QUANTISED, step=much, so_far=much),
        Source("kv.f16", "KV cache: K f16, V f16", alone=little),
        Source("flash", "flash attention", step=much, alone=little, so_far=much),
        Source("batch", "batch shape", step=same, alone=same, so_far=much),
        Source("backend", "backend: none here but the CPU"),
    ]


def broken(found: list[Source], bounds: Bounds, file_type: str = "Q4_1") -> list[str]:
    return [check.name for check in sources.checks(found, bounds, file_type) if not check.holds]


def test_what_is_within_its_bounds_passes_and_every_source_is_a_row(bounds: Bounds) -> None:
    assert broken(made(), bounds) == []
    table = sources.table(made(), 8)
    assert [row[0] for row in table.rows] == [source.name for source in made()]
    assert all(len(row) == len(table.columns) for row in table.rows)


@pytest.mark.parametrize("key", ["float32", "kv.f16", "flash", "batch"])
def test_a_change_that_costs_too_much_alone_fails_and_is_named(bounds: Bounds, key: str) -> None:
    wrong = [replace(source, alone=summary(2.0)) if source.key == key else source for source in made()]
    name = next(source.name for source in made() if source.key == key)
    assert broken(wrong, bounds) == [
        f"{name}, on F32 weights: mean KL",
        f"{name}, on F32 weights: largest error of a logit",
    ]


def test_a_batch_that_changes_a_bit_fails_where_rows_are_computed_one_by_one(bounds: Bounds) -> None:
    wrong = [replace(source, step=summary(1e-5)) if source.key == "batch" else source for source in made()]
    assert broken(wrong, bounds) == ["batch shape, on the Q4_1 file: largest error of a logit"]
    assert broken(wrong, bounds, "Q8_0") == []


def test_rows_without_any_difference_are_shown_as_none() -> None:
    cells = sources.table([Source("batch", "same", step=summary(0.0))], 8).rows[0]
    assert cells[1:4] == ("0", "0", "100.00%")


def test_the_longest_windows_are_taken_until_there_are_enough_tokens(tmp_path: Path) -> None:
    reference = made_reference(tmp_path, ["short", "long", "long", "continuation", "long"], length=24)
    assert evaluated(reference, 1) == (1,)
    assert evaluated(reference, 25) == (1, 2)
    assert evaluated(reference, 10_000) == (1, 2, 4)


def test_a_reference_without_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no windows"):
        evaluated(made_reference(tmp_path, ["continuation"]), 1)


# ── the default model ────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def rows(reference: "Reference", tmp_path_factory: pytest.TempPathFactory) -> FullLogits:
    """One short window of the evaluation text."""
    window = Window("short", tuple(reference.tokenize(corpus.text())[:N_TOKENS]))
    return FullLogits.make(tmp_path_factory.mktemp("rows"), [window], lambda window: reference.logits(window.tokens))


def run(file: Path, twin: Path, dequantised: Path, rows: FullLogits, bounds: Bounds) -> Level:
    return sources.run(
        twin=twin,
        file=file,
        dequantised=dequantised,
        reference=rows,
        bounds=bounds,
        n_threads=1,
        n_tokens=N_TOKENS,
    )


@pytest.mark.model
def test_the_difference_is_taken_apart(default_model: Path, twin: Path, rows: FullLogits, bounds: Bounds) -> None:
    level = run(default_model, twin, twin, rows, bounds)
    assert level.verdict == "pass", level.summary
    cells = {row[0]: row[1:] for row in level.tables[0].rows}
    assert cells["weights quantised"][:3] == ("0", "0", "100.00%")
    assert cells["batch shape: one token at a time"][:2] == ("0", "0")
    assert float(cells["KV cache: K f16, V f16"][3]) < float(cells["KV cache: K bf16, V f16"][3])
    assert any(name.startswith("backend: ") for name in cells)
    assert {series.line for series in level.series} == {"on the file", "alone, on F32 weights"}
    assert not list(twin.parent.glob("sources-*")), "its rows are gone"


@pytest.mark.model
def test_wrong_weights_are_named_by_the_step_that_they_come_in_with(
    default_model: Path, twin: Path, rows: FullLogits, bounds: Bounds, tmp_path: Path
) -> None:
    """One norm a quarter too large: in the twin it looks like wrong arithmetic; in the file's F32 copy the file, which
    has the right one, differs from it by more than its activations can."""
    name, wrong = "blk.15.attn_norm.weight", tmp_path / "wrong.gguf"
    rewrite(twin, wrong, tensors={name: read_tensor(twin, name) * np.float32(1.25)})
    level = run(default_model, wrong, wrong, rows, bounds)
    assert level.verdict == "fail"
    assert level.summary.startswith("float32 arithmetic and RoPE angles, on F32 weights: mean KL")
    names = {check.name for check in level.checks if not check.holds}
    assert f"{QUANTISED}, on the Q4_1 file: mean KL" in names
    assert not any(name.startswith(("KV cache", "flash", "batch")) for name in names)
