"""`parity`: the commands on the real model, the committed logits, and everything a user can get wrong."""

import json
import os
import shutil
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from parity.bounds import Bounds
from parity.bundle import verify
from parity.f32_copy import rewrite
from parity.logits_file import LogitsFile
from parity.report import Report, from_json, to_json
from tests.parity.golden_logits import GOLDEN, without_torch
from tests.parity.reports import report
from tests.worker_process import WorkerProcess
from worker.cli import run

SERVED_WITH = ("--cache-type-k", "q8_0", "--cache-type-v", "q8_0")


@dataclass(frozen=True)
class Ran:
    code: int
    stdout: str
    stderr: str
    folder: Path

    @property
    def report(self) -> Report:
        return from_json((self.folder / "report.json").read_bytes())


def judged(model: Path, proofs: Path, run_id: str, *levels: str, flags: Sequence[str] = ()) -> Ran:
    named = [*(argument for level in levels for argument in ("--level", level)), *flags]
    where = ["--proof-dir", str(proofs), "--run-id", run_id, "--work-dir", str(proofs / "work")]
    found = without_torch("run", "--model", str(model), "--reference", str(GOLDEN), "--threads", "1", *where, *named)
    return Ran(found.returncode, found.stdout, found.stderr, proofs / "parity" / run_id)


@pytest.fixture(scope="module")
def passed(default_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    return judged(default_model, tmp_path_factory.mktemp("proofs"), "good", "tokenizer", "logits", flags=SERVED_WITH)


@pytest.fixture(scope="module")
def failed(default_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """A model that believes in quite another RoPE base."""
    folder = tmp_path_factory.mktemp("proofs")
    wrong = folder / "wrong.gguf"
    rewrite(default_model, wrong, metadata={"llama.rope.freq_base": 300.0})
    return judged(wrong, folder, "bad", "tokenizer", "logits")


@pytest.mark.model
def test_a_run_against_reference_logits_needs_no_torch(passed: Ran) -> None:
    assert passed.code == 0, passed.stderr
    verdicts = {level.name: level.verdict for level in passed.report.levels}
    assert verdicts == {
        "tokenizer": "pass",
        "weights": "not run",
        "checkpoints": "not run",
        "logits": "pass",
        "generation": "not run",
        "serving": "not run",
        "sampling": "not run",
    }
    assert passed.stdout.splitlines()[-1] == f"pass: {passed.folder / 'report.md'}"


@pytest.mark.model
def test_a_level_that_was_asked_for_and_cannot_run_is_a_failure(default_model: Path, tmp_path: Path) -> None:
    """Or a gate on it would be green for ever."""
    lacking = judged(default_model, tmp_path, "lacking", "weights")
    assert (lacking.code, lacking.report.verdict) == (1, "not run")
    assert "weights: could not run: needs the checkpoint" in lacking.stderr


@pytest.mark.model
def test_a_run_leaves_a_bundle_that_verifies_and_no_intermediate_files(passed: Ran) -> None:
    assert verify(passed.folder) == []
    assert list((passed.folder.parents[1] / "work").iterdir()) == []


@pytest.mark.model
def test_a_wrong_model_fails_with_one_line_that_names_the_level(failed: Ran) -> None:
    assert failed.code == 1
    assert failed.stderr.splitlines()[-1].startswith("llorch-worker: error: logits: ")
    assert [level.name for level in failed.report.levels if level.verdict == "fail"] == ["logits"]


@pytest.mark.model
def test_the_model_is_judged_with_serve_s_flags_and_with_what_these_cost(passed: Ran) -> None:
    numerics = passed.report.numerics
    assert numerics is not None
    assert (numerics.cache_type_k, numerics.cache_type_v) == ("q8_0", "q8_0")
    (check,) = [each for level in passed.report.levels for each in level.checks if each.name == "Q4_1 file: mean KL"]
    own, q8 = (Bounds.load().bound(f"logits.{key}.kl_mean") for key in ("own.other", "allowance.q8"))
    assert (check.bound, check.reason) == (own.value + q8.value, f"{own.reason}; and {q8.reason}")


@pytest.mark.model
@pytest.mark.process
def test_a_worker_with_the_flags_of_the_run_is_covered_exactly(passed: Ran, default_model: Path) -> None:
    flags = ("--parity-report", str(passed.folder), "--require-parity", "--ctx-size", "512", *SERVED_WITH)
    with WorkerProcess("--model", str(default_model), "--port", "0", *flags) as worker:
        parity = worker.ready().health()["parity"]
        assert (parity["covers"], parity["differences"]) == ("exact", [])


@pytest.mark.model
def test_show_prints_what_was_proved_of_what_and_with_what(passed: Ran, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["parity", "show", str(passed.folder)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    made = passed.report
    assert made.numerics is not None
    facts = [made.model.sha256, made.reference.sha256, made.bounds.sha256, made.created, made.numerics.llama_cpp]
    facts += ["cache_type_k q8_0", "cache_type_v q8_0", "flash_attn on", "device cpu", *made.numerics.cpu_features]
    assert [fact for fact in facts if fact not in shown] == []
    assert all(f"{level.name} {level.verdict}" in shown for level in made.levels)


@pytest.mark.model
def test_a_run_whose_id_is_taken_is_refused_before_anything_is_computed(passed: Ran, default_model: Path) -> None:
    again = judged(default_model, passed.folder.parents[1], "good", "logits")
    assert again.code == 2
    assert "exists, and a bundle is never changed" in again.stderr
    assert "==>" not in again.stderr


@pytest.mark.model
def test_verify_says_what_was_changed(passed: Ran, failed: Ran, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["parity", "verify", str(passed.folder)]) == 0
    (failed.folder / "report.md").write_text("# Parity: PASS\n")
    assert run(["parity", "verify", str(failed.folder)]) == 1
    assert "report.md" in capsys.readouterr().err


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No reference was ever made here, and the current directory is empty."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.model
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "make one with `llorch-worker parity reference`"),
        (["--reference", "nowhere"], "nowhere"),
        (["--reference", str(Path(__file__))], "test_command.py"),
        (["--bounds", "nowhere.toml"], "nowhere.toml"),
        (["--level", "nonsense"], "nonsense"),
        (["--tokens", "5"], "512"),
        (["--cache-type-v", "q4_0", "--flash-attn", "off"], "needs flash attention"),
        (["--device", "cpu", "--gpu-layers", "all"], "--gpu-layers all conflicts with --device cpu"),
        (["--url", "http://127.0.0.1:9", "--cache-type-k", "q8_0"], "--cache-type-k configures loading"),
        (["--run-id", "../../x", "--reference", str(GOLDEN)], "run id"),
        (["--reference", str(GOLDEN), "--catalog", "nowhere.toml"], "nowhere.toml"),
    ],
)
def test_a_mistake_is_one_line_and_leaves_nothing(
    nowhere: Path,
    default_model: Path,
    arguments: list[str],
    says: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["parity", "run", "--model", str(default_model), *arguments]) == 2
    printed = capsys.readouterr()
    assert says in printed.err
    assert len(printed.err.splitlines()) == 1
    assert printed.out == ""
    assert list(nowhere.iterdir()) == []


@pytest.mark.parametrize("model", ["smollm2-135m-instruct", "./nowhere.gguf"])
def test_a_model_that_is_not_here_is_not_fetched(nowhere: Path, model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["parity", "run", "--model", model, "--models-dir", str(nowhere)]) == 1
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_show_says_of_an_old_report_that_it_covers_no_worker(nowhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old = json.loads(to_json(report(numerics=None)))
    del old["numerics"]
    Path("old.json").write_text(json.dumps(old))
    assert run(["parity", "show", "old.json"]) == 0
    assert "covers no worker exactly" in capsys.readouterr().out
    assert [run(["parity", "show", name]) for name in ("nowhere.json", str(Path(__file__)))] == [2, 2]
    assert [line.split(":")[2] for line in capsys.readouterr().err.splitlines()] == [
        " nowhere.json cannot be read",
        f" {__file__} is not the report.json of a parity run",
    ]


def test_verify_of_nothing_is_one_line(nowhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["parity", "verify", "nowhere"]) == 2
    assert "nowhere" in capsys.readouterr().err
    (nowhere / "empty").mkdir()
    assert run(["parity", "verify", "empty"]) == 1
    assert "not whole" in capsys.readouterr().err


def test_the_printed_bounds_are_a_bounds_file(nowhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["parity", "bounds"]) == 0
    assert "kl_mean" in str(tomllib.loads(capsys.readouterr().out)["logits"])


@pytest.mark.model
@pytest.mark.parity
def test_the_committed_logits_are_what_the_command_makes_and_then_finds(
    default_model: Path, checkpoint: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The checkpoint is there already; parity/test_references.py has commands that make one."""
    shutil.copytree(checkpoint, tmp_path / "checkpoint", copy_function=os.link)
    where = ("--model", str(default_model), "--output", str(tmp_path))
    arguments = ("reference", *where, "--tokens", "512", "--threads", "1")
    assert run(["parity", *arguments]) == 0
    said = capfd.readouterr()
    made = said.out.split()
    assert "de-quantising" not in said.err
    assert made == [str(tmp_path / "checkpoint"), str(tmp_path / "logits.safetensors")]
    new, golden = LogitsFile.open(Path(made[1])), LogitsFile.open(GOLDEN)
    assert (new.windows, new.hard_ids) == (golden.windows, golden.hard_ids)
    for one, other in zip(new.full_rows(), golden.full_rows(), strict=True):
        np.testing.assert_allclose(one[2], other[2], rtol=0, atol=1e-5)
    found = without_torch(*arguments)
    assert (found.returncode, found.stdout.split(), found.stderr) == (0, made, "")
