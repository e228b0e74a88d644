"""The quantisation matrix: what is in the files is read from them, what they keep is judged type by type."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.parity.small_gguf import read_tensor, with_tensor
from parity import matrix
from parity.bounds import Bounds
from parity.case import Case
from parity.compare import Summary, compare_full, summarise
from parity.evidence import SHORT
from parity.matrix import Made, Stored
from parity.report import Level

# ── made-up files ────────────────────────────────────────────────────────────────────────────────


def summary(error: float) -> Summary:
    rows = np.random.default_rng(1).normal(size=(8, 50)).astype(np.float32)
    other = rows.copy()
    other[:, 3] += np.float32(error)
    return summarise([compare_full(rows, other, range(7))])


def made(file_type: str, *matrices: Stored, error: float = 0.0) -> Made:
    return Made(file_type, 10_000_000, 8.5, matrices, summary(error), 100.0)


def test_every_type_has_its_three_bounds_and_what_breaks_one_is_named(bounds: Bounds) -> None:
    files = [made(file_type) for file_type in matrix.FILE_TYPES]
    assert all(check.holds for check in matrix.checks(files, bounds))
    for number, file_type in enumerate(matrix.FILE_TYPES):
        wrong = [*files[:number], made(file_type, error=9.0), *files[number + 1 :]]
        broken = [check.name for check in matrix.checks(wrong, bounds) if not check.holds]
        assert broken[0] == f"{file_type}: mean KL"
        assert all(name.startswith(f"{file_type}: ") for name in broken)


def test_rows_that_fit_no_block_are_said_and_what_was_used_instead() -> None:
    odd = Stored(576, "Q5_0", 166, 1000, "blk.0.attn_q.weight")
    embedding = Stored(576, "Q8_0", 15, 500, "token_embd.weight")
    whole = Stored(1536, "Q4_K", 16, 100, "blk.3.ffn_down.weight")
    file = made("Q4_K_M", odd, embedding, whole)
    assert matrix.says_fallback(file) == (
        "Q4_K_M: 181 of 197 matrices have rows of 576, no multiple of 256, and are stored as Q5_0 (166), Q8_0 (15) "
        "instead."
    )
    table = matrix.contents([file])
    assert [row[-1] for row in table.rows] == ["no multiple of 256", "no multiple of 256", ""]
    assert table.note.startswith("Q4_K_M: 181 of 197")


@pytest.mark.parametrize("file_type", ["F16", "BF16", "Q8_0", "Q4_0", "IQ4_NL"])
def test_types_of_small_blocks_have_nothing_to_fall_back_from(file_type: str) -> None:
    assert matrix.says_fallback(made(file_type, Stored(576, "Q8_0", 1, 1, "token_embd.weight"))) == ""


# ── the default model ────────────────────────────────────────────────────────────────────────────


def run(short_case: Case, bounds: Bounds, *file_types: str) -> tuple[Level, Sequence[str]]:
    said: list[str] = []
    level = matrix.run(short_case, bounds, say=said.append, n_tokens=SHORT, file_types=file_types)
    return level, said


@pytest.mark.model
def test_two_types_are_made_measured_and_removed(short_case: Case, bounds: Bounds) -> None:
    level, said = run(short_case, bounds, "Q8_0", "Q4_K_M")
    assert level.verdict == "pass", level.summary
    assert said == ["file type Q8_0", "file type Q4_K_M"]
    measured, held = level.tables
    assert [row[0] for row in measured.rows] == ["Q8_0", "Q4_K_M"]
    assert float(measured.rows[0][1]) > float(measured.rows[1][1])
    assert all(float(row[-1]) > 0 for row in measured.rows)
    stored = {(row[0], row[1], row[3]): row[-1] for row in held.rows}
    assert stored["Q8_0", "576", "Q8_0"] == stored["Q8_0", "1536", "Q8_0"] == ""
    assert stored["Q4_K_M", "576", "Q5_0"] == stored["Q4_K_M", "576", "Q8_0"] == "no multiple of 256"
    assert stored["Q4_K_M", "1536", "Q4_K"] == ""
    assert "181 of 211 matrices have rows of 576" in held.note
    assert list(short_case.subject.work.iterdir()) == []


@pytest.mark.model
def test_files_made_from_other_weights_fail(
    short_case: Case, bounds: Bounds, default_model: Path, tmp_path: Path
) -> None:
    """One norm a quarter too large."""
    name = "blk.15.attn_norm.weight"
    wrong = with_tensor(
        default_model, tmp_path / "wrong.gguf", name, read_tensor(default_model, name) * np.float32(1.25)
    )
    level, _ = run(replace(short_case, f32_copy=wrong), bounds, "Q8_0")
    assert level.verdict == "fail"
    assert level.summary.startswith("Q8_0: mean KL")


@pytest.mark.model
def test_without_the_weights_of_the_reference_it_is_not_run(short_case: Case, bounds: Bounds) -> None:
    level, said = run(replace(short_case, f32_copy=None), bounds, "Q8_0")
    assert (level.verdict, said) == ("not run", [])
