"""The commands: tables on stdout, JSON in a file, one line for a mistake, and a real worker's costs."""

import json
from pathlib import Path

import pytest

from tests.worker_process import WorkerProcess
from tools.command_line import exit_code
from tools.fleet_sim.__main__ import fleet_sim
from tools.fleet_sim.costs import read_costs
from tools.fleet_sim.policies import POLICIES
from tools.fleet_sim.result import COLUMNS, Result


def exit_of(argv: list[str]) -> int:
    return exit_code(fleet_sim, "fleet_sim", argv)


LOAD = ("--rate", "1", "--requests", "20")


def test_a_run_is_a_line_of_a_markdown_table_and_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "result.json"
    assert exit_of(["run", "--workers", "2", "--policy", "two-choices", *LOAD, "--out", str(out)]) == 0
    heading, _, line = capsys.readouterr().out.splitlines()
    assert heading == f"| {' | '.join(name.removeprefix('>') for name in COLUMNS)} |"
    assert line.startswith("| two-choices | 2 | ")
    written = json.loads(out.read_text())
    assert list(written["results"][0]) == list(Result.__dataclass_fields__)
    assert (written["workload"], written["requests"]) == ("conversations", 20)


def test_a_comparison_has_all_policies_in_each_size(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_of(["compare", "--workers", "1", "--workers", "3", "--workload", "shared-prompts", *LOAD]) == 0
    rows = [line.split(" | ")[:2] for line in capsys.readouterr().out.splitlines()[2:]]
    assert rows == [[f"| {policy}", size] for size in ("1", "3") for policy in POLICIES]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["run", *LOAD], 2, "Missing option '--workers'"),
        (["run", "--workers", "1", *LOAD, "--costs", "/nowhere.json"], 2, "--costs /nowhere.json: No such file"),
        (["run", "--workers", "1", *LOAD, "--out", "/nowhere/x.json"], 2, "--out /nowhere/x.json: No such file"),
        (["measure", "--url", "http://127.0.0.1:1", "--out", "x.json"], 1, "no server answers at http://127.0.0.1:1"),
    ],
)
def test_a_mistake_is_one_line(arguments: list[str], code: int, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_of(arguments) == code
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("fleet_sim: error: ")
    assert words in line


@pytest.mark.model
@pytest.mark.process
def test_the_costs_of_a_real_worker_are_measured_and_simulated_with(
    any_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "costs.json"
    flags = ["--model", str(any_model), "--ctx-size", "4096", "--parallel", "4", "--prompt-lookup", "off"]
    with WorkerProcess(*flags, "--port", "0") as worker:
        worker.ready()
        assert exit_of(["measure", "--url", worker.url, "--rounds", "1", "--out", str(path)]) == 0
    costs = read_costs(path)
    assert (costs.parallel, costs.cells, costs.context_length) == (4, 4096, 4096)
    assert [rows for rows, _ in costs.decode_ms] == [1, 2, 4]
    assert costs.prefix_cache_tokens > 0
    assert exit_of(["run", "--workers", "2", "--costs", str(path), *LOAD]) == 0
    assert "| prefix | 2 | " in capsys.readouterr().out
