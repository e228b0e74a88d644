"""The quantisation matrix: what is in the files is read from them, what they keep is judged type by type."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from parity import matrix, plot
from parity.bounds import Bounds
from parity.case import Case
from parity.choice import choose
from parity.compare import Summary, compare_full, summarise
from parity.evidence import SHORT
from parity.matrix import Made, Stored
from parity.report import Level
from tests.parity.small_gguf import read_tensor, with_tensor
from worker.config.settings import Settings
from worker.errors import UsageError

# ── made-up files ────────────────────────────────────────────────────────────────────────────────


def summary(error: float) -> Summary:
    rows = np.random.default_rng(1).normal(size=(8, 50)).astype(np.float32)
    other = rows.copy()
    other[:, 3] += np.float32(error)
    return summarise([compare_full(rows, other, range(7))])


def made(file_type: str, *matrices: Stored, error: float = 0.0, cache: str = "auto", memory_bytes: int = 1) -> Made:
    return Made(
        file_type=file_type,
        cache=cache,
        file_bytes=10_000_000,
        memory_bytes=memory_bytes,
        bits_per_weight=8.5,
        matrices=matrices,
        summary=summary(error),
        tokens_per_s=100.0,
        costs=() if cache == "auto" else ("q4",),
    )


def test_every_type_has_its_three_bounds_and_what_breaks_one_is_named(bounds: Bounds) -> None:
    files = [made(file_type) for file_type in matrix.FILE_TYPES]
    assert all(check.holds for check in matrix.checks(files, bounds))
    for number, file_type in enumerate(matrix.FILE_TYPES):
        wrong = [*files[:number], made(file_type, error=9.0), *files[number + 1 :]]
        broken = [check.name for check in matrix.checks(wrong, bounds) if not check.holds]
        assert broken[0] == f"{file_type}: mean KL"
        assert all(name.startswith(f"{file_type}: ") for name in broken)


def test_a_quantised_cache_has_its_allowance(bounds: Bounds) -> None:
    plain, rounded = (next(matrix.checks([made("Q8_0", cache=cache)], bounds)) for cache in ("auto", "q4_0"))
    assert (plain.name, rounded.name) == ("Q8_0: mean KL", "Q8_0, cache q4_0: mean KL")
    assert rounded.bound == plain.bound + bounds.bound("logits.allowance.q4.kl_mean").value


TRIED = (
    made("Q8_0", memory_bytes=300_000_000),
    made("Q4_0", memory_bytes=200_000_000, error=1.0),
    made("Q8_0", memory_bytes=310_000_000, error=0.5, cache="q4_0"),
)


def test_the_table_marks_the_choice_and_what_nothing_beats() -> None:
    shown = matrix.table(TRIED, 10**9)
    assert [row[0] for row in shown.rows] == ["→◆", "◆", ""]
    assert shown.rows[0][1:6] == ("Q8_0", "auto", "10.0", "8.50", "286.1")


@pytest.mark.parametrize("limit", [250_000_000, 10**9])
def test_the_picture_names_all_that_was_tried(limit: int, tmp_path: Path) -> None:
    path = tmp_path / "plot.svg"
    plot.check(path)
    plot.plot(TRIED, choose(TRIED, limit), limit, path, "a model")
    drawn = path.read_text()
    for word in ("a model", "cache auto", "cache q4_0", "Q8_0", "Q4_0", "the choice", "mean KL to the reference, nats"):
        assert f"<!-- {word} -->" in drawn
    assert ("<!-- the limit -->" in drawn) == (limit < 10**9)


@pytest.mark.parametrize(
    ("name", "complaint"), [("plot.txt", r"must end in \.svg, \.png or \.pdf"), ("nowhere/plot.svg", "is not a folder")]
)
def test_a_picture_that_cannot_be_is_refused_before_anything_is_measured(
    name: str, complaint: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=complaint):
        plot.check(tmp_path / name)


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


SETTINGS = Settings(model="any", device="cpu", parallel=2, ctx_size=4096)


@dataclass(frozen=True)
class Ran:
    level: Level
    made: Sequence[Made]
    said: Sequence[str]


def run(
    short_case: Case,
    bounds: Bounds,
    *file_types: str,
    caches: Sequence[str] = ("auto",),
    settings: Settings = SETTINGS,
) -> Ran:
    said: list[str] = []
    level, made = matrix.run(
        short_case,
        settings,
        bounds,
        say=said.append,
        n_tokens=SHORT,
        limit_bytes=2**40,
        file_types=file_types,
        caches=caches,
    )
    return Ran(level, made, said)


@pytest.mark.model
def test_two_types_are_made_measured_and_removed(short_case: Case, bounds: Bounds) -> None:
    ran = run(short_case, bounds, "Q8_0", "Q4_K_M")
    assert ran.level.verdict == "pass", ran.level.summary
    assert ran.said == ["file type Q8_0", "file type Q4_K_M"]
    measured, held = ran.level.tables
    assert [row[1] for row in measured.rows] == ["Q8_0", "Q4_K_M"]
    assert float(measured.rows[0][3]) > float(measured.rows[1][3])
    assert all(float(row[-1]) > 0 for row in measured.rows)
    stored = {(row[0], row[1], row[3]): row[-1] for row in held.rows}
    assert stored["Q8_0", "576", "Q8_0"] == stored["Q8_0", "1536", "Q8_0"] == ""
    assert stored["Q4_K_M", "576", "Q5_0"] == stored["Q4_K_M", "576", "Q8_0"] == "no multiple of 256"
    assert stored["Q4_K_M", "1536", "Q4_K"] == ""
    assert "181 of 211 matrices have rows of 576" in held.note
    assert list(short_case.subject.work.iterdir()) == []


@pytest.mark.model
def test_pairs_are_measured_as_they_would_be_served(short_case: Case, bounds: Bounds) -> None:
    ran = run(short_case, bounds, "Q8_0", "Q4_0", caches=("auto", "q4_0"))
    assert ran.level.verdict == "pass", ran.level.summary
    assert ran.said[:3] == ["file type Q8_0", "file type Q8_0, cache auto", "file type Q8_0, cache q4_0"]
    found = {f"{each.file_type} {each.cache}": each for each in ran.made}
    assert list(found) == ["Q8_0 auto", "Q8_0 q4_0", "Q4_0 auto", "Q4_0 q4_0"]
    exact, rounded = found["Q8_0 auto"], found["Q8_0 q4_0"]
    assert exact.file_bytes == rounded.file_bytes > found["Q4_0 auto"].file_bytes
    assert exact.memory_bytes > rounded.memory_bytes > found["Q4_0 q4_0"].memory_bytes
    assert exact.kl.value < rounded.kl.value
    assert exact.kl.value < found["Q4_0 auto"].kl.value
    assert all(each.tokens_per_s > 0 for each in ran.made)
    (twice,) = run(short_case, bounds, "Q8_0", settings=replace(SETTINGS, ctx_size=8192)).made
    assert twice.memory_bytes > exact.memory_bytes


@pytest.mark.model
def test_files_made_from_other_weights_fail(
    short_case: Case, bounds: Bounds, default_model: Path, tmp_path: Path
) -> None:
    """One norm a quarter too large."""
    name = "blk.15.attn_norm.weight"
    wrong = with_tensor(
        default_model, tmp_path / "wrong.gguf", name, read_tensor(default_model, name) * np.float32(1.25)
    )
    level = run(replace(short_case, f32_copy=wrong), bounds, "Q8_0").level
    assert level.verdict == "fail"
    assert level.summary.startswith("Q8_0: mean KL")


@pytest.mark.model
def test_without_the_weights_of_the_reference_it_is_not_run(short_case: Case, bounds: Bounds) -> None:
    ran = run(replace(short_case, f32_copy=None), bounds, "Q8_0")
    assert (ran.level.verdict, ran.made, ran.said) == ("not run", [], [])
    assert "needs weights to quantise" in ran.level.summary
