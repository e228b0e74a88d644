"""`parity`: the commands on the real model against committed reference logits, and everything a user can get wrong."""

from dataclasses import dataclass
from pathlib import Path

import pytest
import tomli

from tests.parity.golden_logits import GOLDEN, without_torch
from worker.cli import run
from worker.errors import WorkerError
from worker.front.certificate import read_certificate
from worker.parity.bundle import verify
from worker.parity.f32_copy import rewrite
from worker.parity.report import Report, from_json


@dataclass(frozen=True)
class Ran:
    code: int
    stdout: str
    stderr: str
    folder: Path

    @property
    def report(self) -> Report:
        return from_json((self.folder / "report.json").read_bytes())


def judged(model: Path, proofs: Path, run_id: str, *levels: str) -> Ran:
    named = [argument for level in levels for argument in ("--level", level)]
    where = ["--proof-dir", str(proofs), "--run-id", run_id, "--work-dir", str(proofs / "work")]
    found = without_torch("run", "--model", str(model), "--reference", str(GOLDEN), "--threads", "1", *where, *named)
    return Ran(found.returncode, found.stdout, found.stderr, proofs / "parity" / run_id)


@pytest.fixture(scope="module")
def passed(default_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    return judged(default_model, tmp_path_factory.mktemp("proofs"), "good", "tokenizer", "logits")


@pytest.fixture(scope="module")
def failed(default_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """A model that believes in quite another RoPE base."""
    folder = tmp_path_factory.mktemp("proofs")
    wrong = folder / "wrong.gguf"
    rewrite(default_model, wrong, metadata={"llama.rope.freq_base": 300.0})
    return judged(wrong, folder, "bad", "tokenizer", "logits")


# ── a run ────────────────────────────────────────────────────────────────────────────────────────


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
def test_a_failed_run_leaves_its_evidence_too_and_no_certificate(failed: Ran) -> None:
    assert verify(failed.folder) == []
    with pytest.raises(WorkerError, match="fail"):
        read_certificate(failed.folder / "report.json")


@pytest.mark.model
def test_a_run_whose_id_is_taken_is_refused_before_anything_is_computed(passed: Ran, default_model: Path) -> None:
    again = judged(default_model, passed.folder.parents[1], "good", "logits")
    assert again.code == 2
    assert "is there already" in again.stderr
    assert "==>" not in again.stderr


@pytest.mark.model
def test_verify_says_what_was_changed(passed: Ran, failed: Ran, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["parity", "verify", str(passed.folder)]) == 0
    (failed.folder / "report.md").write_text("# Parity: PASS\n")
    assert run(["parity", "verify", str(failed.folder)]) == 1
    assert "report.md" in capsys.readouterr().err


# ── nonsense ─────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No reference was ever made here, and the current directory is empty."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.model
@pytest.mark.parametrize(
    ("arguments", "ends"),
    [
        (["run"], (2, "make one with `llorch-worker parity reference`")),
        (["run", "--reference", "nowhere"], (2, "nowhere")),
        (["run", "--reference", str(Path(__file__))], (2, "test_parity.py")),
        (["run", "--bounds", "nowhere.toml"], (2, "nowhere.toml")),
        (["run", "--level", "nonsense"], (2, "nonsense")),
        (["run", "--tokens", "5"], (2, "512")),
        (["run", "--run-id", "../../x", "--reference", str(GOLDEN)], (2, "run id")),
        (["run", "--reference", str(GOLDEN), "--catalog", "nowhere.toml"], (2, "nowhere.toml")),
        (["matrix"], (2, "make one with `llorch-worker parity reference`")),
    ],
)
def test_a_mistake_is_one_line_and_leaves_nothing(
    nowhere: Path,
    default_model: Path,
    arguments: list[str],
    ends: tuple[int, str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    name, *rest = arguments
    code, says = ends
    assert run(["parity", name, "--model", str(default_model), *rest]) == code
    printed = capsys.readouterr()
    assert says in printed.err
    assert len(printed.err.splitlines()) == 1
    assert printed.out == ""
    assert list(nowhere.iterdir()) == []


@pytest.mark.parametrize("model", ["smollm2-135m-instruct", "./nowhere.gguf"])
def test_a_model_that_is_not_here_is_not_fetched(nowhere: Path, model: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["parity", "run", "--model", model, "--models-dir", str(nowhere)]) == 1
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_verify_of_nothing_is_one_line(nowhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["parity", "verify", "nowhere"]) == 2
    assert "nowhere" in capsys.readouterr().err
    (nowhere / "empty").mkdir()
    assert run(["parity", "verify", "empty"]) == 1
    assert "not whole" in capsys.readouterr().err


def test_the_printed_bounds_are_a_bounds_file(nowhere: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["parity", "bounds"]) == 0
    assert "kl_mean" in str(tomli.loads(capsys.readouterr().out)["logits"])
