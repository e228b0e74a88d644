"""`bench load`: a whole run against stand-ins and against a real worker, what is printed and written, the exit code."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tools.bench.stand_in import StandIn
from tools.bench.__main__ import run
from tools.bench.report import Report
from tools.made_model import SHAPES, made_model

pytestmark = pytest.mark.usefixtures("no_models")

QUICK = ("1-stream", "again", "code-edit")
"""The scenarios against stand-ins, which answer at once."""


def arguments(ours: StandIn, theirs: StandIn, *more: str) -> list[str]:
    names = [part for name in QUICK for part in ("--scenario", name)]
    sides = ["--url", ours.url, "--peer", f"llama-server={theirs.url}"]
    return ["load", *sides, "--rounds", "2", *names, *more]


def test_both_sides_are_asked_the_same_and_the_exit_code_is_the_report_s_verdicts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "new" / "out"
    with StandIn() as ours, StandIn() as theirs:
        code = run(arguments(ours, theirs, "--out", str(folder), "--seed", "5"))
        prompts = [job["prompt"] for job in ours.jobs]
        assert sorted(prompts) == sorted(job["prompt"] for job in theirs.jobs)
    assert len(prompts) == len(set(prompts)) == 2 * (1 + 3 + 2 + 1 + 2)
    shown = capsys.readouterr()
    assert {path.name for path in folder.iterdir()} == {"report.json", "report.md", "logs"}
    report = json.loads((folder / "report.json").read_text())
    assert list(report) == list(Report.__dataclass_fields__)
    assert report["circumstances"]["versions"]["llama-server"] == "b1-stand-in"
    own = [line for line in report["lines"] if line["is_own"]]
    assert [line["scenario"] for line in own] == list(QUICK)
    assert all(len(line["ours"]) == len(line["theirs"]) == 2 for line in own)
    missed = [line["scenario"] for line in own if line["verdict"] == "MISSED"]
    assert code == (1 if missed else 0)
    assert all(f"{name}: " in shown.err.splitlines()[-1] for name in missed)


def test_requests_that_fail_are_named_and_a_server_that_is_not_ready_is(capsys: pytest.CaptureFixture[str]) -> None:
    with StandIn() as ours, StandIn(status=500) as theirs:
        assert run(arguments(ours, theirs)) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert "1-stream: 6 of 6 requests failed on llama-server, first: 500" in last
    with StandIn(is_ready=False) as server:
        assert run(["load", "--url", server.url]) == 1
    assert "is not ready (503)" in capsys.readouterr().err


def test_the_load_runs_without_llama_cpp_in_its_process() -> None:
    script = "import sys, tools.bench.load_command; print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert {"llama_cpp", "worker.llama", "numpy"}.isdisjoint(found.stdout.split())


@pytest.mark.process
@pytest.mark.model
def test_a_worker_is_started_measured_next_to_a_peer_and_stopped(
    shallow_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sizes = ["--ctx-size", "2048", "--parallel", "4", "--threads", "1", "--rounds", "1"]
    names = ["--scenario", "1-stream", "--scenario", "again"]
    with StandIn() as peer:
        given = [*sizes, *names, "--model", str(shallow_model), "--peer", f"llama-server={peer.url}"]
        code = run(["load", *given, "--out", str(tmp_path)])
        jobs = list(peer.jobs)
    shown = capsys.readouterr()
    report = json.loads((tmp_path / "report.json").read_text())
    assert code == 1, shown.err  # nothing keeps up with a peer that computes nothing
    assert [line["verdict"] for line in report["lines"] if line["is_own"]] == ["MISSED", "MISSED"]
    assert [one["process"] for one in report["resident"]] == ["llorch-worker, front", "llorch-worker, engine"]
    assert report["circumstances"]["commands"]["llorch-worker"].startswith("llorch-worker --ctx-size 2048 ")
    assert len(jobs) == 1 + (3 + 2)  # the warm-up and a round
    assert str(tmp_path) not in (tmp_path / "report.md").read_text()
    (log,) = (tmp_path / "logs").iterdir()
    assert '"event":"shutdown"' in log.read_text().splitlines()[-1]


def test_several_models_are_measured_one_after_another_each_with_a_report(tmp_path: Path) -> None:
    models = [made_model(tmp_path / name, SHAPES["tiny"]).rename(tmp_path / f"{name}.gguf") for name in ("one", "two")]
    given = [part for model in models for part in ("--model", str(model))]
    with StandIn() as ours:
        assert run(["load", "--url", ours.url, "--scenario", "1-stream", "--out", str(tmp_path), *given]) == 0
    for model in models:
        report = json.loads((tmp_path / model.stem / "report.json").read_text())
        assert [line["verdict"] for line in report["lines"] if line["is_own"]] == [""]
