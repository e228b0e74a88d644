"""`bench load`: a whole run against stand-ins and against a real worker, what is printed and written, the exit code."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.tools.bench.stand_in import StandIn, stand_in
from tools.bench.__main__ import run
from tools.bench.report import Report
from tools.bench.scenarios import SCENARIOS
from tools.made_model import SHAPES, made_model

QUICK = ("1-stream", "again", "quoting")
"""Against stand-ins, which answer at once."""


@pytest.fixture(autouse=True)
def no_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of this machine's own, and no model."""
    for name in [name for name in os.environ if name.startswith("LLORCH_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("LLORCH_MODELS_DIR", str(tmp_path / "models"))


def arguments(ours: StandIn, theirs: StandIn, *more: str) -> list[str]:
    names = [part for name in QUICK for part in ("--scenario", name)]
    sides = ["--url", str(ours.address), "--peer", f"llama-server={theirs.address}"]
    return ["load", *sides, "--rounds", "2", *names, *more]


def loaded(*more: str, ours: dict[str, Any] | None = None, theirs: dict[str, Any] | None = None) -> int:
    with stand_in(**(ours or {})) as one, stand_in(**(theirs or {})) as other:
        return run(arguments(one, other, *more))


# ── a run ────────────────────────────────────────────────────────────────────────────────────────


def test_both_sides_are_asked_the_same_in_every_round(capsys: pytest.CaptureFixture[str]) -> None:
    with stand_in() as ours, stand_in() as theirs:
        run(arguments(ours, theirs, "--seed", "5"))
        prompts = [job["prompt"] for job in ours.heard.jobs]
        assert sorted(prompts) == sorted(job["prompt"] for job in theirs.heard.jobs)
    assert len(prompts) == len(set(prompts)) == 2 * (1 + 3 + 2 + 1 + 2)
    capsys.readouterr()


def test_the_exit_code_is_the_report_s_verdicts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = loaded("--out", str(tmp_path), "--seed", "5")
    shown = capsys.readouterr()
    report = json.loads((tmp_path / "report.json").read_text())
    assert list(report) == list(Report.__dataclass_fields__)
    assert report["circumstances"]["seed"] == 5
    assert report["circumstances"]["versions"]["llama-server"] == "b1-stand-in"
    own = [line for line in report["lines"] if line["is_own"]]
    assert [line["scenario"] for line in own] == list(QUICK)
    assert all(len(line["ours"]) == len(line["theirs"]) == 2 for line in own)
    missed = [line["scenario"] for line in own if line["verdict"] == "MISSED"]
    assert code == (1 if missed else 0)
    for name in missed:
        assert f"{name}: " in shown.err.splitlines()[-1]


def test_a_pipe_gets_a_line_for_each_measure(capsys: pytest.CaptureFixture[str]) -> None:
    loaded()
    rows = [row.split("\t") for row in capsys.readouterr().out.splitlines()]
    titles = [scenario.title for scenario in SCENARIOS if scenario.name in QUICK]
    assert [row[0] for row in rows][:3] == titles
    assert {row[5] for row in rows[:3]} == {"llama-server"}
    assert "machine" in [row[0] for row in rows[3:]]


def test_rounds_are_told_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    loaded()
    told = [line for line in capsys.readouterr().err.splitlines() if line.startswith("==> ")]
    assert told == [
        f"==> {words}"
        for number in (1, 2)
        for words in (
            "warm-up",
            f"round {number}, 1-stream",
            f"round {number}, again",
            "warm-up",
            f"round {number}, quoting",
        )
    ]


def test_a_folder_gets_the_report_and_its_tables(tmp_path: Path) -> None:
    loaded("--out", str(tmp_path / "new" / "out"))
    folder = tmp_path / "new" / "out"
    assert {path.name for path in folder.iterdir()} == {"report.json", "report.md", "logs"}
    assert "circumstances" in json.loads((folder / "report.json").read_text())
    assert "| 1 stream, 64 / 96 | random words | on | decode |" in (folder / "report.md").read_text()


def test_requests_that_fail_are_named_and_the_exit_code_is_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert loaded(theirs={"status": 500}) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert "1-stream: 6 of 6 requests failed on llama-server, first: 500" in last


def test_a_url_is_enough(capsys: pytest.CaptureFixture[str]) -> None:
    """Stand-ins are not ready: nothing is measured, but a wrong choice would have been refused before."""
    with stand_in(is_ready=False) as server:
        assert run(["load", "--url", str(server.address)]) == 1
    assert "is not ready (503)" in capsys.readouterr().err


def test_the_load_runs_without_llama_cpp_in_its_process() -> None:
    script = "import sys, tools.bench.load_command; print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert {"llama_cpp", "worker.llama", "numpy"}.isdisjoint(found.stdout.split())


# ── in vain ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("argv", "code", "said"),
    [
        ([], 1, "llorch-worker models pull smollm2-135m-instruct"),
        (["--model", "no-such-model"], 1, "no-such-model"),
        (["--url", "http://127.0.0.1:1"], 1, "no server answers at http://127.0.0.1:1"),
        (["--url", "127.0.0.1:1"], 2, "http://HOST:PORT"),
        (["--url", "http://127.0.0.1:1", "--scenario", "64-jobs"], 2, "--scenario 64-jobs needs a worker of its own"),
        (["--url", "http://127.0.0.1:1", "--scenario", "overload"], 2, "--scenario overload needs a worker of its own"),
        (
            ["--url", "http://127.0.0.1:1", "--scenario", "1-stream-no-drafts"],
            2,
            "--scenario 1-stream-no-drafts needs a worker of its own",
        ),
        (["--url", "http://127.0.0.1:1", "--peer", "llama-server"], 2, "give it as NAME=URL"),
        (
            ["--url", "http://127.0.0.1:1", "--peer", "llorch-worker=http://a:1"],
            2,
            "two sides are called llorch-worker",
        ),
        (["--url", "http://127.0.0.1:1", "--worker-flags", "--threads 1"], 2, "--worker-flags"),
        (["--url", "http://127.0.0.1:1", "--peer-binary", "/no/such/file"], 2, "/no/such/file"),
        (["--scenario", "no-such"], 2, "no-such"),
        (["--worker-flags", "'"], 2, "--worker-flags"),
        (["--rounds", "0"], 2, "--rounds"),
    ],
)
def test_what_is_asked_for_in_vain_is_one_line(
    argv: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["load", *argv]) == code
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


# ── a real worker ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.process
@pytest.mark.model
def test_a_worker_is_started_measured_beside_a_peer_and_ended(
    shallow_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = ["--ctx-size", "2048", "--parallel", "4", "--threads", "1", "--rounds", "1"]
    names = ["--scenario", "1-stream", "--scenario", "again"]
    with stand_in() as peer:
        given = [*sizes, *names, "--model", str(shallow_model), "--peer", f"llama-server={peer.address}"]
        code = run(["load", *given, "--out", str(tmp_path)])
        jobs = list(peer.heard.jobs)
    shown = capsys.readouterr()
    report = json.loads((tmp_path / "report.json").read_text())
    assert code == 1, shown.err  # nothing keeps up with a peer that computes nothing
    assert [line["verdict"] for line in report["lines"] if line["is_own"]] == ["MISSED", "MISSED"]
    assert report["failures"] == []
    assert [one["process"] for one in report["resident"]] == ["llorch-worker, front", "llorch-worker, engine"]
    assert report["circumstances"]["commands"]["llorch-worker"].startswith("llorch-worker --ctx-size 2048 ")
    assert len(jobs) == 1 + (3 + 2)  # the warm-up and a round
    assert str(tmp_path) not in (tmp_path / "report.md").read_text()
    (log,) = (tmp_path / "logs").iterdir()
    assert '"event":"shutdown"' in log.read_text().splitlines()[-1]


@pytest.mark.process
def test_several_models_are_measured_one_after_another_each_with_a_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    models = [made_model(tmp_path / name, SHAPES["tiny"]).rename(tmp_path / f"{name}.gguf") for name in ("one", "two")]
    given = [part for model in models for part in ("--model", str(model))]
    sizes = ["--ctx-size", "2048", "--parallel", "4", "--threads", "1", "--rounds", "1", "--scenario", "1-stream"]
    assert run(["load", *given, *sizes, "--out", str(tmp_path / "out")]) == 0
    capsys.readouterr()
    for model in models:
        report = json.loads((tmp_path / "out" / model.stem / "report.json").read_text())
        assert report["circumstances"]["model"] == model.name
        (line,) = [line for line in report["lines"] if line["is_own"]]
        assert line["ours_per_cpu_s"][0] > 0
        assert line["roof"] > line["ours"][0]
